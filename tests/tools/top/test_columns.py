"""The columns that fit into a width, and their cells."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.tools.top.columns import BY_NAME, COLUMNS, View, asked, fit, fit_rows, headings, summary
from gpuledger.tools.top.columns import cells as row_cells
from gpuledger.tools.top.rows import GROUPINGS, Choice, TableRow, rows
from gpuledger.tools.top.text import ASCII, UNICODE, Glyphs, cells, plain
from tests.web.snapshot.pictures import busy, demo, shown_as

PROCESSES = rows(shown_as(busy()), Choice())


def names(grouping: str, columns: int) -> list[str]:
    """The columns in that width."""
    return [column.name for column, _ in fit(grouping, columns)]


def test_what_matters_most_is_there_in_any_width() -> None:
    """Owner and memory first; then SM share and power; then the others."""
    assert names("process", 1) == ["owner"]
    assert names("process", 20) == names("process", 33) == ["owner", "mem"]
    assert names("process", 80) == ["gpu", "pid", "owner", "process", "mem", "sm", "watts", "energy", "how"]
    groups = ("count", "asked")
    assert names("process", 200) == [c.name for c in COLUMNS if c.name not in (*groups, "cpu", "host")]
    assert [c.name for c, _ in fit("process", 220, host=True)] == [c.name for c in COLUMNS if c.name not in groups]
    assert names("pod", 80) == ["gpu", "count", "owner", "mem", "sm", "watts", "energy", "asked", "how"]


def test_what_owners_asked_for() -> None:
    """Pods that asked for a part of a GPU have it beside what they use of it; a table without them lacks the column."""
    found = rows(demo(30), Choice("pod"))
    shown = {row.owner: asked(row, "-") for row in found}
    fitting = fit_rows(found, View(Choice("pod")), 80)

    assert re.fullmatch(r"0\.\d\d/0\.50", shown["ml/llama-finetune-0"])
    assert re.fullmatch(r"0\.\d\d/0\.50", shown["serving/chat-7c9d8f6b5d-x2x4z"])
    assert shown["search/embed-28841"] == shown["research/notebook-dana-0"] == shown["ollama.service"] == "-"
    assert "asked" in [column.name for column, _ in fitting]
    assert "asked" not in [column.name for column, _ in fit_rows(PROCESSES, View(Choice("pod")), 80)]
    (row,) = (row for row in rows(demo(30), Choice("namespace")) if row.owner == "ml")
    assert row.asked == 0.5


@given(st.sampled_from(GROUPINGS), st.integers(1, 400), st.sampled_from([UNICODE, ASCII]))
def test_lines_are_as_wide_as_the_layout(grouping: str, columns: int, glyphs: Glyphs) -> None:
    """All alike, and within the width from one column of 24 on."""
    fitting = fit(grouping, columns)
    lines = [headings(fitting, View(), glyphs)]
    lines += [[text for text, _ in row_cells(fitting, row, glyphs)] for row in PROCESSES]

    assert len({tuple(map(cells, line)) for line in lines}) == 1
    assert cells(" ".join(lines[0])) <= columns


def cell(row: TableRow, name: str, columns: int = 200) -> str:
    """The text of a column in a row."""
    fitting = fit("process", columns)
    texts = {
        column.name: text for (column, _), (text, _) in zip(fitting, row_cells(fitting, row, UNICODE), strict=True)
    }
    return texts[name].strip()


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


def test_gpus_are_shown_as_ranges() -> None:
    """Neighbouring indexes become one range."""
    (row,) = (row for row in rows(shown_as(busy()), Choice("pod")) if row.owner == "ml/train-0")

    assert BY_NAME["gpu"].text(row, UNICODE) == "0-1"


def test_the_column_of_the_order_has_an_arrow() -> None:
    """Down for the largest first."""
    fitting = fit("process", 80)

    assert "MEM GiB▼" in headings(fitting, View(), UNICODE)
    assert "OWNER^" in " ".join(headings(fitting, View(sort="owner", descending=False), ASCII))


def test_rows_are_in_order() -> None:
    """By memory at first, the most first."""
    assert [row.pid for row in View().rows(shown_as(busy()))][:4] == [11, 12, 13, 21]
    assert [row.pid for row in View(sort="pid", descending=True).rows(shown_as(busy()))][:3] == [23, 22, 21]


def test_sorting_by_another_column() -> None:
    """Numbers begin with the largest, names with A; the same again turns round."""
    view = View()

    assert (view.sorted_by("owner").sort, view.sorted_by("owner").descending) == ("owner", False)
    assert view.sorted_by("watts").descending
    assert not view.sorted_by("mem").descending
    assert view.sorted_by_next(1).sort == "sm"
    assert view.sorted_by_next(-1).sort == "time"


def test_groups_follow_one_another() -> None:
    """Round and round; a column that is gone gives way to memory."""
    view = View(sort="pid", descending=False)
    seen_groupings = []
    for _ in GROUPINGS:
        seen_groupings.append(view.choice.grouping)
        view = view.grouped_by_next()

    assert tuple(seen_groupings) == GROUPINGS
    assert (view.choice.grouping, view.sort, view.descending) == ("process", "mem", True)


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

    assert plain(summary(view.rows(shown_as(busy())), view, UNICODE)).startswith(says)
