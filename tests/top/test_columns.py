"""Columns: which there are in a width, and what stands in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.top.columns import BY_NAME, COLUMNS, Layout
from gpuledger.top.line import ASCII, UNICODE, Glyphs, text_of, width
from gpuledger.top.rows import GROUPINGS, Choice, Row, rows
from tests.top.pictures import NOW, busy, seen

PROCESSES = rows(seen(busy()), Choice())


def names(grouping: str, columns: int) -> list[str]:
    """The columns in that width."""
    return [column.name for column, _ in Layout.fit(grouping, columns).columns]


def test_what_matters_most_is_there_in_any_width() -> None:
    """Who and how much memory; then work and power; then the rest."""
    assert names("process", 1) == ["owner"]
    assert names("process", 20) == names("process", 33) == ["owner", "mem"]
    assert names("process", 80) == ["gpu", "pid", "owner", "process", "mem", "sm", "watts", "energy", "how"]
    assert names("process", 200) == [column.name for column in COLUMNS if column.name != "count"]
    assert names("pod", 80) == ["gpu", "count", "owner", "mem", "sm", "watts", "energy", "how"]


@given(st.sampled_from(GROUPINGS), st.integers(1, 400), st.sampled_from([UNICODE, ASCII]))
def test_lines_are_as_wide_as_the_layout(grouping: str, columns: int, glyphs: Glyphs) -> None:
    """All alike, and within the width from one column of 24 on."""
    layout = Layout.fit(grouping, columns, NOW)
    lines = [layout.heading("mem", glyphs, falling=True), *(layout.line(row, glyphs) for row in PROCESSES)]

    assert len({width(line) for line in lines}) == 1
    assert width(lines[0]) <= columns


def cell(row: Row, name: str, columns: int = 200) -> str:
    """What stands in a column of a row."""
    layout, at = Layout.fit("process", columns, NOW), 0
    for column, wide in layout.columns:
        if column.name == name:
            return text_of(layout.line(row, UNICODE))[at : at + wide].strip()
        at += wide + 1
    raise AssertionError(f"there is no {name}")


@pytest.mark.parametrize(
    ("row", "name", "text"),
    [
        (0, "how", "= exclusive"),
        (2, "how", "~ sm_time ±25%"),
        (3, "how", ""),
        (0, "mem", "40.0"),
        (6, "mem", "~4.00"),
        (4, "mem", "–"),  # noqa: RUF001
        (2, "watts", "–"),  # noqa: RUF001
        (3, "watts", "0.00"),
        (0, "sm", "80"),
        (2, "energy", "0.05"),
        (0, "time", "1m30s"),
        (5, "time", "exited"),
        (6, "pid", "–"),  # noqa: RUF001
        (2, "user", "eve"),
    ],
)
def test_cells(row: int, name: str, text: str) -> None:
    """Units are in the titles; what is not known is a dash, and estimates are marked."""
    assert cell(PROCESSES[row], name) == text


def test_the_method_is_a_sign_alone_where_there_is_little_room() -> None:
    """= measured, ~ estimated."""
    assert [cell(row, "how", 80) for row in PROCESSES[:3]] == ["=", "~", "~"]


def test_gpus_are_told_in_short() -> None:
    """As ranges."""
    (row,) = (row for row in rows(seen(busy()), Choice("pod")) if row.owner == "ml/train-0")

    assert BY_NAME["gpu"].text(row, UNICODE) == "0-1"


def test_the_column_of_the_order_has_an_arrow() -> None:
    """Down for the largest first."""
    layout = Layout.fit("process", 80)

    assert "MEM GiB▼" in text_of(layout.heading("mem", UNICODE, falling=True))
    assert "OWNER^" in text_of(layout.heading("owner", ASCII, falling=False))


def test_a_place_is_in_a_column() -> None:
    """For the mouse."""
    layout = Layout.fit("process", 80)

    assert [layout.at(x) for x in (0, 2, 5, 13, 79, 500)] == ["gpu", "gpu", "pid", "owner", "how", ""]
