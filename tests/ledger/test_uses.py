"""The rows of processes, and how long a utilization row speaks for its process."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.config.exporter import SHOWN as SHOWN_CHOICES
from gpuledger.ledger.rows import Rows
from gpuledger.ledger.uses import IDLE, SHOWN, WINDOW_US, UseBook
from gpuledger.model import (
    Accounting,
    Device,
    Driver,
    Facts,
    Owner,
    Owners,
    ProcessUse,
    Reading,
    Resident,
    Sample,
    Tick,
)

GPU = Device(0, "GPU-0")
NOW_US = 1_700_000_000_000_000


def tick(reading: Reading, *more: Reading, at_us: int = NOW_US, starts: dict[int, int] | None = None) -> Tick:
    """A tick at that time, with processes that started then."""
    facts = {pid: Facts(pid, start, 0) for pid, start in (starts or {}).items()}
    return Tick(at_us * 1000, Driver(up=True), (reading, *more), facts=facts)


def reading(*pids: int, samples: tuple[Sample, ...] | None = (), device: Device = GPU) -> Reading:
    """A GPU with these processes on it."""
    return Reading(device, residents=tuple(Resident(pid, "compute") for pid in pids), samples=samples)


def sm_pct(uses: tuple[ProcessUse, ...]) -> dict[int, int | None]:
    """Utilization by pid."""
    return {use.resident.pid: use.sample.sm_pct if use.sample else None for use in uses}


def test_a_row_joins_what_is_known_of_a_process() -> None:
    """Facts, utilization and accounting of the same pid, and of no other."""
    account = Accounting(7, running=True, time_ms=5)
    read = replace(reading(7, 8, samples=(Sample(7, NOW_US, 40, 10),)), accounting=(account,))

    seven, eight = UseBook().book(tick(read, starts={7: 70}), Rows()).processes

    assert (seven.facts, seven.sample, seven.accounting) == (Facts(7, 70, 0), Sample(7, NOW_US, 40, 10), account)
    assert (eight.facts, eight.sample, eight.accounting) == (None, IDLE, None)


@pytest.mark.parametrize(("shown", "pids"), [("all", [7, 8, 9]), ("containers", [8, 9]), ("pods", [9]), ("none", [])])
def test_processes_by_owner(shown: str, pids: list[int]) -> None:
    """Processes that are not shown have no rows and are not dropped; containers are complete."""
    owners = Owners(by_pid={8: Owner(container_id="c"), 9: Owner(container_id="d", pod_uid="u")})

    uses = UseBook(shown=shown).book(replace(tick(reading(7, 8, 9)), owners=owners), Rows())

    assert [use.resident.pid for use in uses.processes] == pids
    assert ([use.processes for use in uses.containers], uses.dropped) == ([1, 1], 0)
    assert set(SHOWN) == {*SHOWN_CHOICES, "none"}


def test_where_the_driver_does_not_tell_utilization_there_is_none() -> None:
    """None, not 0."""
    assert sm_pct(UseBook().book(tick(reading(7, samples=None)), Rows()).processes) == {7: None}


def test_a_gpu_that_is_down_or_does_not_list_processes_has_no_rows() -> None:
    """And does not disturb the others."""
    down = Reading(Device(1, "GPU-1"), up=False, residents=(Resident(9, "compute"),))
    silent = Reading(Device(2, "GPU-2"), residents=None)

    uses = UseBook().book(tick(reading(7), down, silent), Rows()).processes

    assert [use.resident.pid for use in uses] == [7]


def test_a_row_counts_until_its_window_has_passed() -> None:
    """With ticks shorter than the driver's sampling a busy process does not flicker to 0; an idle one gets there."""
    book = UseBook()
    book.book(tick(reading(7, samples=(Sample(7, NOW_US, 40, 10),))), Rows())

    for later, expected in ((100_000, 40), (WINDOW_US - 1, 40), (WINDOW_US, 0), (WINDOW_US + 1, 0)):
        assert sm_pct(book.book(tick(reading(7), at_us=NOW_US + later), Rows()).processes) == {7: expected}


