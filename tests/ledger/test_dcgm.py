"""DCGM's numbers are shown beside the books and never in them."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

from gpuledger.cli.demo import RECORDING
from gpuledger.loop import Collector, Loop
from gpuledger.model import DcgmHealth, DcgmStats, Tick
from gpuledger.recording.replay import Replay

BOOKS = Path(__file__).parents[2] / "src" / "gpuledger" / "ledger"


class SameForAll:
    """A collector that reports the same absurd joules for every process."""

    name = "dcgm"

    def attach(self, tick: Tick) -> Tick:
        """All processes with numbers."""
        told = DcgmStats(energy_mj=10**15, sm_pct=100, memory_pct=100, max_memory_bytes=1, other_processes=9)
        uses = tuple(replace(use, dcgm=told) for use in tick.processes)
        return replace(tick, processes=uses, dcgm=DcgmHealth(up=True))

    def answered(self) -> bool:
        """At once."""
        return True

    def close(self) -> None:
        """Nothing runs."""


def played(*collectors: Collector) -> list[Tick]:
    """The bundled recording through all stages, tick by tick."""
    loop = Loop(Replay(RECORDING, paced=False), None, interval_s=1.0, collectors=collectors)
    return [loop.once() for _ in range(50)]


def without(tick: Tick) -> Tick:
    """The tick as it was before."""
    return replace(
        tick,
        processes=tuple(replace(use, dcgm=None) for use in tick.processes),
        dcgm=None,
        health=type(tick.health)(),
    )


def test_the_books_are_the_same_with_and_without() -> None:
    """Every account, process and container, tick by tick, to the millijoule."""
    beside, alone = played(SameForAll()), played()

    assert any(use.dcgm for tick in beside for use in tick.processes)
    assert any(use.energy_mj for tick in beside for use in tick.processes)
    assert [without(tick) for tick in beside] == [without(tick) for tick in alone]


def test_no_book_reads_it() -> None:
    """Nothing under ledger/ has the word."""
    for path in BOOKS.glob("*.py"):
        names = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert "dcgm" not in names, path.name
