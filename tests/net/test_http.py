"""The HTTP client: how it reads any bytes, however they are cut. Its errors on sockets are also in test_docker.py."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuledger.errors import ConnectError, HttpError
from gpuledger.net.address import Address
from gpuledger.net.http import FEW_CHUNKS, HEAD_LIMIT, Client, Response, ResponseParser
from gpuledger.runtime.deadline import Deadline

PIECES = [
    b"HTTP/1.1 200 OK\r\n",
    b"\r\n",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"5\r\n",
    b"abc",
]


@example([b"HTTP/1.1 200 OK\r\n", b"\r\n", b"x" * 65])
@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=20), max_size=12))
def test_any_bytes_as_an_answer(pieces: list[bytes]) -> None:
    """A body within the limit, or an HttpError."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"".join(pieces))
        theirs.shutdown(socket.SHUT_WR)
        try:
            response = Response(ours, Deadline(5), "a server", 64)
            body = response.body()
        except HttpError:
            return
        assert 200 <= response.status <= 999
        assert len(body) <= 64


STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@given(st.lists(st.binary(min_size=1), max_size=5), st.integers(1, 40))
def test_bodies_in_any_pieces(parts: list[bytes], size: int) -> None:
    """However a response is cut on its way, its body is the same."""
    sent = STREAM + b"".join(chunk(part) for part in parts) + chunk(b"")
    parser = ResponseParser(None)
    body = b"".join(parser.feed(sent[at : at + size]) for at in range(0, len(sent), size))

    assert (parser.done, parser.status, body) == (True, 200, b"".join(parts))


