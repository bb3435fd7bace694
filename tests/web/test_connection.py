"""Which connection is evicted."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from gpuledger.web.connection import SLOW_S, Connection, choose_victim
from gpuledger.web.http import Limits

NOW = 1000.0
SLOW = NOW - 8 * SLOW_S
"""Start of a wait that is long enough for an eviction."""


@pytest.fixture(name="sock")
def _sock() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        yield sock


class Clients:
    """Connections in any state."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.all: list[Connection] = []

    def waiting(self, address: str, since: float = SLOW, requests: int = 0) -> Connection:
        """A client that has sent some requests, and no complete one since."""
        connection = Connection(self._sock, Limits(), since, address)
        connection.requests = requests
        self.all.append(connection)
        return connection

    def busy(self, address: str, sending_since: float | None = None) -> Connection:
        """A client that waits for its response, or takes no bytes of it since some time."""
        connection = self.waiting(address, requests=1)
        connection.waiting_since, connection.sending_since = None, sending_since
        return connection

    def victim(self, address: str) -> Connection | None:
        """The one to evict."""
        return choose_victim(self.all, address, NOW)


def test_order_within_an_address(sock: socket.socket) -> None:
    """First the client without a request, then the slow reader, then the idle client with the fewest requests."""
    clients = Clients(sock)
    busy = clients.busy("a")
    order = [
        clients.waiting("a", SLOW - 1),
        clients.waiting("a", SLOW),
        clients.busy("a", SLOW - 1),
        clients.busy("a", SLOW),
        clients.waiting("a", SLOW, requests=1),
        clients.waiting("a", SLOW - 100, requests=500),
    ]

    for expected in order:
        assert clients.victim("a") is expected
        clients.all.remove(expected)
    assert clients.all == [busy]
    assert clients.victim("a") is None


def test_clients_have_time(sock: socket.socket) -> None:
    """Clients that have just connected, or just begun to read, stay, unless their address has more than its share."""
    clients = Clients(sock)
    first, second = clients.waiting("a", NOW), clients.busy("a", NOW)

    assert clients.victim("a") is None
    assert clients.victim("b") is first
    clients.all.remove(first)
    assert clients.victim("b") is None
    second.sending_since = SLOW
    assert clients.victim("b") is second


def test_the_address_with_the_most_connections_loses(sock: socket.socket) -> None:
    """And never one that has fewer than the client's, however slow its clients are."""
    clients = Clients(sock)
    slow = clients.waiting("b", SLOW - 50)
    crowd = [clients.busy("a", NOW - number / 1000) for number in range(5)]

    assert clients.victim("c") is crowd[-1]
    assert clients.victim("a") is None
    assert clients.victim("b") is crowd[-1]
    del clients.all[1:]
    assert clients.victim("b") is slow
