"""Slots of a shared GPU without GPM, from the samples of power and utilization that the driver buffers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from struct import pack_into
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuledger.driver import nvml
from gpuledger.driver.buffered import BufferedSlots
from gpuledger.driver.call import Calls, Failures
from gpuledger.driver.events import XidWatch
from gpuledger.driver.reader import GpuReader
from gpuledger.model import Activity, Reading, Slot
from tests.driver.conftest import Bench, process
from tests.fakedriver import Mig

START_MS = 1_700_000_000_000
SAMPLES = "nvmlDeviceGetSamples"
POWER, UTILIZATION, MEMORY = 0, 1, 2
KINDS = (UTILIZATION, POWER, MEMORY)


class Driver:
    """A driver with the samples that the test sets. As long as it has a new one, it repeats all old ones."""

    def __init__(self) -> None:
        self.samples: dict[int, list[tuple[int, Any]]] = {kind: [] for kind in KINDS}
        """Times in microseconds and values, by kind."""
        self.codes: dict[int, int] = {}
        """NVML errors, by kind."""
        self.asked: list[int] = []
        """The kinds that the last reading asked for."""
        self.value_type, self.form = 1, "=QI"
        self.failures: Failures = Counter()
        self.calls = Calls(self.failures, 0)
        self.slots = BufferedSlots()

    def sample(self, kind: int, at_ms: int, value: Any) -> None:
        """A sample, at a time since the start."""
        self.samples[kind].append(((START_MS + at_ms) * 1000, value))

    def run(self, since_ms: int, until_ms: int, power_mw: int = 100_000, pct: int = 50, memory_pct: int = 10) -> None:
        """Samples as on an H200, after one time until the other."""
        for at_ms in range(since_ms + 20, until_ms + 1, 20):
            self.sample(POWER, at_ms, power_mw)
        for at_ms in range(since_ms + 200, until_ms + 1, 200):
            self.sample(UTILIZATION, at_ms, pct)
            self.sample(MEMORY, at_ms, memory_pct)

    def answer(self, _: str, kind: int, since_us: Any, value_type: Any, count: Any, buffer: Any) -> int:
        """The C function."""
        self.asked.append(kind)
        if kind in self.codes:
            return self.codes[kind]
        rows = self.samples[kind]
        if all(time_us <= since_us.value for time_us, _ in rows):
            return nvml.NOT_FOUND
        count._obj.value = min(count._obj.value, len(rows))
        value_type._obj.value = self.value_type
        for i, (time_us, value) in enumerate(rows[: count._obj.value]):
            pack_into("=QQ", buffer, 16 * i, time_us, 2**64 - 1)  # an H200 leaves the other half undefined
            pack_into(self.form, buffer, 16 * i, time_us, value)
        return 0

    def read(self, at_ms: int) -> tuple[Slot, ...]:
        """The slots of a reading."""
        self.asked.clear()
        return self.slots.read(self.calls, "handle", (START_MS + at_ms) * 1000)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A driver with a sample of utilization at the start, which was read."""
    driver = Driver()
    monkeypatch.setattr(nvml.library, "_functions", {SAMPLES: driver.answer})
    driver.run(-1000, 0)
    assert driver.read(0) == ()
    return driver


def slot(power_mw: int, ended_ms: int, pct: int = 50, memory_pct: int | None = 10) -> Slot:
    """A slot without activity."""
    return Slot(Activity(), None, power_mw, ended_ms, pct, memory_pct)


TWO = (slot(100_000, 250), slot(100_000, 50))
"""The slots of a reading 0.45 s after the start."""


def test_slot_is_the_time_between_two_samples_of_utilization(driver: Driver) -> None:
    """It has the mean of the power samples since the one before, and both utilizations at its end."""
    driver.run(0, 100, power_mw=100_000)
    driver.run(100, 200, power_mw=180_000)
    driver.sample(UTILIZATION, 200, 60)
    driver.sample(MEMORY, 200, 20)
    driver.run(200, 400, power_mw=500_000, pct=99, memory_pct=40)
    driver.run(400, 460, power_mw=700_000)

    assert driver.read(470) == (slot(140_000, 270, 60, 20), slot(500_000, 70, 99, 40))


