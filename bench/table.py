"""Markdown tables and budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown table; all columns but the first are right-aligned."""
    marks = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, marks, *rows])


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.3f}" if theirs else "-"


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit of the design and its measured value."""

    what: str
    limit: float
    measured: float | None
    unit: str = ""
    raised: str = ""
    """Why the limit is higher than the design's."""

    def row(self) -> list[str]:
        limit = f"{self.limit:g}{self.unit}"
        if self.measured is None:
            return [self.what, limit, "-", "not measured", self.raised]
        verdict = "met" if self.met else "**MISSED**"
        return [self.what, limit, f"{self.measured:.3g}{self.unit}", verdict, self.raised]

    @property
    def met(self) -> bool:
        return self.measured is not None and self.measured <= self.limit
