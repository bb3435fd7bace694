"""A time to report on, cut into cells, and cells put together in chunks that one question asks for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

MOST_CELLS = 750
"""However long the time is: more say hardly more, and cost everybody."""
SHORTEST_S = 300
"""As long as Prometheus looks back: whoever scrapes more rarely has gaps everywhere. Shorter only if asked for."""
STEPS_S = (SHORTEST_S, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
NEAR_MS = 2
"""Servers write moments in milliseconds, and some of them as fractions."""
CHUNK = 100
"""Cells asked for at once, to begin with. Prometheus gives 11,000 points a series at most."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Cells of one length, one after the other. Cell n, the first of them, begins at `begin_ms` of Unix time."""

    first: int
    begin_ms: int
    step_ms: int
    count: int

    @property
    def first_s(self) -> float:
        """The end of its first cell: the first moment to ask for."""
        return (self.begin_ms + self.step_ms) / 1000

    @property
    def last_s(self) -> float:
        """The end of its last cell."""
        return (self.begin_ms + self.step_ms * self.count) / 1000

    def cell(self, moment_s: float) -> int:
        """Which cell ends at this moment."""
        return self.first + round((moment_s * 1000 - self.begin_ms) / self.step_ms) - 1

    def ends_at(self, moment_s: float) -> bool:
        """Whether one of its cells does."""
        off_ms = moment_s * 1000 - self.begin_ms
        return (
            self.step_ms / 2 < off_ms < self.step_ms * (self.count + 0.5)
            and abs(off_ms - round(off_ms / self.step_ms) * self.step_ms) < NEAR_MS
        )

    def halves(self) -> tuple[Chunk, Chunk]:
        """Two that are together this one; it has more than one cell."""
        left = self.count // 2
        right_ms = self.begin_ms + left * self.step_ms
        return (
            Chunk(self.first, self.begin_ms, self.step_ms, left),
            Chunk(self.first + left, right_ms, self.step_ms, self.count - left),
        )


@dataclass(frozen=True, slots=True)
class Span:
    """From one moment of Unix time to another, in steps; a step that does not fit in is the first, and shorter."""

    begin_ms: int
    end_ms: int
    step_ms: int

    @property
    def _short_ms(self) -> int:
        return (self.end_ms - self.begin_ms) % self.step_ms

    @property
    def cells(self) -> int:
        """How many there are."""
        return (self.end_ms - self.begin_ms) // self.step_ms + (self._short_ms > 0)

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end_ms - self.begin_ms) / 1000

    def begin_of(self, cell: int) -> int:
        """When a cell begins, in milliseconds; the one after the last begins at the end."""
        return max(self.begin_ms, self.end_ms - (self.cells - cell) * self.step_ms)

    def chunks(self, most: int = CHUNK) -> list[Chunk]:
        """All of it."""
        first = 1 if self._short_ms else 0
        short = [Chunk(0, self.begin_ms, self._short_ms, 1)] if first else []
        return short + [
            Chunk(cell, self.begin_of(cell), self.step_ms, min(most, self.cells - cell))
            for cell in range(first, self.cells, most)
        ]


def usual_step_ms(length_ms: int) -> int:
    """The shortest that gives no more than MOST_CELLS, and no longer than the whole."""
    longest = next((step for step in STEPS_S if length_ms <= step * 1000 * MOST_CELLS), None)
    step_ms = -(-length_ms // MOST_CELLS) if longest is None else longest * 1000
    return min(step_ms, length_ms)


def parse_moment(text: str) -> int:
    """Milliseconds of Unix time; UTC where no zone is given. ValueError says what would be right."""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00") if text.endswith("Z") else text)
    except ValueError:
        raise ValueError("is no date; write it as 2026-11-01 or 2026-11-01T08:30 (UTC)") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    milliseconds = round(moment.timestamp() * 1000)
    if milliseconds < 0:
        raise ValueError("is before 1970; choose a later date")
    return milliseconds


def show_moment(moment_ms: int) -> str:
    """As people read it, in UTC; `parse_moment` makes the same of it again, to the second."""
    return datetime.fromtimestamp(moment_ms // 1000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