def test_first_reading_only_finds_the_beginning_of_a_slot(driver: Driver) -> None:
    """It asks for utilization alone; earlier samples are not used, nor is the time after `forget`."""
    driver.run(0, 400)
    assert driver.read(450) == TWO
    driver.run(400, 1000, power_mw=1)

    driver.slots.forget()

    assert (driver.read(1000), driver.asked) == ((), [UTILIZATION])
    driver.run(1000, 1200, power_mw=200_000)
    assert driver.read(1200) == (slot(200_000, 0),)


@given(st.lists(st.integers(1, 900), min_size=1, max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_every_slot_is_read_once(driver: Driver, pauses_ms: list[int]) -> None:
    """Whatever the times of the readings: together they have the slots of a single one."""
    driver.slots = BufferedSlots()
    for kind in KINDS:
        driver.samples[kind] = []
    driver.run(-1000, 0)
    driver.read(0)
    for number in range(40):
        driver.run(200 * number, 200 * (number + 1), pct=number)
    driver.samples[POWER] = [(time_us, 1000 * max(0, i)) for i, (time_us, _) in enumerate(driver.samples[POWER], -50)]
    recorded, now_ms, slots = driver.samples, 0, []
    for pause_ms in pauses_ms:
        now_ms += pause_ms
        now_us = (START_MS + now_ms) * 1000
        driver.samples = {kind: [row for row in rows if row[0] <= now_us] for kind, rows in recorded.items()}
        slots += [(slot.power_mw, slot.utilization_pct, now_ms - slot.ended_ms) for slot in driver.read(now_ms)]

    assert slots == [(10_000 * number + 4500, number, 200 * (number + 1)) for number in range(now_ms // 200)]


def test_slot_without_power_is_left_out(driver: Driver) -> None:
    """As after a tick that is longer than the buffer of power."""
    driver.run(0, 1000)
    driver.samples[POWER] = [row for row in driver.samples[POWER] if row[0] > (START_MS + 600) * 1000]

    assert driver.read(1000) == (slot(100_000, 200), slot(100_000, 0))


@pytest.mark.parametrize(("apart_ms", "slots"), [(1000, (slot(100_000, 10),)), (1400, ())])
def test_samples_that_are_far_apart(driver: Driver, apart_ms: int, slots: tuple[Slot, ...]) -> None:
    """Older GPUs may sample once a second. A longer time is a gap, in which nothing is known of utilization."""
    for at_ms in range(20, apart_ms + 1, 20):
        driver.sample(POWER, at_ms, 100_000)
    driver.sample(UTILIZATION, apart_ms, 50)
    driver.sample(MEMORY, apart_ms, 10)

    assert driver.read(apart_ms + 10) == slots
    driver.run(apart_ms, apart_ms + 200, power_mw=5000)
    assert driver.read(apart_ms + 200) == (slot(5000, 0),)


def test_nothing_new(driver: Driver) -> None:
    """No sample of utilization since the last slot: no slot, no error, and the next slot is as long as ever."""
    driver.sample(POWER, 20, 100_000)
    assert (driver.read(50), driver.asked) == ((), [UTILIZATION])

    driver.run(0, 200)

    assert driver.read(210) == (slot(100_000, 10),)
    assert not driver.failures


@pytest.mark.parametrize("kind", [UTILIZATION, POWER])
def test_gpu_that_lacks_samples_has_no_slots(driver: Driver, kind: int) -> None:
    """Without power or utilization; once that is known, nothing is asked for."""
    driver.calls.forget()  # an error of a call that has worked is temporary
    driver.codes[kind] = nvml.NOT_SUPPORTED
    driver.run(0, 400)
    assert driver.read(450) == ()
    driver.codes.clear()

    driver.run(400, 800)

    assert (driver.read(850), driver.asked) == ((), [])
    assert not driver.failures


def test_gpu_without_memory_utilization(driver: Driver) -> None:
    """Slots lack it, and it is asked for once."""
    driver.codes[MEMORY] = nvml.NOT_SUPPORTED
    driver.run(0, 200)
    assert driver.read(200) == (slot(100_000, 0, memory_pct=None),)
    driver.run(200, 400)

    assert driver.read(400) == (slot(100_000, 0, memory_pct=None),)
    assert driver.asked == [UTILIZATION, POWER]


@pytest.mark.parametrize(
    ("kind", "slots"),
    [(UTILIZATION, ()), (POWER, ()), (MEMORY, (slot(100_000, 250, 50, None), slot(100_000, 50, 50, None)))],
)
def test_call_that_fails_once(driver: Driver, kind: int, slots: tuple[Slot, ...]) -> None:
    """It is counted. No later reading has the slots that are missed."""
    driver.codes[kind] = 999
    driver.run(0, 400)
    assert driver.read(450) == slots
    assert driver.failures == {(SAMPLES, 999): 1}
    driver.codes.clear()

    driver.run(400, 800)
    later = driver.read(800)
    driver.run(800, 1000)

    assert later == (() if kind == UTILIZATION else (slot(100_000, 200), slot(100_000, 0)))
    assert driver.read(1000) == (slot(100_000, 0),)


@pytest.mark.parametrize("at_ms", [-START_MS, -300, 3_600_000], ids=["no time", "late", "future"])
@pytest.mark.parametrize("kind", KINDS)
def test_sample_of_another_time(driver: Driver, kind: int, at_ms: int) -> None:
    """Time 0, a time before the last slot or an hour ahead: the sample is ignored, and later ones are not."""
    driver.run(0, 200)
    driver.sample(kind, at_ms, 1)
    driver.run(200, 400)

    assert driver.read(450) == TWO
    driver.run(400, 600)
    assert driver.read(600) == (slot(100_000, 0),)


def test_samples_in_disorder(driver: Driver) -> None:
    """Twice, or not in order of time: the result is the same."""
    driver.run(0, 400)
    for kind in KINDS:
        driver.samples[kind] = [*reversed(driver.samples[kind]), *driver.samples[kind][-3:]]
    driver.sample(POWER, 400, 100_000)

    assert driver.read(450) == TWO


@pytest.mark.parametrize(("kind", "value"), [(POWER, 2**32 - 1), (UTILIZATION, 101), (MEMORY, 255)])
def test_impossible_value(driver: Driver, kind: int, value: int) -> None:
    """It is no sample; without it, the slots are the same."""
    driver.run(0, 200)
    driver.sample(kind, 210, value)
    driver.run(200, 400)

    assert driver.read(450) == TWO


@pytest.mark.parametrize(
    ("value_type", "form"),
    [
        (0, "=Qd"),
        (2, "=QQ"),
        (3, "=QQ"),
        (4, "=Qq"),
        (5, "=Qi"),
    ],
)
def test_type_of_values(driver: Driver, value_type: int, form: str) -> None:
    """The driver says which part of the 8 bytes has the value; a double may be no number."""
    driver.value_type, driver.form = value_type, form
    driver.run(0, 400)
    if form == "=Qd":
        driver.sample(POWER, 390, float("nan"))
        driver.sample(POWER, 391, float("inf"))
    if form == "=Qi":
        driver.sample(POWER, 390, -1)

    assert driver.read(450) == TWO


def test_samples_taken_during_the_call(driver: Driver) -> None:
    """They are a little later than the reading, and used."""
    driver.run(0, 400)

    assert driver.read(398) == (slot(100_000, 198), slot(100_000, 0))


@pytest.mark.parametrize("step_ms", [-3_600_000, -600, 600, 3_600_000])
def test_clock_that_is_set(driver: Driver, step_ms: int) -> None:
    """Back or ahead: no reading has more slots than one, and after two seconds there are slots again."""
    driver.run(0, 400)
    assert driver.read(400) == (slot(100_000, 200), slot(100_000, 0))
    for number in range(2, 12):
        start_ms = step_ms + 200 * number
        driver.run(start_ms, start_ms + 200)
        slots = driver.read(start_ms + 200)
        assert len(slots) <= 1

    assert slots == (slot(100_000, 0),)


# -- with the library of the fake driver


class SharedGpu:
    """GPU 0 without GPM, read by the test once a second; the clock of the driver stands still in between."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.bench.scenario.clock = START_MS / 1000 + 0.05
        gpu = bench.scenario.gpus[0]
        gpu.watts, gpu.extra["gpm"] = 290, 0
        self.set_processes(1, 2)
        bench.read()  # opens the driver
        self.failures: Failures = Counter()
        self.reader = GpuReader(0, self.failures, XidWatch(), self.now_ns, monotonic=lambda: self.now_ns() / 1e9)
        self.reader.open()

    def now_ns(self) -> int:
        """The clock of the driver."""
        assert self.bench.scenario.clock is not None
        return round(self.bench.scenario.clock * 1000) * 1_000_000

    def set_processes(self, *pids: int) -> None:
        """Put processes on the GPU, each with 30 % of its time."""
        self.bench.scenario.processes = [process(pid, sm=30, mem=5) for pid in pids]
        self.bench.write()

    def tick(self) -> Reading:
        """A reading, a second after the last one."""
        assert self.bench.scenario.clock is not None
        self.bench.scenario.clock += 1
        self.bench.write(*self.bench.scenario.extra)
        return self.reader.read()[0]


@pytest.fixture
def gpu(bench: Bench) -> Iterator[SharedGpu]:
    """Two processes, before the first tick."""
    gpu = SharedGpu(bench)
    yield gpu
    gpu.reader.close()


def test_shared_gpu_without_gpm_has_five_slots_a_second(gpu: SharedGpu) -> None:
    """Each has power and utilization, and none has activity; the time of the calls is part of the driver time."""
    assert gpu.tick().slots == ()
    gpu.bench.write(f"latency {SAMPLES} us=30000")

    for _ in range(3):
        reading = gpu.tick()
        assert reading.slots == tuple(slot(290_000, ended_ms, 60, 10) for ended_ms in (850, 650, 450, 250, 50))

    assert reading.driver_ns is not None
    assert reading.driver_ns >= 3 * 30_000_000
    assert not gpu.failures


def test_slots_end_and_begin_with_sharing(gpu: SharedGpu) -> None:
    """No slot covers time in which one process was alone, or in which the processes were unknown."""
    gpu.tick()
    assert len(gpu.tick().slots) == 5
    gpu.set_processes(1)
    assert gpu.tick().slots == ()
    gpu.set_processes(1, 2)
    assert gpu.tick().slots == ()
    assert len(gpu.tick().slots) == 5
    gpu.bench.write("error nvmlDeviceGetComputeRunningProcesses_v3 code=999 count=1")
    assert gpu.tick().slots == ()


def test_gpm_that_the_driver_refuses(gpu: SharedGpu) -> None:
    """A GPU that claims to support GPM and cannot sample has slots, too."""
    gpu.bench.scenario.gpus[0].extra["gpm"] = 1
    gpu.bench.write("error nvmlGpmSampleGet code=3")
    gpu.reader.open()

    assert [len(gpu.tick().slots) for _ in range(2)] == [0, 5]


def test_gpu_that_is_opened_again_is_asked_again(gpu: SharedGpu) -> None:
    """After a reset it may support what it did not; no slot is older."""
    gpu.bench.scenario.gpus[0].extra["power_mw"] = "none"
    assert [gpu.tick().slots for _ in range(3)] == [()] * 3
    del gpu.bench.scenario.gpus[0].extra["power_mw"]
    assert [gpu.tick().slots for _ in range(2)] == [()] * 2

    gpu.reader.open()

    assert [len(gpu.tick().slots) for _ in range(2)] == [0, 5]


@pytest.mark.parametrize(
    ("pids", "gpm", "mig", "asked"),
    [((1, 2), 0, 0, True), ((1,), 0, 0, False), ((), 0, 0, False), ((1, 2), 1, 0, False), ((1, 2), 0, 1, False)],
    ids=["shared", "one process", "no process", "with GPM", "with MIG"],
)
def test_calls_are_made_only_where_they_are_needed(
    bench: Bench, calls: Callable[[], Counter[str]], *, pids: tuple[int, ...], gpm: int, mig: int, asked: bool
) -> None:
    """They take 6 ms of CPU time on an H200, so only a shared GPU without GPM and without MIG is asked."""
    bench.scenario.gpus[0].extra["gpm"] = gpm
    bench.scenario.gpus[0].mig = mig
    bench.scenario.migs = [Mig(gpu=0, gi=1, uuid="MIG-1")] if mig else []
    bench.scenario.processes = [process(pid, **({"gi": 1, "ci": 0} if mig else {})) for pid in pids]
    bench.write()
    assert len(bench.reading(3).residents or ()) == len(pids)

    assert bool(calls()[SAMPLES]) is asked
