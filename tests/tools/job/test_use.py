"""What a job used, from a snapshot and from a journal, and its totals."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuledger.allocations.book import Entry
from gpuledger.ledger.rows import Row
from gpuledger.ledger.state import AllocationState, RowState, State, frozen
from gpuledger.model import Device, Owner, Resident
from gpuledger.tools.job.use import NO_ALLOCATION, DeviceUse, JobUse, of_journal, of_snapshot
from gpuledger.tools.prices import Prices
from gpuledger.web.snapshot.schema import AllocationRow, ProcessRow, Snapshot

NOW = 1_800_000_000.0
GPUS = [Device(n, f"GPU-{n}") for n in range(3)]


def allocation(gpu: int, job: str = "211", **more: object) -> AllocationRow:
    """An allocation of a GPU."""
    return AllocationRow(gpu=gpu, uuid=f"GPU-{gpu}", job=job, **more)  # type: ignore[arg-type]


def process(gpu: int, pid: int, memory_bytes: int | None, *, active: bool = True, job: str = "slurm/211") -> ProcessRow:
    """A process of a job, with 100 J."""
    return ProcessRow(
        gpu=gpu, uuid=f"GPU-{gpu}", pid=pid, job=job, memory_bytes=memory_bytes, active=active,
        joules={"exclusive": 100.0},
    )  # fmt: skip


def saved(rows: list[Row], entries: Sequence[Entry] = ()) -> State:
    """The state of books with these rows and allocations."""
    return State(
        "boot",
        int(NOW * 1e9),
        rows=tuple(frozen(RowState, row) for row in rows),
        allocations=tuple(frozen(AllocationState, entry) for entry in entries),
    )


def test_allocations_of_a_running_job() -> None:
    """Memory is that of its present processes; the tail is that of an idle state only."""
    snapshot = Snapshot(
        time=NOW,
        node="gpu01",
        allocations=(
            allocation(0, state="busy", busy_seconds=3000.0, unknown_seconds=600.0, joules={"busy": 7.2e6},
                       start_time=NOW - 3600),
            allocation(1, state="parked", idle_seconds={"parked": 900.0, "low": 900.0}, busy_seconds=1800.0,
                       idle_since=NOW - 900, joules={"busy": 1.8e6, "parked": 1.8e6}),
            allocation(2, "212", state="busy"),
        ),
        processes=(process(0, 1, 10), process(0, 2, 20), process(0, 3, 99, active=False), process(1, 4, None),
                   process(2, 5, 1000, job="slurm/212")),
    )  # fmt: skip
    use = of_snapshot(snapshot, "211")

    assert use is not None
    assert [(d.gpu, d.allocated_s, d.memory_bytes, d.tail_s) for d in use.devices] == [
        ("0", 3600, 30, 0), ("1", 3600, None, 900),
    ]  # fmt: skip
    assert (use.gpu_hours, use.busy_share, use.kwh, use.memory_bytes) == (2, 4800 / 6600, 3, 30)
    assert (use.tail_s, use.hours("tail_s")) == (0, 0.25)


def test_a_job_that_no_prolog_recorded() -> None:
    """Energy of its processes, exited ones included; everything else is unknown and says so."""
    use = of_snapshot(Snapshot(time=NOW, processes=(process(0, 1, 10), process(0, 2, 5, active=False))), "211")

    assert use is not None
    assert (use.gpu_hours, use.busy_share, use.tail_s, use.memory_bytes) == (None, None, None, 10)
    assert use.kwh == pytest.approx(200 / 3.6e6)
    assert use.notes == (NO_ALLOCATION,)
    assert use.cost(Prices(gpu_hour=2.0)) is None
    assert use.cost(Prices(kwh=3.6e6)) == pytest.approx(200)


def test_a_job_of_another_node() -> None:
    """Neither an allocation nor a process: a prefix of the id does not count."""
    snapshot = Snapshot(time=NOW, allocations=(allocation(0, "2110"),), processes=(process(1, 1, 1, job="slurm/21"),))

    assert of_snapshot(snapshot, "211") is None


def test_the_journal() -> None:
    """An allocation that ended 60 s before the last tick ends then; an unmetered GPU has no energy."""
    entries = [
        Entry(GPUS[0], Owner(job="211"), int((NOW - 3600) * 1e9), idle_since_ns=int((NOW - 660) * 1e9),
              times_ns={"busy": 2940 * 10**9, "no_process": 600 * 10**9}, energy_mj={"busy": 3_600_000},
              missing_ns=60 * 10**9),
        Entry(GPUS[1], Owner(job="211"), int((NOW - 3600) * 1e9), times_ns={"unknown": 3600 * 10**9}),
        Entry(GPUS[2], Owner(job="212"), int(NOW * 1e9)),
    ]  # fmt: skip
    rows = [Row(GPUS[0], "GPU-0", 1, 1, 0, Resident(1, "compute", 7), owner=Owner(job="slurm/211"))]
    state = saved(rows, entries)
    use = of_journal(state, "211", "gpu01")

    assert use is not None
    assert [(d.tail_s, d.joules, d.memory_bytes) for d in use.devices] == [(600, 3600, 7), (0, None, None)]
    assert (use.gpu_hours, use.hours("unknown_s"), use.kwh) == (1.0 - 60 / 3600 + 1, 1, None)
    assert of_journal(state, "213", "gpu01") is None


def test_the_journal_without_a_prolog() -> None:
    """Energy of the processes on each GPU."""
    rows = [
        Row(GPUS[n // 2], f"GPU-{n // 2}", n, 1, n, Resident(n, "compute", 5), owner=Owner(job="slurm/211"),
            energy_mj={"exclusive": 1000})
        for n in range(3)
    ]  # fmt: skip
    state = saved(rows)
    use = of_journal(state, "211", "gpu01")

    assert use is not None
    assert [(d.uuid, d.joules, d.memory_bytes) for d in use.devices] == [("GPU-0", 2.0, 10), ("GPU-1", 1.0, 5)]


def test_costs() -> None:
    """A quarter of the time busy: the same work costs a quarter on GPUs that are always busy."""
    device = DeviceUse(end=NOW, busy_s=900.0, idle_s=2700.0, unknown_s=0.0, joules=7.2e6)
    use, prices = JobUse("211", "journal", (device,)), Prices(kwh=0.5, gpu_hour=3.0)

    assert (use.cost(prices), use.cost_if_always_busy(prices)) == (4.0, 1.0)
    assert use.cost(Prices()) is None
