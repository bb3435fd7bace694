"""A node for all tests of a file, and an exporter for each."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.ledgers import Ledger, ledger, sockets
from tests.e2e.nodes import Node


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """Running, without pods; a short path, because a socket's may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="e2e-", ignore_cleanup_errors=False) as folder:
        node = Node(Path(folder))
        try:
            node.start()
            yield node
        finally:
            node.clean()


@pytest.fixture
def shown(node: Node) -> Iterator[Ledger]:
    """An exporter that has the sockets of the node's kubelet and containerd."""
    with ledger(node, *sockets(node)) as running:
        yield running
