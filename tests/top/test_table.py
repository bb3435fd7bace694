"""The view of a table: its order, its groups, and the line of sums."""

from __future__ import annotations

import pytest

from gpuledger.top.line import UNICODE, text_of
from gpuledger.top.rows import GROUPINGS, Choice
from gpuledger.top.table import View, summary, table
from tests.top.pictures import busy, seen


def test_rows_are_in_order() -> None:
    """By memory at first, the most first."""
    assert [row.pid for row in table(seen(busy()), View())][:4] == [11, 12, 13, 21]
    assert [row.pid for row in table(seen(busy()), View(sort="pid", falling=True))][:3] == [23, 22, 21]


def test_sorting_by_another_column() -> None:
    """Numbers begin with the largest, names with A; the same again turns round."""
    view = View()

    assert (view.sorted_by("owner").sort, view.sorted_by("owner").falling) == ("owner", False)
    assert view.sorted_by("watts").falling
    assert not view.sorted_by("mem").falling
    assert view.beside(1).sort == "sm"
    assert view.beside(-1).sort == "time"


def test_groups_follow_one_another() -> None:
    """Round and round; a column that is gone gives way to memory."""
    view = View(sort="pid", falling=False)
    seen_groupings = []
    for _ in GROUPINGS:
        seen_groupings.append(view.choice.grouping)
        view = view.grouped(1)

    assert tuple(seen_groupings) == GROUPINGS
    assert (view.choice.grouping, view.sort, view.falling) == ("process", "mem", True)


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (Choice(), "7 by process  75.0 GiB + ~4.00 inferred · 140 % SM · 700.0 W · 13.8 kJ"),
        (Choice("pod"), "6 by pod  75.0 GiB + ~4.00 inferred · 140 % SM · 700.0 W · 13.8 kJ"),
        (Choice(gpu=1), "2 by process  GPU 1  20.0 GiB · 50 % SM · 200.0 W · 4.00 kJ"),
        (Choice(filter="zzz"), "0 by process  filter: zzz  – GiB · – % SM · – W · – kJ"),  # noqa: RUF001
        (Choice(exited=False), "6 by process  no exited  75.0 GiB + ~4.00 inferred · 140 % SM · 700.0 W · 13.1 kJ"),
    ],
)
def test_the_line_of_sums(choice: Choice, says: str) -> None:
    """What is shown, what was chosen, and what it is in all."""
    view = View(choice)

    assert text_of(summary(table(seen(busy()), view), view, 200, UNICODE)).startswith(says)
