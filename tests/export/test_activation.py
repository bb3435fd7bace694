"""Sockets that somebody else has opened."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from gpuledger.errors import ListenError
from gpuledger.export import activation
from gpuledger.export.activation import passed_sockets
from tests.export.test_server import fetch, serving

Opened = socket.socket | IO[str]


def test_passed_sockets_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, and children do not inherit them."""
    first, second = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    with first, second:
        low = _next_to_each_other(first, second)
    monkeypatch.setattr(activation, "FIRST", low)

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
def test_other_things_are_passed(make: Callable[[], Opened], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no listening TCP socket is an error, not a server that nobody can reach."""
    with make() as opened:
        monkeypatch.setattr(activation, "FIRST", opened.fileno())
        with pytest.raises(ListenError, match=r"--web.systemd-socket: file descriptor \d+"):
            passed_sockets({"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})


def test_a_closed_one_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number without anything behind it."""
    monkeypatch.setattr(activation, "FIRST", 4000)

    with pytest.raises(ListenError, match=r"--web\.systemd-socket: file descriptor 4000: Bad file descriptor"):
        passed_sockets({"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})
