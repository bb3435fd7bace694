"""Responses of the server itself, and the encoding of pages."""

from __future__ import annotations

import gzip

import pytest

from gpuledger.web.http import Request, parse_head
from gpuledger.web.responses import compress, encoded, not_found, refusal


def get(line: str = "GET / HTTP/1.1", *headers: str) -> Request:
    """A parsed request, with a Host header."""
    return parse_head("\r\n".join([line, "Host: here", *headers, "", ""]).encode("latin-1"))


@pytest.mark.parametrize("line", ["POST / HTTP/1.1", "get / HTTP/1.1", "OPTIONS * HTTP/1.1", "CONNECT a:1 HTTP/1.1"])
def test_methods(line: str) -> None:
    """Every method but GET and HEAD is refused, and the answer names those two."""
    refused = refusal(get(line))

    assert refused is not None
    assert refused.status == 405
    assert ("Allow", "GET, HEAD") in refused.headers


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("Content-Length: 0", True),
        ("Content-Length: 5", False),
        ("Content-Length: 0, 5", False),
        ("Content-Length: -1", False),
        ("Transfer-Encoding: chunked", False),
        ("Accept: */*", True),
    ],
)
def test_bodies(header: str, *, accepted: bool) -> None:
    """A request with a body is refused, because it is not known where the next request starts."""
    refused = refusal(get("GET / HTTP/1.1", header))

    assert (refused is None) is accepted
    assert refused is None or refused.status == 400


def test_not_found() -> None:
    """A 404 lists the pages."""
    response = not_found("/metric", ["/metrics", "/healthz"])

    assert response.status == 404
    assert response.body == b"no page at /metric; try /metrics, /healthz\n"


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_pages_have_the_encoding_that_the_client_prefers(encoding: str) -> None:
    """Caches keep one copy for each encoding."""
    bodies = {"gzip": b"".join(compress([b"a", b"b"])), "identity": b"ab"}
    request = get("GET / HTTP/1.1", f"Accept-Encoding: {encoding}")
    response = encoded(request, "text/plain", bodies.__getitem__, ("X", "y"))

    assert isinstance(response.body, bytes)
    assert (gzip.decompress(response.body) if encoding == "gzip" else response.body) == b"ab"
    headers = {"Content-Type": "text/plain", "X": "y", "Vary": "Accept-Encoding"}
    assert dict(response.headers) == headers | ({"Content-Encoding": "gzip"} if encoding == "gzip" else {})
