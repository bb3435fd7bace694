"""Listen addresses, and sockets passed by systemd."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import ListenError
from gpuledger.net.address import parse_listen_address
from gpuledger.web import listen
from gpuledger.web.listen import passed_sockets
from tests.web.clients import fetch, serving

Opened = socket.socket | IO[str]


def test_passed_sockets_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, and children do not inherit them."""
    first, second = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    with first, second:
        low = _next_to_each_other(first, second)
    monkeypatch.setattr(listen, "_FIRST_PASSED", low)

    sockets = passed_sockets({"LISTEN_FDS": "2", "LISTEN_PID": str(os.getpid())})

    assert [os.get_inheritable(sock.fileno()) for sock in sockets] == [False, False]
    with serving(addresses=(), sockets=sockets) as server:
        assert len(server.addresses) == 2
        assert [fetch(address, "/healthz") for address in server.addresses] == [(200, b"ok\n")] * 2


def _next_to_each_other(*sockets: socket.socket) -> int:
    """Copies of these with numbers that follow on each other, as systemd passes them; the first of them."""
    low = 200
    for number, sock in enumerate(sockets):
        os.dup2(sock.fileno(), low + number)
    return low


@pytest.mark.parametrize(
    "environment",
    [{}, {"LISTEN_FDS": "1"}, {"LISTEN_FDS": "1", "LISTEN_PID": "1"}, {"LISTEN_FDS": "0", "LISTEN_PID": "42"},
     {"LISTEN_FDS": "x", "LISTEN_PID": "42"}, {"LISTEN_FDS": "", "LISTEN_PID": "42"}],
)  # fmt: skip
def test_nothing_is_passed(environment: dict[str, str]) -> None:
    """Without sockets for this very process there is nothing to listen on."""
    with pytest.raises(ListenError, match="no socket activation file descriptors found"):
        passed_sockets(environment, pid=42)


@pytest.mark.parametrize(
    "make",
    [
        lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        lambda: socket.socket(socket.AF_UNIX),
        socket.socket,  # it does not listen
        Path(os.devnull).open,
    ],
)
def test_other_descriptors_are_passed(make: Callable[[], Opened], monkeypatch: pytest.MonkeyPatch) -> None:
    """A descriptor that is not a listening TCP socket is an error."""
    with make() as opened:
        monkeypatch.setattr(listen, "_FIRST_PASSED", opened.fileno())
        with pytest.raises(ListenError, match=r"--web.systemd-socket: file descriptor \d+"):
            passed_sockets({"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})


def test_a_closed_one_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number without anything behind it."""
    monkeypatch.setattr(listen, "_FIRST_PASSED", 4000)

    with pytest.raises(ListenError, match=r"--web\.systemd-socket: file descriptor 4000: Bad file descriptor"):
        passed_sockets({"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":9400", ("", 9400)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:9400", ("::1", 9400)),
        ("[fe80::1%eth0]:9400", ("fe80::1%eth0", 9400)),
        ("localhost:9400", ("localhost", 9400)),
        ("gpu-node_1.example.org:9400", ("gpu-node_1.example.org", 9400)),
    ],
)
def test_address(text: str, expected: tuple[str, int]) -> None:
    """The spellings that other exporters take are taken."""
    assert parse_listen_address(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the port is missing; write :9400"),
        ("9400", "the port is missing; write :9400"),
        ("localhost", "the port is missing; write localhost:9400"),
        ("::1:9400", "an IPv6 address needs brackets; write for example [::1]:9400"),
        ("http://localhost:9400", "this is a URL; write for example :9400, 127.0.0.1:9400 or [::1]:9400"),
        (":http", "expected HOST:PORT; write for example :9400, 127.0.0.1:9400 or [::1]:9400"),
        ("a b:9400", "expected HOST:PORT; write for example :9400, 127.0.0.1:9400 or [::1]:9400"),
        (":9400\n", "expected HOST:PORT; write for example :9400, 127.0.0.1:9400 or [::1]:9400"),
        (":99999", "the port is too large; choose one from 1 to 65535"),
    ],
)
def test_bad_address(text: str, message: str) -> None:
    """The message says what is wrong with the address, and shows a valid one."""
    with pytest.raises(ValueError, match="is not a listen address") as caught:
        parse_listen_address(text)

    assert str(caught.value) == f"is not a listen address: {message}"


@given(st.text() | st.text(alphabet="[]:.%0189af"))
def test_any_address(text: str) -> None:
    """Any string is an address or a ValueError."""
    try:
        _, port = parse_listen_address(text)
    except ValueError:
        return
    assert 0 <= port <= 65535
