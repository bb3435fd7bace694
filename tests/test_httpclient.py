"""The small HTTP client: what it makes of bytes and of addresses. What it does on a socket is in test_docker.py."""

from __future__ import annotations

import socket
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuledger.httpclient import Address, HttpError, _Reader, parse_address

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
    """An answer within the limit or an HttpError, nothing else."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"".join(pieces))
        theirs.shutdown(socket.SHUT_WR)
        try:
            status, body = _Reader(ours, time.monotonic() + 5).answer(64)
        except HttpError:
            return
        assert 200 <= status <= 999
        assert len(body) <= 64


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("unix:///run/d.sock", Address(path="/run/d.sock")),
        ("/run/d.sock", Address(path="/run/d.sock")),
        ("tcp://host:2375", Address(host="host", port=2375)),
        ("tcp://host:2376/", Address(host="host", port=2376, tls=True)),
        ("https://host:1", Address(host="host", port=1, tls=True)),
        ("tcp://[::1]:2375", Address(host="::1", port=2375)),
    ],
)
def test_addresses(url: str, expected: Address) -> None:
    """As DOCKER_HOST has them."""
    assert parse_address(url) == expected


@given(st.text() | st.builds("{}://{}:{}".format, st.sampled_from(["tcp", "unix", "ssh"]), st.text(), st.text()))
def test_any_text_as_an_address(url: str) -> None:
    """An address that can be tried, or a ValueError."""
    try:
        address = parse_address(url)
    except ValueError:
        return
    assert address.path or (address.host and 0 < address.port < 65536)
