"""Which connection gets a place, and which one is evicted."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from gpuledger.web.connection import SLOW_S, Connection
from gpuledger.web.http import Limits
from gpuledger.web.places import Places, choose_victim

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
    """First the client without a complete request, then the slow reader."""
    clients = Clients(sock)
    busy = clients.busy("a")
    order = [
        clients.waiting("a", SLOW - 1),
        clients.waiting("a", SLOW),
        clients.busy("a", SLOW - 1),
        clients.busy("a", SLOW),
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


def test_a_place_is_kept_for_a_client_that_was_served(sock: socket.socket) -> None:
    """A quarter of the places is for the first clients that were served, one each, however many others come."""
    places = Places(8)
    for address in ("scraper", "kubelet", "late"):
        client = Connection(sock, Limits(), NOW, address)
        assert places.admit(client)
        client.succeeded = True
        places.leave(client)
    admitted = [places.admit(Connection(sock, Limits(), NOW, f"other{number}")) for number in range(8)]

    assert admitted == [True] * 6 + [False] * 2
    assert not places.admit(Connection(sock, Limits(), NOW, "late"))
    assert places.admit(Connection(sock, Limits(), NOW, "scraper"))
    assert not places.admit(Connection(sock, Limits(), NOW, "scraper"))
    assert places.admit(Connection(sock, Limits(), NOW, "kubelet"))


def test_a_kept_place_is_not_taken_from_a_slow_reader() -> None:
    """A scraper behind a slow link keeps its one place, and loses a second one."""
    with socket.socket() as first_sock, socket.socket() as second_sock:
        places = Places(2)
        first, second = (Connection(sock, Limits(), NOW, "scraper") for sock in (first_sock, second_sock))
        places.regulars["scraper"] = NOW
        for connection in (first, second):
            assert places.admit(connection)
            connection.waiting_since, connection.sending_since = None, SLOW - 1

        assert places.evict("other", NOW)
        assert [first.evicted, second.evicted].count(True) == 1
        assert not places.evict("other", NOW)


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::1", "::"),
    ],
)
def test_one_ipv6_network_is_one_client(sock: socket.socket, address: str, group: str) -> None:
    """A host that may use any address of its network of 64 bits gets no more than one with a single address."""
    assert Connection(sock, Limits(), NOW, address).group == group
