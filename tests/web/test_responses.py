"""Responses of the server itself, the encoding of pages, and the files of the page."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from gpuledger.web.app import FILES, INDEX
from gpuledger.web.http import Request, Response
from gpuledger.web.responses import FOLDER, Files, encoded, not_found, refusal
from tests.web.clients import parsed


@pytest.mark.parametrize("line", ["POST / HTTP/1.1", "get / HTTP/1.1", "OPTIONS * HTTP/1.1", "CONNECT a:1 HTTP/1.1"])
def test_methods(line: str) -> None:
    """Every method but GET and HEAD is refused, and the answer names those two."""
    refused = refusal(parsed(line))

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
    refused = refusal(parsed("GET / HTTP/1.1", header))

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
    bodies = {"gzip": gzip.compress(b"ab"), "identity": b"ab"}
    request = parsed("GET / HTTP/1.1", f"Accept-Encoding: {encoding}")
    response = encoded(request, "text/plain", bodies.__getitem__, ("X", "y"))

    assert isinstance(response.body, bytes)
    assert (gzip.decompress(response.body) if encoding == "gzip" else response.body) == b"ab"
    headers = {"Content-Type": "text/plain", "X": "y", "Vary": "Accept-Encoding"}
    assert dict(response.headers) == headers | ({"Content-Encoding": "gzip"} if encoding == "gzip" else {})


def ask(files: Files, name: str, **headers: str) -> Response:
    """A request of a browser."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return files.answer(name, Request("GET", f"/{name}", {}, named, "HTTP/1.1", keep_alive=True))


def test_plain_compressed_or_not_modified() -> None:
    """A client with the current version gets 304; other content has another tag."""
    files = Files()
    plain = ask(files, "page.js")
    packed = ask(files, "page.js", accept_encoding="gzip")
    tag = dict(plain.headers)["ETag"]

    assert plain.body == (FOLDER / "page.js").read_bytes()
    assert gzip.decompress(bytes(packed.body)) == plain.body  # type: ignore[arg-type]
    assert dict(plain.headers)["Content-Type"] == "text/javascript; charset=utf-8"
    again = ask(files, "page.js", if_none_match=f'"x", W/{tag}')
    assert (again.status, again.body, dict(again.headers)["ETag"]) == (304, b"", tag)
    assert ask(files, "page.css", if_none_match=tag).status == 200


def test_a_file_may_be_changed_on_its_way() -> None:
    """And is read once."""
    files = Files(transform=lambda name, text: f"{name} {len(text)}")

    assert ask(files, "page.js").body == b"page.js %d" % len((FOLDER / "page.js").read_text())
    assert files.text("page.js").startswith("page.js ")


def test_everything_the_page_needs_is_here() -> None:
    """Each import and link names a file that is served, and none is served for nothing."""
    used = set()
    for path in FOLDER.iterdir():
        text = path.read_text()
        used |= set(re.findall(r'from "\./([^"]+)"', text)) | set(re.findall(r'"page/([^"]+)"', text))

    assert used == set(FILES)
    assert {path.name for path in FOLDER.iterdir() if path.is_file()} == {*FILES, INDEX}


def test_nothing_becomes_markup() -> None:
    """No script writes HTML, styles or code from text, and nothing is loaded from elsewhere."""
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(|\bstyle=|\bon\w+=\""
    )
    for path in FOLDER.iterdir():
        text = path.read_text()
        assert not forbidden.search(text), path.name
        elsewhere = set(re.findall(r"https?://[^\s\"']+", text)) - {"http://www.w3.org/2000/svg"}
        assert not elsewhere, path.name


def test_it_is_small() -> None:
    """What is read into memory, and what a phone must load; small files, as everywhere here."""
    sizes = {path: len(path.read_bytes()) for path in FOLDER.iterdir()}

    assert sum(sizes.values()) < 110_000
    assert all(len(Path(path).read_text().splitlines()) < 400 for path in sizes)
