"""A time in cells and chunks, and moments as people write them."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.tools.report.span import MAX_BARS, MAX_CELLS, Chunk, Span, default_step_ms, parse_moment, show_moment

lengths = st.integers(1000, 400 * 86_400_000)


@given(st.integers(0, 10**13), lengths, st.integers(1, 86_400_000), st.integers(1, 200))
def test_chunks_cover_the_time_once(begin_ms: int, length_ms: int, step_ms: int, most: int) -> None:
    """One after the other, without a gap, each with as many cells as it may have; and so do halves of them."""
    step_ms = max(step_ms, length_ms // 2000 + 1)
    span = Span(begin_ms, begin_ms + length_ms, min(step_ms, length_ms))
    chunks = span.chunks(most)

    at_ms, cell = span.begin_ms, 0
    for chunk in chunks:
        assert (chunk.begin_ms, chunk.first) == (at_ms, cell)
        assert 1 <= chunk.count <= most
        assert span.begin_of(cell) == at_ms
        at_ms += chunk.step_ms * chunk.count
        cell += chunk.count
        if chunk.count > 1:
            left, right = chunk.halves()
            assert (left.begin_ms, left.first, right.first) == (chunk.begin_ms, chunk.first, chunk.first + left.count)
            assert left.begin_ms + left.step_ms * left.count == right.begin_ms
            assert right.last_s == chunk.last_s
    assert (at_ms, cell) == (span.end_ms, span.cells)
    assert span.begin_of(span.cells) == span.end_ms


@pytest.mark.parametrize(
    ("begin", "end", "step_s", "bar_s", "cells"),
    [
        ("2026-11-01", "2026-12-01", 300, 86400, {288}),
        ("2026-10-01", "2026-11-01", 300, 86400, {288, 300}),  # the 25th has an hour more
        ("2026-03-01", "2026-04-01", 900, 86400, {92, 96}),
        ("2026-11-01T09:25", "2026-11-02T09:25", 300, 3600, {12}),
        ("2026-11-02", "2026-11-30", 3600, 86400, {24}),
        ("2026-01-01", "2026-12-31", 3600, 28 * 86400, {671, 672, 673}),
        ("2026-11-01T09:25:07", "2026-11-01T09:55:07", 15, 60, {4}),
    ],
)
def test_bars_begin_at_full_hours_and_days(begin: str, end: str, step_s: int, bar_s: int, cells: set[int]) -> None:
    """In the zone of the report; each has equally many cells, besides the first and the last one."""
    zone = ZoneInfo("Europe/Berlin")
    span = Span(parse_moment(begin, zone), parse_moment(end, zone), step_s * 1000, zone)
    bars = span.bars
    sizes = [bars.count(bar) for bar in range(bars[-1] + 1)]
    starts = [span.begin_of(bars.index(bar)) for bar in range(1, len(sizes))]

    assert (span.bar_ms, len(bars)) == (bar_s * 1000, span.cells)
    assert set(sizes[1:-1]) == cells
    assert len(sizes) <= MAX_BARS + 1
    whole = {"00:00:00"} if bar_s >= 86400 else {f"{hour:02}:00:00" for hour in range(24)}
    assert bar_s < 3600 or {span.show(start)[11:19] for start in starts} <= whole


def test_cells_begin_at_full_minutes() -> None:
    """Of a zone whose hours are half an hour off, too."""
    zone = ZoneInfo("Asia/Kolkata")
    span = Span(parse_moment("2026-11-01T09:25:07", zone), parse_moment("2026-11-01T12:00:30", zone), 3_600_000, zone)

    starts = [span.show(span.begin_of(cell))[11:19] for cell in range(span.cells)]
    assert starts == ["09:25:07", "10:00:00", "11:00:00", "12:00:00"]
    assert [(chunk.first, chunk.count, chunk.step_ms) for chunk in span.chunks()] == [
        (0, 1, 2_093_000), (1, 2, 3_600_000), (3, 1, 30_000),
    ]  # fmt: skip


def test_moments_of_a_chunk_are_the_ends_of_its_cells() -> None:
    """A range query has the first time, the last time and the step; each value is of the cell that ends there."""
    chunk = Chunk(first=7, begin_ms=1_000_000, step_ms=60_000, count=3)

    assert (chunk.first_s, chunk.last_s) == (1060.0, 1180.0)
    assert [chunk.cell(moment) for moment in (1060.0, 1120.001, 1180.0)] == [7, 8, 9]


@given(lengths)
def test_the_usual_step_gives_no_more_cells_than_are_useful(length_ms: int) -> None:
    """However long the time is."""
    step_ms = default_step_ms(length_ms)

    assert 0 < step_ms <= length_ms
    assert Span(0, length_ms, step_ms).cells <= MAX_CELLS + 1


@pytest.mark.parametrize(
    ("hours", "step_s"),
    [
        (0.1, 15),
        (0.5, 15),
        (1, 60),
        (2, 60),
        (3, 300),
        (24, 300),
        (7 * 24, 300),
        (31 * 24, 900),
        (365 * 24, 10800),
        (10 * 365 * 24, 105120),
    ],
)
def test_usual_steps(hours: float, step_s: int) -> None:
    """Those that people expect."""
    assert default_step_ms(round(hours * 3_600_000)) == step_s * 1000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2026-11-01", "2026-11-01T00:00:00Z"),
        ("2026-11-01T08:30", "2026-11-01T08:30:00Z"),
        ("2026-11-01T08:30:15Z", "2026-11-01T08:30:15Z"),
        ("2026-11-01T08:30+02:00", "2026-11-01T06:30:00Z"),
    ],
)
def test_moments_are_utc_unless_they_say_otherwise(text: str, shown: str) -> None:
    """And are shown in UTC."""
    assert show_moment(parse_moment(text)) == shown


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "1969-12-31", "2026-11-01T25:00", "7d"])
def test_invalid_times_are_refused(text: str) -> None:
    """The error has the correction."""
    with pytest.raises(ValueError, match=r"is not a date; write it as 2026-11-01|is before 1970"):
        parse_moment(text)
