"""A GPU that processes of known activity and power share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuledger.books import Books
from gpuledger.model import Activity, Tick
from tests.builders import World

MATMUL = (95.0, 14.0, 93.0, 17.0)
COPY = (99.0, 80.0, 0.0, 88.0)
DECODE = (88.0, 12.0, 3.0, 88.0)
PARKED_MJ = 100_000


@dataclass
class Shared:
    """A GPU with processes of known shape and power, and books that watch it."""

    shapes: dict[int, tuple[tuple[float, ...], int]]
    """By pid: SM, occupancy, tensor and DRAM in percent, and millijoules a second above parked."""
    books: Books = field(default_factory=Books)
    world: World = field(default_factory=lambda: World(names={1: "one", 2: "two", 3: "three", 4: "four"}))

    def tick(self, here: list[int], amounts: Mapping[int, float], samples: Mapping[int, int] | None = None) -> Tick:
        """A second in which each did that much; the samples say so too, unless told otherwise."""
        made = self.made(here, amounts, samples)
        return self.books.book(made)

    def made(
        self, here: list[int], amounts: Mapping[int, float], samples: Mapping[int, int] | None = None, **more: Any
    ) -> Tick:
        """The tick, not booked."""
        given_: dict[str, Any] = {
            "utilization_pct": 100 if any(amounts.values()) else 0,
            "activity": self.activity(amounts),
        }
        work = {pid: round(part * 100) for pid, part in amounts.items()} if samples is None else dict(samples)
        mj = PARKED_MJ + round(sum(part * self.shapes[pid][1] for pid, part in amounts.items()))
        return self.world.tick(*here, mj=mj, work=work, **{**given_, **more})

    def activity(self, amounts: Mapping[int, float]) -> Activity:
        """Of the whole GPU."""
        shape = [sum(part * self.shapes[pid][0][place] for pid, part in amounts.items()) for place in range(4)]
        sm, occupancy, tensor, dram = (min(100.0, amount) for amount in shape)
        return Activity(sm_pct=sm, occupancy_pct=occupancy, tensor_pct=tensor, dram_pct=dram)

    def alone(self, pid: int, seconds: int = 6, amount: float = 1.0) -> None:
        """It has the GPU to itself, first to wait and then to work, for a part of the time."""
        self.tick([pid], {})
        self.tick([pid], {})
        for _ in range(seconds):
            self.tick([pid], {pid: amount})
        self.tick([], {})
