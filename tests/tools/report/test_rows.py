"""The energies of the rows add up to the energy of the GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.tools.prometheus.answer import RangeSeries
from gpuledger.tools.prometheus.expression import Expression
from gpuledger.tools.report.gather import Totals
from gpuledger.tools.report.queries import GROUPINGS, REASONS, WHOLE, Grouping, Part, Quantity, Query
from gpuledger.tools.report.rows import UNRECORDED, Kind, create_rows, spread
from gpuledger.tools.report.span import Chunk

CELLS = 4
CHUNK = Chunk(0, 0, 1000, CELLS)
NAMESPACE, USER = GROUPINGS["namespace"], GROUPINGS["user"]
joules = st.lists(st.floats(0, 1e9), min_size=CELLS, max_size=CELLS)


def add(
    tally: Totals,
    part: Part,
    values: list[float],
    grouping: Grouping = WHOLE,
    column: Quantity = Quantity.ENERGY,
    **labels: str,
) -> None:
    """One series, a value a cell."""
    points = [(n + 1.0, value) for n, value in enumerate(values)]
    tally.add(Query(column, part, grouping, Expression("")), CHUNK, [RangeSeries(labels, points)])


@given(st.dictionaries(st.sampled_from("abcdefgh"), joules), st.lists(joules, min_size=4, max_size=4),
       st.sampled_from([None, 1, 3]))  # fmt: skip
def test_the_total_is_the_sum_of_the_lines_and_no_less_than_the_counters(
    groups: dict[str, list[float]], others: list[list[float]], top: int | None
) -> None:
    """Also when the books and the counters do not agree."""
    outside, idle, unattributed, whole = others
    tally = Totals(CELLS)
    for name, values in groups.items():
        add(tally, Part.GROUP, values, NAMESPACE, namespace=name)
    add(tally, Part.OUTSIDE, outside)
    add(tally, Part.IDLE, idle)
    add(tally, Part.UNATTRIBUTED, unattributed, REASONS, reason="gap")
    add(tally, Part.WHOLE, whole)
    found = create_rows(tally, NAMESPACE, top)

    energies = [line.amounts[Quantity.ENERGY] for line in found.rows]
    total = found.total.amounts[Quantity.ENERGY]
    assert sum(energies) == pytest.approx(total)
    assert total >= sum(whole) * (1 - 1e-9)
    assert all(joules >= 0 for joules in energies)
    booked = [sum(cell) for cell in zip(*groups.values(), outside, idle, unattributed, strict=True)]
    assert total == pytest.approx(max(sum(booked), sum(whole)))
    assert [line.kind for line in found.rows][-3:] == [Kind.OUTSIDE, Kind.IDLE, Kind.UNATTRIBUTED]
    assert sum(joules for _, joules in found.reasons) == pytest.approx(energies[-1])


def test_processes_outside_that_only_hold_memory_have_a_line() -> None:
    """A waiting model server of the host has no energy, and its memory is not unattributed."""
    tally = Totals(CELLS)
    add(tally, Part.GROUP, [1.0] * 4, NAMESPACE, namespace="a")
    add(tally, Part.OUTSIDE, [5.0] * 4, column=Quantity.MEMORY)
    add(tally, Part.WHOLE, [1.0] * 4)
    add(tally, Part.WHOLE, [6.0] * 4, column=Quantity.MEMORY)
    _, outside, _, unattributed = create_rows(tally, NAMESPACE).rows

    assert (outside.kind, outside.amounts) == (Kind.OUTSIDE, {Quantity.MEMORY: 20.0})
    assert unattributed.amounts[Quantity.MEMORY] == 4.0


def test_groups_are_in_order_and_those_below_the_top_are_one() -> None:
    """By energy, the largest first; columns that no group has stay absent."""
    tally = Totals(CELLS)
    for name, values in {"a": [1.0] * 4, "b": [3.0] * 4, "c": [2.0] * 4, "d": [0.5] * 4}.items():
        add(tally, Part.GROUP, values, NAMESPACE, namespace=name)
    add(tally, Part.GROUP, [7.0] * 4, NAMESPACE, Quantity.BUSY, namespace="a")
    add(tally, Part.WHOLE, [10.0] * 4)
    first, rest, idle, unattributed = create_rows(tally, NAMESPACE, 1).rows

    assert (first.kind, first.key, first.amounts) == (Kind.GROUP, ("b",), {Quantity.ENERGY: 12})
    assert (rest.kind, rest.count, rest.amounts) == (Kind.REST, 3, {Quantity.ENERGY: 14, Quantity.BUSY: 28})
    assert (list(rest.bars), idle.amounts) == ([3.5] * 4, {})
    assert unattributed.amounts == {Quantity.ENERGY: 14}


def test_without_the_counters_of_gpus_there_is_no_total() -> None:
    """Prometheus may not keep them: groups have their energy, and the unrecorded energy is unknown."""
    tally = Totals(CELLS)
    add(tally, Part.GROUP, [1, 2, 3, 4], NAMESPACE, namespace="a")
    found = create_rows(tally, NAMESPACE)

    assert [line.amounts for line in found.rows] == [{Quantity.ENERGY: 10}, {}]
    assert (found.total.amounts, found.reasons) == ({}, ())


def test_what_no_book_has_is_unrecorded() -> None:
    """Over the whole time: what is booked a cell later than it was counted is not missing."""
    tally = Totals(CELLS)
    add(tally, Part.GROUP, [10, 0, 10, 13], NAMESPACE, namespace="a")
    add(tally, Part.WHOLE, [10, 10, 10, 10])
    found = create_rows(tally, NAMESPACE)

    assert found.reasons == ((UNRECORDED, 7.0),)
    assert found.total.amounts == {Quantity.ENERGY: 40}
    assert list(found.rows[-1].bars) == [0, 7, 0, 0]


def test_processes_of_unknown_users_are_one_row() -> None:
    """Processes without a user, and processes without an info series."""
    tally = Totals(CELLS)
    add(tally, Part.GROUP, [2.0] * 4, USER, user="ada", uid="1000")
    add(tally, Part.GROUP, [1.0] * 4, USER, uid="7")
    add(tally, Part.GROUP, [0.5] * 4, USER)
    add(tally, Part.ALL_GROUPS, [4.0] * 4)
    add(tally, Part.WHOLE, [4.0] * 4)
    found = create_rows(tally, USER)

    assert [(line.kind, line.key, line.amounts[Quantity.ENERGY]) for line in found.rows[:3]] == [
        (Kind.GROUP, ("ada",), 8), (Kind.GROUP, ("uid 7",), 4), (Kind.UNKNOWN, (), 4),
    ]  # fmt: skip
    assert found.reasons == ()
    assert found.total.amounts == {Quantity.ENERGY: 16}


def test_gpus_without_energy_counters() -> None:
    """The columns of energy stay absent, and hours are there."""
    tally = Totals(CELLS)
    add(tally, Part.GROUP, [1.0] * 4, NAMESPACE, Quantity.RESIDENT, namespace="a")
    add(tally, Part.WHOLE, [1.0] * 4, WHOLE, Quantity.RESIDENT)
    found = create_rows(tally, NAMESPACE)

    assert [(line.kind, dict(line.amounts)) for line in found.rows] == [
        (Kind.GROUP, {Quantity.RESIDENT: 4}), (Kind.UNATTRIBUTED, {}),
    ]  # fmt: skip
    assert found.total.amounts == {Quantity.RESIDENT: 4}


def test_memory_that_no_group_has_is_unattributed() -> None:
    """Used memory of contexts, and memory that no listed process holds."""
    tally = Totals(CELLS)
    add(tally, Part.GROUP, [1.0] * 4, NAMESPACE, Quantity.MEMORY, namespace="a")
    add(tally, Part.WHOLE, [1.5] * 4, WHOLE, Quantity.MEMORY)

    assert create_rows(tally, NAMESPACE).rows[-1].amounts == {Quantity.MEMORY: 2}


@given(st.dictionaries(st.sampled_from(["", *"abc"]), joules), st.lists(joules, min_size=5, max_size=5),
       st.sampled_from([None, 1]), st.sampled_from([(0, 1, 2, 3), (0, 0, 1, 1)]))  # fmt: skip
def test_the_bars_of_each_row_add_up_to_its_energy(
    users: dict[str, list[float]], others: list[list[float]], top: int | None, bar_of: tuple[int, ...]
) -> None:
    """Of users and unknown users, of energy that is booked a cell late, and of unrecorded energy."""
    unknown, *parts, whole = others
    tally = Totals(CELLS, bar_of=bar_of)
    for name, values in users.items():
        add(tally, Part.GROUP, values, USER, user=name)
    add(tally, Part.ALL_GROUPS, [sum(cell) for cell in zip(*users.values(), unknown, strict=True)])
    add(tally, Part.IDLE, parts[0])
    add(tally, Part.UNATTRIBUTED, parts[1], REASONS, reason="gap")
    add(tally, Part.WHOLE, [a + b for a, b in zip(whole, parts[2], strict=True)])
    found = create_rows(tally, USER, top)

    total = found.total.amounts[Quantity.ENERGY]
    for row in found.rows:
        assert sum(row.bars) == pytest.approx(row.amounts[Quantity.ENERGY], abs=1e-6 * total)
    assert sum(sum(row.bars) for row in found.rows) == pytest.approx(total)


@given(st.dictionaries(st.sampled_from("abcd"), joules, min_size=1), joules, joules)
def test_spreading_moves_every_joule_and_keeps_proportions(
    groups: dict[str, list[float]], idle: list[float], missing: list[float]
) -> None:
    """The total is the same, in the rows and in the bars; rows of no use get nothing."""
    tally = Totals(CELLS)
    for name, values in groups.items():
        add(tally, Part.GROUP, values, NAMESPACE, namespace=name)
    add(tally, Part.IDLE, idle)
    add(tally, Part.UNATTRIBUTED, missing, REASONS, reason="gap")
    whole = [sum(cell) for cell in zip(*groups.values(), idle, missing, strict=True)]
    add(tally, Part.WHOLE, whole)
    before = create_rows(tally, NAMESPACE)
    after = spread(before)

    total = before.total.amounts[Quantity.ENERGY]
    assert after.total == before.total
    assert sum(row.amounts.get(Quantity.ENERGY, 0.0) for row in after.rows) == pytest.approx(total, abs=1e-3)
    assert sum(sum(row.bars) for row in after.rows) == pytest.approx(total, abs=1e-3)
    used = sum(map(sum, groups.values()))
    assert {row.kind for row in after.rows} <= ({Kind.GROUP} if used else {Kind.GROUP, Kind.IDLE, Kind.UNATTRIBUTED})
    for row in after.rows:
        if row.kind is Kind.GROUP and used:
            share = sum(groups[row.key[0]]) / used
            assert row.amounts[Quantity.ENERGY] == pytest.approx(total * share, abs=1e-3)


def test_departments_have_the_sums_of_their_groups() -> None:
    """In every column and in the chart; the largest department is first, and groups without one are last."""
    tally = Totals(CELLS)
    for name, values in {"a": [1.0] * 4, "b": [3.0] * 4, "c": [2.0] * 4, "d": [9.0] * 4}.items():
        add(tally, Part.GROUP, values, NAMESPACE, namespace=name)
    add(tally, Part.GROUP, [7.0] * 4, NAMESPACE, Quantity.BUSY, namespace="c")
    found = create_rows(tally, NAMESPACE, None, {"a": "law", "b": "art", "c": "law"})

    assert [(row.kind, row.key, dict(row.amounts)) for row in found.rows[:3]] == [
        (Kind.GROUP, ("art",), {Quantity.ENERGY: 12}),
        (Kind.GROUP, ("law",), {Quantity.ENERGY: 12, Quantity.BUSY: 28}),
        (Kind.UNMAPPED, (), {Quantity.ENERGY: 36}),
    ]
    assert (list(found.rows[1].bars), found.unmapped) == ([3.0] * 4, ("d",))
