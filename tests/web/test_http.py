"""Request heads in, framed answers out."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuledger.web.http import BadRequest, Limits, Request, Response, frame, head_end, parse_head
from tests.web.clients import parsed


def framed(response: Response, request: Request | None, *, keep_alive: bool = True) -> tuple[bytes, bool]:
    """All bytes of an answer, and whether the connection lives on."""
    pieces, kept = frame(response, request, keep_alive=keep_alive)
    return b"".join(pieces), kept


def test_request() -> None:
    """Every part of a head lands in its field, decoded."""
    request = parsed(
        "GET /a%20b%C3%A9?collect[]=x&collect[]=y+z%26&flag HTTP/1.1", "ACCEPT:\ttext/plain ", "accept: */*"
    )

    assert request.method == "GET"
    assert request.path == "/a bé"
    assert request.query == {"collect[]": ["x", "y z&"], "flag": [""]}
    assert request.headers == {"host": "here", "accept": "text/plain, */*"}
    assert request.version == "HTTP/1.1"
    assert request.keep_alive


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("http://gpu1:9400/metrics?a=1", "/metrics"),
        ("HTTP://gpu1", "/"),
        ("https://gpu1?a=1", "/"),
        ("//metrics", "//metrics"),
        ("/a:b", "/a:b"),
    ],
)
def test_targets(target: str, path: str) -> None:
    """Absolute targets, as proxies send them, lose scheme and host."""
    assert parsed(f"GET {target} HTTP/1.1").path == path


@pytest.mark.parametrize(
    ("version", "connection", "keep_alive"),
    [
        ("1.1", "", True),
        ("1.1", "Connection: Close", False),
        ("1.1", "Connection: te, close", False),
        ("1.0", "", False),
        ("1.0", "Connection: Keep-Alive", True),
        ("1.0", "Connection: keep-alive, close", False),
    ],
)
def test_keep_alive(version: str, connection: str, *, keep_alive: bool) -> None:
    """The default of HTTP/1.1 is to keep the connection, that of HTTP/1.0 to close it."""
    headers = [connection] if connection else []

    assert parsed(f"GET / HTTP/{version}", *headers).keep_alive is keep_alive


def test_bare_newlines_and_missing_blank_line() -> None:
    """A head typed by hand is read too; a later minor version is read as 1.1, and 1.0 needs no Host."""
    assert parse_head(b"GET /x HTTP/1.0\nA: b\n\n").headers == {"a": "b"}
    assert parse_head(b"GET /x HTTP/1.0").path == "/x"
    assert parsed("GET / HTTP/1.9").version == "HTTP/1.1"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"", 400),
        (b"\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400),
        (b"GET / http/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET metrics HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"G@T / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /\xe9 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /%+1 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /%4 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /%ff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /%0aX HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /?a=%gg HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\nX: b\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505),
        (b"GET / HTTP/1.0\r\n" + b"A: b\r\n" * 101, 431),
    ],
)
def test_bad_heads(head: bytes, status: int) -> None:
    """What is not a head is refused with the right status and a line that gives the remedy."""
    with pytest.raises(BadRequest) as caught:
        parse_head(head)

    assert caught.value.status == status
    assert ";" in caught.value.message
    assert "\n" not in caught.value.message


WORDS = [b"GET", b" ", b"/", b"%", b"4f", b"?", b"=", b"&", b"HTTP/1.1", b"HTTP/1.0", b"\r\n", b"\n", b":", b"Host"]


@given(st.binary() | st.lists(st.sampled_from(WORDS) | st.binary(max_size=3), max_size=30).map(b"".join))
@example(b"GET /%4f?a=b HTTP/1.1\r\nHost: a\r\n\r\n")
def test_any_bytes(data: bytes) -> None:
    """Any bytes give a request or BadRequest, and nothing else."""
    status, version = 0, ""
    try:
        version = parse_head(data).version
    except BadRequest as error:
        status = error.status

    assert version in ("HTTP/1.0", "HTTP/1.1") or status in (400, 431, 505)


def test_head_end() -> None:
    """A head ends at its first blank line, in either spelling; until then more is awaited."""
    assert head_end(b"GET / HTTP/1.1\r\nA: b\r\n") == 0
    assert head_end(b"GET / HTTP/1.1\r\n\r\nGET") == 18
    assert head_end(b"GET / HTTP/1.1\n\nGET /\r\n\r\n") == 16


@pytest.mark.parametrize(
    ("buffer", "status"),
    [
        (b"GET /" + b"a" * 60, 414),
        (b"GET /" + b"a" * 60 + b"\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20, 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20 + b"\r\n", 431),
    ],
)
def test_head_too_large(buffer: bytes, status: int) -> None:
    """Size is limited whether or not the head is complete."""
    with pytest.raises(BadRequest) as caught:
        head_end(buffer, Limits(head_bytes=100, line_bytes=50))

    assert caught.value.status == status


def test_frame_bytes() -> None:
    """A body of bytes has its length, and the connection lives on without saying so."""
    sent, kept = framed(Response(200, [("Content-Type", "text/plain")], b"hello"), parsed())

    assert kept
    assert sent == (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Content-Type-Options: nosniff\r\n"
        b"Content-Length: 5\r\n\r\nhello"
    )


def test_frame_large_bytes_are_not_copied() -> None:
    """A large cached body is sent as it is, the same object for every scrape."""
    body = b"x" * 1_000_000
    pieces, _ = frame(Response(200, [], body), parsed(), keep_alive=True)

    assert list(pieces)[1] is body


def test_frame_stream() -> None:
    """A streamed body goes in chunks, small parts together and empty ones left out."""
    sent, kept = framed(Response(200, [], iter([b"a", b"", b"bc"])), parsed())

    assert kept
    assert b"Transfer-Encoding: chunked\r\n" in sent
    assert b"Content-Length" not in sent
    assert sent.endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")


@given(st.lists(st.binary(max_size=40_000), max_size=5))
def test_frame_stream_decodes(parts: list[bytes]) -> None:
    """Undoing the chunks gives the body back."""
    sent, _ = framed(Response(200, [], parts), parsed())
    rest = sent.partition(b"\r\n\r\n")[2]
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) :].removeprefix(b"\r\n")
        if size == b"0":
            break

    assert body == b"".join(parts)
    assert rest == b""


def test_frame_old_client() -> None:
    """HTTP/1.0 gets no chunks: a stream ends with the connection, bytes may keep it."""
    request = parsed("GET / HTTP/1.0", "Connection: keep-alive")

    streamed, stream_kept = framed(Response(200, [], iter([b"abc"])), request)
    plain, plain_kept = framed(Response(200, [], b"abc"), request)

    assert not stream_kept
    assert b"Connection: close\r\n" in streamed
    assert b"chunked" not in streamed
    assert streamed.endswith(b"\r\n\r\nabc")
    assert plain_kept
    assert b"Connection: keep-alive\r\n" in plain


def test_frame_head() -> None:
    """HEAD gets the headers of GET and no body, and a stream is not even started."""

    def never() -> object:
        raise AssertionError

    request = parsed("HEAD / HTTP/1.1")
    sent, kept = framed(Response(200, [], b"hello"), request)
    streamed, _ = framed(Response(200, [], iter(never, None)), request)  # type: ignore[arg-type]

    assert kept
    assert sent.endswith(b"Content-Length: 5\r\n\r\n")
    assert streamed.endswith(b"Transfer-Encoding: chunked\r\n\r\n")


def test_frame_close() -> None:
    """The last response has `Connection: close`."""
    sent, kept = framed(Response.text(408, "too slow; hurry"), None, keep_alive=False)

    assert not kept
    assert sent.startswith(b"HTTP/1.1 408 Request Timeout\r\nContent-Type: text/plain; charset=utf-8\r\n")
    assert b"Connection: close\r\n" in sent
    assert sent.endswith(b"\r\n\r\ntoo slow; hurry\n")


@pytest.mark.parametrize("header", [("X", "a\r\nSet-Cookie: b"), ("X: y", "a"), ("", "a")])
def test_frame_refuses_injection(header: tuple[str, str]) -> None:
    """A response header cannot smuggle in another one."""
    with pytest.raises(ValueError, match="invalid response header"):
        frame(Response(200, [header], b""), parsed(), keep_alive=True)
