"""One node per test file, and one exporter per test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.e2e.ledgers import Ledger, ledger, sockets
from tests.e2e.nodes import Node, a_node


def pytest_configure() -> None:
    """Clean up on SIGTERM as on Ctrl-C, because the daemons would keep running."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A node without a cluster."""
    with a_node() as node:
        yield node


@pytest.fixture
def shown(node: Node) -> Iterator[Ledger]:
    """An exporter with the sockets of the node's kubelet and containerd."""
    with ledger(node, *sockets(node)) as running:
        yield running