@given(st.binary(), st.binary(max_size=200), st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n\r\n", STREAM]))
def test_any_bytes_in_two_pieces(one: bytes, two: bytes, head: bytes) -> None:
    """The parser ends with a body or with an HttpError."""
    with suppress(HttpError):
        parser = ResponseParser(1 << 20)
        for data in filter(None, (head, one, two)):
            parser.feed(data)
        parser.feed(b"")
        assert parser.done


@pytest.mark.parametrize(
    ("sent", "kind", "words"),
    [
        (b"", "http", "closed the connection without an answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "http", "did not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (HEAD_LIMIT + 5), "http", "did not answer in HTTP"),
        (STREAM + b"+5\r\nhello\r\n", "http", "sent an invalid chunk size"),
        (STREAM + b"1_0\r\n", "http", "sent an invalid chunk size"),
        (STREAM + b"f" * (HEAD_LIMIT + 5), "http", "sent an invalid chunk size"),
        (STREAM + b"5\r\nhel", "half", "closed the connection in the middle of an answer"),
        (STREAM + b"5", "half", "closed the connection in the middle of an answer"),
        (STREAM + b"5\r\nhello", "half", "closed the connection in the middle of an answer"),
        (STREAM + b"fffffff\r\n", "size", "sent an answer of more than 1 MiB"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
            "half",
            "closed the connection in the middle of an answer",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\n", "http", "sent an invalid Content-Length"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (1 << 20) + b"x", "size", "sent an answer of more than 1 MiB"),
    ],
)
def test_malformed_responses(sent: bytes, kind: str, words: str) -> None:
    """Each has a kind, and a message that names the server."""
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def send() -> None:
            with suppress(OSError):
                theirs.sendall(sent)
                theirs.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        with pytest.raises(HttpError) as caught:
            Response(ours, Deadline(5), "a server", 1 << 20).body()
        with suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)
        sender.join(5)

    assert caught.value.kind == kind
    assert str(caught.value).startswith("a server ")
    assert words in str(caught.value)


def test_interim_responses_are_skipped() -> None:
    """100 Continue comes before the response."""
    parser = ResponseParser(None)

    assert parser.feed(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n") == b""
    assert (parser.status, parser.done) == (204, True)


def test_endless_interim_responses() -> None:
    """A server that sends nothing but 100 Continue is given up after ten of them."""
    parser = ResponseParser(None)

    with pytest.raises(HttpError, match="sent no final response"):
        parser.feed(b"HTTP/1.1 100 Continue\r\n\r\n" * 11)


@pytest.mark.parametrize(("size", "accepted"), [(1, False), (128, False), (256, True), (2048, True)])
def test_many_small_chunks(size: int, accepted: bool) -> None:
    """Chunks of Go's servers have 2 KiB; a response of smaller and smaller ones is given up."""
    parser = ResponseParser(None)
    parser.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunks = (b"%x\r\n" % size + b"a" * size + b"\r\n") * (3 * FEW_CHUNKS)

    with nullcontext() if accepted else pytest.raises(HttpError, match="too many small chunks"):
        assert len(parser.feed(chunks)) == 3 * FEW_CHUNKS * size


def test_polling_a_stream() -> None:
    """Nothing is None, the head is empty bytes, and body bytes that came with the head are not lost."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        response = Response(ours, Deadline(5), "a server", None)
        assert response.poll(0.01) is None
        theirs.sendall(STREAM)
        assert (response.poll(5), response.status) == (b"", 200)
        assert response.poll(0.01) is None
        theirs.sendall(chunk(b"event"))
        assert response.poll(5) == b"event"
        theirs.sendall(chunk(b""))
        assert (response.poll(5), response.done) == (b"", True)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        response = Response(ours, Deadline(5), "a server", None)
        theirs.sendall(STREAM + chunk(b"event"))
        response.read_head()
        assert response.poll(0) == b"event"


def test_closing_wakes_a_reader() -> None:
    """From another thread; the reader closes the socket then, so that no thread reads a closed one."""
    ours, theirs = socket.socketpair()
    with theirs:
        response = Response(ours, Deadline(60), "a server", None)
        timer = threading.Timer(0.05, response.close)
        timer.start()
        began = time.monotonic()
        with pytest.raises(HttpError):
            response.body()
        timer.join()
        assert time.monotonic() - began < 5
        assert ours.fileno() == -1


def _missing(folder: str) -> Address:
    return Address(path=f"{folder}/none.sock")


def _refused(folder: str) -> Address:
    path = f"{folder}/left.sock"
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(path)
    return Address(path=path)


def _unknown(_: str) -> Address:
    return Address(host="nowhere.invalid", port=1)


@pytest.mark.parametrize(
    ("address", "kind", "words"),
    [
        (_missing, "missing", "cannot open {}: No such file or directory; check whether it runs"),
        (_refused, "refused", "cannot open {}: Connection refused; check whether it runs"),
        (_unknown, "unreachable", "cannot reach {}: "),
    ],
)
def test_no_connection(
    address: Callable[[str], Address], kind: str, words: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each cause has its kind."""
    place = address(str(tmp_path_factory.mktemp("s")))

    with pytest.raises(ConnectError) as caught:
        Client(place).get("/", 5, 1)
    assert caught.value.kind == kind
    assert str(caught.value).startswith(words.format(place))


def test_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket of another user."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(ConnectError, match=r"^cannot open /run/d\.sock: Permission denied; allow this user"):
        Client(Address(path="/run/d.sock")).get("/", 5, 1)


def test_one_deadline_for_the_whole_response() -> None:
    """Single bytes do not extend it."""
    ours, theirs = socket.socketpair()
    over = threading.Event()

    def drip() -> None:
        with suppress(OSError):
            theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not over.wait(0.01):
                theirs.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    began = time.monotonic()
    with ours, theirs:
        with pytest.raises(
            HttpError, match=r"^no complete answer from a server within 0\.2 s; check whether it is overloaded$"
        ) as caught:
            Response(ours, Deadline(0.2), "a server", 1 << 20).body()
        assert caught.value.kind == "timeout"
        assert time.monotonic() - began < 3
        over.set()
        thread.join(5)
