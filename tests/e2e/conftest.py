"""A node for all tests of a file, and an exporter for each."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.e2e.ledgers import Ledger, ledger, sockets
from tests.e2e.nodes import Node, a_node


def pytest_configure() -> None:
    """Who is told to end cleans up first, as after Ctrl-C: the daemons would go on."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """Without a cluster."""
    with a_node() as node:
        yield node


@pytest.fixture
def shown(node: Node) -> Iterator[Ledger]:
    """An exporter that has the sockets of the node's kubelet and containerd."""
    with ledger(node, *sockets(node)) as running:
        yield running