def test_of_several_rows_the_newest_counts() -> None:
    """The driver gives them in order of time."""
    rows = (Sample(7, NOW_US - 400_000, 10, 0), Sample(7, NOW_US - 200_000, 20, 0))

    assert sm_pct(UseBook().book(tick(reading(7, samples=rows)), Rows()).processes) == {7: 20}


def test_a_clock_set_back_does_not_freeze_a_row() -> None:
    """A row from the future would else count for as long as the clock was set back."""
    book = UseBook()
    book.book(tick(reading(7, samples=(Sample(7, NOW_US, 40, 10),))), Rows())

    assert sm_pct(book.book(tick(reading(7), at_us=NOW_US - 3_600_000_000), Rows()).processes) == {7: 0}


def test_a_reused_pid_does_not_inherit_utilization() -> None:
    """Even within the window: another start time is another process."""
    book = UseBook()
    book.book(tick(reading(7, samples=(Sample(7, NOW_US, 40, 10),)), starts={7: 100}), Rows())

    assert sm_pct(book.book(tick(reading(7), at_us=NOW_US + 1000, starts={7: 200}), Rows()).processes) == {7: 0}


@pytest.mark.parametrize(("before", "after"), [({7: 1}, {}), ({}, {7: 1}), ({7: 1}, {7: 1})])
def test_unknown_facts_do_not_make_another_process(before: dict[int, int], after: dict[int, int]) -> None:
    """A tick without facts does not interrupt a busy process."""
    book = UseBook()
    book.book(tick(reading(7, samples=(Sample(7, NOW_US, 40, 10),)), starts=before), Rows())

    assert sm_pct(book.book(tick(reading(7), at_us=NOW_US + 1000, starts=after), Rows()).processes) == {7: 40}


def test_gpus_are_kept_apart() -> None:
    """A process on two GPUs is busy on the one it is busy on."""
    other = Device(1, "GPU-1")
    reads = reading(7, samples=(Sample(7, NOW_US, 40, 10),)), reading(7, device=other)

    uses = UseBook().book(tick(*reads), Rows()).processes

    assert [(use.device.uuid, use.sample and use.sample.sm_pct) for use in uses] == [("GPU-0", 40), ("GPU-1", 0)]


def test_a_process_of_a_mig_instance_has_one_row() -> None:
    """On its instance, where the driver lists it too, not on the GPU as well."""
    mig = Device(0, "MIG-1", parent_uuid=GPU.uuid, gpu_instance_id=1)
    inside = (Resident(7, "compute", gpu_instance_id=1),)
    reads = Reading(GPU, residents=inside), Reading(mig, residents=inside)

    assert [use.device.uuid for use in UseBook().book(tick(*reads), Rows()).processes] == ["MIG-1"]


def test_a_process_of_a_gpu_that_is_cut_but_of_no_instance() -> None:
    """It has a row on the GPU itself."""
    mig = Device(0, "MIG-1", parent_uuid=GPU.uuid, gpu_instance_id=1)

    uses = UseBook().book(tick(reading(9), Reading(mig, residents=())), Rows()).processes

    assert [(use.resident.pid, use.device.uuid) for use in uses] == [(9, GPU.uuid)]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3_000_000), st.lists(st.tuples(st.integers(1, 4), st.integers(-3, 100), st.integers(0, 100)))
        ),
        max_size=8,
    )
)
def test_every_resident_gets_its_own_row(steps: list[tuple[int, list[tuple[int, int, int]]]]) -> None:
    """For any rows in any ticks: one row for each resident, with its own sample or zero, and the book stays small."""
    book = UseBook()
    now = NOW_US
    for step_us, rows in steps:
        now += step_us
        samples = tuple(Sample(pid, now + offset, pct, 0) for pid, offset, pct in rows)
        uses = book.book(tick(reading(1, 2, 3, samples=samples), at_us=now), Rows()).processes
        assert [use.resident.pid for use in uses] == [1, 2, 3]
        assert all(use.sample is IDLE or (use.sample and use.sample.pid == use.resident.pid) for use in uses)
        assert len(book._recent._samples[GPU.uuid]) <= 4
