"""The activity of processes: parts of the device's activity that add up to it."""

from __future__ import annotations

import pytest
from hypothesis import given

from gpuledger.books import Books
from gpuledger.ledger.split import Policy
from gpuledger.model import DIVIDED, Activity, Reading, Resident, Tick
from gpuledger.shares.activity import divisible
from tests.builders import CUT, MIGS, POLICIES, World, sequences
from tests.shares.sharedgpu import COPY, MATMUL, Shared

SM = DIVIDED.index("sm_pct")


def parts(tick: Tick, field: str = "sm_pct") -> dict[int, float | None]:
    """By pid."""
    return {use.resident.pid: use.activity.pct[DIVIDED.index(field)] for use in tick.processes if use.activity}


def methods(tick: Tick) -> dict[int, str]:
    """By pid."""
    return {use.resident.pid: use.activity.method for use in tick.processes if use.activity}


def test_a_process_alone_has_the_activity_of_the_gpu() -> None:
    """It is measured, without an error."""
    gpu = Shared({1: (MATMUL, 500_000)})
    gpu.tick([1], {})
    tick = gpu.tick([1], {1: 1.0})

    (use,) = tick.processes
    assert use.activity is not None
    assert (use.activity.method, use.activity.error) == ("exclusive", 0.0)
    assert parts(tick, "tensor_pct") == {1: MATMUL[2]}
    assert tick.unattributed_activity["GPU-0"][SM] == 0


def test_known_processes_have_the_activity_of_their_fingerprints() -> None:
    """A matrix product and a copy: all tensor cores are used by the first, most of the memory by the second."""
    gpu = Shared({1: (MATMUL, 500_000), 2: (COPY, 300_000)})
    gpu.alone(1)
    gpu.alone(2)
    for _ in range(5):
        tick = gpu.tick([1, 2], {1: 0.5, 2: 0.5})

    assert methods(tick) == {1: "fingerprint", 2: "fingerprint"}
    assert parts(tick, "tensor_pct") == pytest.approx({1: 0.5 * MATMUL[2], 2: 0.0}, abs=1)
    assert parts(tick, "dram_pct") == pytest.approx({1: 0.5 * MATMUL[3], 2: 0.5 * COPY[3]}, abs=2)
    assert all(use.activity is not None and use.activity.error > 0 for use in tick.processes)


def test_a_stranger_has_what_a_known_process_leaves() -> None:
    """The tensor cores are those of the known process, whatever the samples say of time."""
    gpu = Shared({1: (MATMUL, 500_000), 2: (COPY, 300_000)})
    gpu.alone(1, 20)
    for _ in range(10):
        tick = gpu.tick([1, 2], {1: 0.5, 2: 0.5})

    assert parts(tick, "tensor_pct") == pytest.approx({1: 0.5 * MATMUL[2], 2: 0.0}, abs=7)
    assert parts(tick, "dram_pct") == pytest.approx({1: 0.5 * MATMUL[3], 2: 0.5 * COPY[3]}, abs=6)


def test_a_waiting_process_has_none() -> None:
    """Zero, not absent: it is known that it did nothing."""
    gpu = Shared({1: (MATMUL, 500_000)})
    gpu.tick([1, 2], {})
    for _ in range(5):
        tick = gpu.tick([1, 2], {1: 1.0})

    assert parts(tick) == {1: pytest.approx(MATMUL[0]), 2: 0.0}


def test_without_gpm_the_utilization_is_divided_by_sm_time() -> None:
    """GPUs before Hopper: only the time in which something ran is known."""
    world, books = World(), Books()
    for _ in range(3):
        tick = books.book(world.tick(1, 2, mj=300_000, work={1: 60, 2: 20}, utilization_pct=90))

    assert methods(tick) == {1: "sm_time", 2: "sm_time"}
    assert parts(tick, "graphics_pct") == pytest.approx({1: 67.5, 2: 22.5})
    assert parts(tick) == {1: None, 2: None}


def test_strict_mode_has_only_measured_activity() -> None:
    """All else is unattributed."""
    gpu = Shared({1: (MATMUL, 500_000), 2: (COPY, 300_000)}, books=Books(policy=Policy(strict=True)))
    gpu.tick([1, 2], {})
    shared = gpu.tick([1, 2], {1: 0.5, 2: 0.5})
    gpu.tick([1], {1: 1.0})
    alone = gpu.tick([1], {1: 1.0})

    assert parts(shared) == {}
    assert shared.unattributed_activity["GPU-0"][SM] == pytest.approx(0.5 * (MATMUL[0] + COPY[0]))
    assert methods(alone) == {1: "exclusive"}


def test_a_process_alone_in_a_mig_instance_has_its_activity() -> None:
    """It is measured, although the energy of the instance is estimated."""
    world, books = World(), Books()
    for second in range(3):
        world.now_ns += 10**9
        instances = [
            Reading(mig, activity=Activity(sm_pct=20.0 * number), residents=(Resident(number, "compute"),))
            for number, mig in enumerate(MIGS, 1)
        ]
        tick = books.book(world.around(Reading(CUT, energy_mj=10**6 + second * 300_000, residents=()), *instances))

    assert methods(tick) == {1: "exclusive", 2: "exclusive"}
    assert parts(tick) == {1: 20.0, 2: 40.0}


@given(sequences(), POLICIES)
def test_parts_and_rest_add_up_to_the_device(made: list[tuple[Tick, int | None]], policy: Policy) -> None:
    """On any ticks: no part is negative, and no activity is counted twice or lost."""
    books = Books(policy=policy)
    for given_tick, _ in made:
        tick = books.book(given_tick)
        for reading in tick.readings:
            rest = tick.unattributed_activity.get(reading.device.uuid)
            whole = divisible(reading)
            if rest is None or whole is None:
                continue
            on_device = [use.activity.pct for use in tick.processes
                         if use.activity is not None and use.device.uuid == reading.device.uuid]  # fmt: skip
            for pct, *values in zip(whole, *on_device, rest, strict=True):
                if pct is None:
                    assert values == [None] * len(values)
                else:
                    assert min(values) >= 0
                    assert sum(values) == pytest.approx(pct)
