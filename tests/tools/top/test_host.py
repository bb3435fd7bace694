"""CPU time and memory of the host."""

from __future__ import annotations

import os
import time
from dataclasses import replace

from gpuledger.books import Books
from gpuledger.model import HostUse
from gpuledger.owners.kernel.procfs import Procfs
from gpuledger.tools.top.columns import COLUMNS, View, fit
from gpuledger.tools.top.feed import Ticks
from gpuledger.tools.top.host import Host
from gpuledger.tools.top.pages import once
from gpuledger.tools.top.rows import TREE, Choice, rows
from tests.builders import World

S = 10**9


class Clock:
    """Set by the test."""

    now_ns = 100 * S

    def __call__(self) -> int:
        """The time."""
        return self.now_ns


def source(host: Host, *pids: int) -> Ticks:
    """Snapshots of a world with these processes."""
    world, books = World(), Books()
    return Ticks(lambda: books.book(world.tick(*pids)), "n1", host)


def test_cpu_is_a_rate_and_memory_is_not() -> None:
    """1.5 s of CPU time in a second are 150 %; the first reading has no rate; a reused pid has nothing."""
    clock = Clock()
    uses = {7: HostUse(1, 5 * S, 2 << 30), 8: HostUse(99, 5 * S, 1 << 30)}
    ticks = source(Host(uses.get, monotonic_ns=clock), 7, 8)

    first = rows(ticks(), Choice())
    clock.now_ns += S
    uses[7] = HostUse(1, 5 * S + 3 * S // 2, 3 << 30)
    second = rows(ticks(), Choice())

    assert [(row.cpu, row.host_bytes) for row in first] == [(None, 2 << 30), (None, None)]
    assert [(row.cpu, row.host_bytes) for row in second] == [(1.5, 3 << 30), (None, None)]
    uses.clear()
    assert [row.cpu for row in rows(ticks(), Choice())] == [None, None]


def test_a_process_on_two_gpus_counts_once() -> None:
    """In the row of its user, and in a tree."""
    shown = source(Host({7: HostUse(1, 0, 1 << 30)}.get), 7)()
    twice = replace(shown, processes=(shown.processes[0], replace(shown.processes[0], uuid="GPU-b")))

    (row,) = rows(twice, Choice("user"))
    branch, *leaves = rows(twice, Choice(TREE))
    assert row.host_bytes == branch.host_bytes == 1 << 30
    assert [leaf.branch for leaf in leaves] == [branch.key] * 2


def test_this_process_can_be_read() -> None:
    """The real /proc: memory of this interpreter, and the CPU time that the test burns."""
    procfs = Procfs()
    before = procfs.host_use(os.getpid())
    deadline = time.process_time() + 0.1
    while time.process_time() < deadline:
        pass
    after, facts = procfs.host_use(os.getpid()), procfs.look(os.getpid())

    assert before is not None
    assert after is not None
    assert facts is not None
    assert after.cpu_ns - before.cpu_ns >= 5 * 10**7
    assert 10 << 20 < after.memory_bytes < 100 << 30
    assert after.start_ticks == facts.start_ticks
    assert procfs.host_use(2**22 + 1) is None


def test_columns_of_the_host_are_there_only_for_this_host() -> None:
    """Not for another exporter nor a recording, which know nothing of it."""
    shown = source(Host({7: HostUse(1, 0, 5 << 29)}.get), 7)()

    local = once(shown, View(host=True), columns=200, colour=False, utf8=True)
    assert "HOST GiB" in local
    assert " 2.50 " in local
    assert "HOST GiB" not in once(shown, View(), columns=200, colour=False, utf8=True)
    assert {column.name for column, _ in fit("pod", 250, host=True)}.isdisjoint({"cpu", "host"})
    assert {column.name for column in COLUMNS if column.is_of_host} == {"cpu", "host"}
