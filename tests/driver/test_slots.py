"""Slots: the activity of a shared GPU in parts of a tick, from samples between ticks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from gpuledger.driver.call import Failures
from gpuledger.driver.events import XidWatch
from gpuledger.driver.nvml import NvmlError
from gpuledger.driver.reader import GpuReader
from gpuledger.errors import GpuLostError
from gpuledger.model import Reading
from tests.driver.conftest import SHORT_S, Bench, process
from tests.fakedriver import Gpu, Mig

SAMPLES = "nvmlGpmSampleGet"
IN_USE = "samples_in_use"
"""Not a call: samples that are allocated and not freed."""


class Hand:
    """One GPU, read and sampled by the test at times that the test sets."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        bench.scenario.processes = [process(1), process(2)]
        self.activity(0)
        bench.read()  # opens the driver
        self.now_s = 100.0
        self.failures: Failures = Counter()
        self.reader = GpuReader(0, self.failures, XidWatch(), time.time_ns, monotonic=lambda: self.now_s)
        self.reader.open()

    def activity(self, sm_pct: float, *extra: str) -> None:
        """What the next sample measures."""
        self.bench.scenario.gpus[0].extra["gpm.sm"] = sm_pct
        self.bench.write(*extra)

    def read(self, at_s: float) -> Reading:
        """A tick."""
        self.now_s = at_s
        return self.reader.read()[0]

    def sample(self, at_s: float) -> float | None:
        """What the thread does between ticks; the seconds until it is to be repeated."""
        self.now_s = at_s
        wait_s = self.reader.sample()
        return None if wait_s is None else round(wait_s, 6)

    def sample_until_tick(self, start_s: float) -> None:
        """Four samples, as between ticks a second apart, measuring 10, 20, 30 and 40."""
        for i in range(1, 5):
            self.activity(10.0 * i)
            assert self.sample(start_s + 0.2 * i + 0.001) == 0.199


@pytest.fixture
def hand(bench: Bench) -> Iterator[Hand]:
    """Two processes, before the first tick."""
    hand = Hand(bench)
    yield hand
    hand.reader.close()


def sm(reading: Reading) -> list[float | None]:
    """SM activity in the slots of a reading."""
    return [slot.activity.sm_pct for slot in reading.slots]


def test_shared_gpu_is_sampled_five_times_a_second(hand: Hand) -> None:
    """Four samples and the tick's own make five slots; activity is their mean, from the same samples."""
    assert hand.read(100).slots == ()
    assert hand.sample(100.3) is None  # how far ticks are apart is not known yet
    assert hand.read(101).slots == ()
    assert hand.sample(101) == 0.2
    hand.sample_until_tick(101)
    hand.activity(50)

    reading = hand.read(102)

    assert sm(reading) == [10, 20, 30, 40, 50]
    assert {(slot.sm_clock_mhz, slot.power_mw) for slot in reading.slots} == {(1980, None)}
    assert reading.activity is not None
    assert reading.activity.sm_pct == 30


def test_slots_begin_anew_with_each_tick(hand: Hand) -> None:
    """The first slot of a tick begins at the sample of the tick before."""
    for second in range(100, 102):
        hand.read(second)
    for second in range(102, 105):
        hand.sample_until_tick(second - 1)
        hand.activity(50)
        assert sm(hand.read(second)) == [10, 20, 30, 40, 50]


def test_process_alone_is_not_sampled(hand: Hand) -> None:
    """No samples between ticks, and none any more once all but one process have left."""
    hand.bench.scenario.processes = [process(1)]
    hand.activity(40)
    hand.read(100)
    hand.read(101)
    assert hand.sample(101.2) is None
    hand.bench.scenario.processes = [process(1), process(1, kind="graphics"), process(2)]
    hand.activity(40)
    hand.read(102)
    assert hand.sample(102.2) == 0.2
    hand.bench.scenario.processes = [process(1), process(1, kind="graphics")]  # one process in two lists
    hand.activity(40)

    reading = hand.read(103)

    assert hand.sample(103.2) is None
    assert reading.activity is not None
    assert sm(hand.read(104)) == []


@pytest.mark.parametrize("apart_s", [0.1, 0.2, 0.4])
def test_fast_ticks_are_not_divided(hand: Hand, apart_s: float) -> None:
    """They are as short as a slot."""
    for i in range(4):
        hand.read(100 + i * apart_s)
        assert hand.sample(100 + (i + 1) * apart_s - 0.001) is None


@pytest.mark.parametrize(("apart_s", "number"), [(0.49, 2), (0.5, 2), (0.7, 4), (1.0, 5), (1.8, 9), (15.0, 9)])
def test_slots_are_equal_parts_of_a_tick(hand: Hand, apart_s: float, number: int) -> None:
    """About 0.2 s each, but at most nine."""
    for i in range(2):
        hand.read(100 + i * apart_s)
    start_s = 100 + apart_s
    for i in range(number - 1):
        wait_s = hand.sample(start_s + i * apart_s / number + 1e-6)
        assert wait_s == pytest.approx(apart_s / number, abs=1e-5)
    hand.sample(start_s + apart_s - apart_s / number + 1e-6)

    assert len(hand.read(start_s + apart_s).slots) == number


def test_tick_right_after_a_sample(hand: Hand) -> None:
    """A tick that comes a little late: the sample just before it ends no slot."""
    for second in (100, 101):
        hand.read(second)
    hand.sample_until_tick(101)
    hand.activity(50)
    hand.sample(102.0)
    hand.activity(60)

    reading = hand.read(102.01)

    assert sm(reading) == [10, 20, 30, 40, 55]
    assert reading.activity is not None
    assert reading.activity.sm_pct == 35


def test_sample_that_comes_late(hand: Hand) -> None:
    """On a busy host: the missed sample is not made up for, and one that would end a short slot ends none."""
    for second in (100, 101):
        hand.read(second)
    assert hand.sample(101.32) == 0.08
    assert hand.sample(101.4) == 0.2
    assert hand.sample(101.6) == 0.2
    assert hand.sample(101.8) == 0.2

    assert len(hand.read(102).slots) == 4


def test_tick_that_comes_very_late(hand: Hand) -> None:
    """Eight samples at most; the rest of the time would be one long slot among short ones, so there are none."""
    for second in (100, 101):
        hand.read(second)
    waits = [hand.sample(101 + 0.2 * i + 1e-6) for i in range(1, 9)]

    assert waits[-2:] == [0.199999, None]
    assert hand.sample(103) is None
    reading = hand.read(104)
    assert (sm(reading), reading.activity is None) == ([], False)


def test_failed_sample_costs_the_slots_of_one_tick(hand: Hand) -> None:
    """It is counted, activity is measured all the same, and the next tick has slots again."""
    for second in (100, 101):
        hand.read(second)
    hand.sample_until_tick(101)
    hand.activity(40, f"error {SAMPLES} code=999 count=1")

    assert hand.sample(102.001) is None

    reading = hand.read(102.02)
    assert hand.failures == {(SAMPLES, 999): 1}
    assert (sm(reading), reading.activity is None) == ([], False)
    hand.sample(102.3)
    hand.sample(102.5)
    hand.sample(102.7)
    hand.sample(102.9)
    assert len(hand.read(103).slots) == 4


def test_failed_metrics_of_a_slot(hand: Hand) -> None:
    """The same: they cost the slots, even with an error that elsewhere means that GPM is not supported."""
    for second in (100, 101):
        hand.read(second)
    hand.sample_until_tick(101)
    get = hand.reader.calls.require
    answers = iter([0, 0, 2])

    def require(function: Callable[..., object], *arguments: object) -> object:
        if function.__name__ == "nvmlGpmMetricsGet" and (code := next(answers, 0)):
            raise NvmlError(code)
        return get(function, *arguments)

    hand.reader.calls.require = require  # type: ignore[method-assign]

    reading = hand.read(102)

    assert (sm(reading), reading.activity is None) == ([], False)
    assert list(hand.failures.values()) == [1]
    hand.sample_until_tick(102)
    assert len(hand.read(103).slots) == 5


def test_gpu_lost_between_ticks(hand: Hand) -> None:
    """Nothing is raised and nothing counted: the next tick reports it, and the GPU is read anew."""
    for second in (100, 101):
        hand.read(second)
    hand.sample(101.2)
    hand.activity(40, "lost 0")

    assert hand.sample(101.4) is None
    with pytest.raises(GpuLostError):
        hand.read(102)
    assert hand.sample(102.2) is None
    assert not hand.failures

    hand.activity(40)
    hand.reader.open()
    assert (hand.read(103).activity, hand.sample(103.2)) == (None, None)


def test_gpu_reset_between_ticks(hand: Hand) -> None:
    """No activity is measured across a loss of the GPU, even if no tick notices it."""
    for second in (100, 101):
        hand.read(second)
    hand.sample(101.2)
    hand.activity(40, "lost 0")
    hand.sample(101.4)
    hand.activity(40)

    reading = hand.read(102)

    assert (reading.activity, reading.slots) == (None, ())


def test_gpu_that_fails_in_a_tick_is_not_sampled(hand: Hand) -> None:
    """Not until a tick has read it again."""
    for second in (100, 101):
        hand.read(second)
    hand.activity(40, "lost 0")
    with pytest.raises(GpuLostError):
        hand.read(102)
    hand.activity(40)

    assert hand.sample(102.2) is None


def test_mig_gpu_has_no_slots(hand: Hand) -> None:
    """Also if its instances have many processes, and from the tick on that sees MIG enabled."""
    for second in range(100, 110):
        hand.read(second)
    hand.sample(109.2)
    hand.bench.scenario.gpus[0].mig = 1
    hand.bench.scenario.migs = [Mig(gpu=0, gi=1, uuid="MIG-1")]
    hand.bench.scenario.processes = [process(pid, gi=1, ci=0) for pid in (1, 2)]
    hand.activity(40)
    hand.sample(109.4)

    reading = hand.read(110)

    assert (reading.mig_enabled, reading.slots) == (True, ())
    for second in (111, 112):
        assert hand.read(second).slots == ()
        hand.sample(second + 0.8)  # of the instance


def test_gpu_without_gpm_is_not_sampled(hand: Hand) -> None:
    """There is nothing to sample."""
    hand.bench.scenario.gpus[0].extra["gpm"] = 0
    hand.activity(40)
    for second in range(100, 103):
        assert hand.read(second).activity is None
        assert hand.sample(second + 0.2) is None


def test_samples_are_part_of_the_driver_time(hand: Hand) -> None:
    """The reading after them has their time."""
    for second in (100, 101):
        hand.read(second)
    hand.activity(40, f"latency {SAMPLES} us=200000")
    hand.sample(101.2)
    hand.sample(101.4)
    hand.activity(40)

    reading = hand.read(102)

    assert reading.driver_ns is not None
    assert reading.driver_ns >= 400_000_000
    assert (hand.read(103).driver_ns or 0) < reading.driver_ns


# -- with the thread of the GPU


def share(bench: Bench, *, processes: int = 2) -> None:
    """Put processes on GPU 0, and divide ticks into slots of 0.02 s."""
    bench.slot_s = 0.02
    bench.scenario.processes = [process(pid) for pid in range(1, processes + 1)]
    bench.write()


def ticks(bench: Bench, number: int) -> list[Reading]:
    """GPU 0 in ticks 0.1 s apart."""
    readings = []
    for _ in range(number):
        readings.append(bench.reading())
        time.sleep(0.1)
    return readings


def wait_for_slots(bench: Bench) -> Reading:
    """The first reading with slots; a busy host may miss samples."""
    return next(reading for _ in range(50) for reading in ticks(bench, 1) if reading.slots)


def test_thread_of_a_shared_gpu_samples_it(bench: Bench, calls: Callable[[], Counter[str]]) -> None:
    """There are slots after the second tick. All samples are freed at the end."""
    share(bench)
    readings = ticks(bench, 2)
    divided = wait_for_slots(bench)

    counted = calls()

    assert [reading.slots for reading in readings] == [(), ()]
    assert 2 <= len(divided.slots) <= 9
    assert 3 <= counted["nvmlGpmSampleAlloc"] <= 10
    assert counted[IN_USE] == 0


def test_thread_of_a_process_alone_makes_no_further_call(bench: Bench, calls: Callable[[], Counter[str]]) -> None:
    """One sample in each tick, in two buffers."""
    share(bench, processes=1)
    readings = ticks(bench, 5)

    counted = calls()

    assert [reading.slots for reading in readings] == [()] * 5
    assert counted[SAMPLES] == 5
    assert counted["nvmlGpmMetricsGet"] == 4
    assert (counted["nvmlGpmSampleAlloc"], counted["nvmlGpmSampleFree"]) == (2, 2)


@pytest.mark.parametrize("trouble", ["lost 0", "unloaded", "hang nvmlGpm*"])
def test_trouble_leaks_no_sample(bench: Bench, calls: Callable[[], Counter[str]], trouble: str) -> None:
    """Lost, reloaded or hung and read again: every sample is freed once, and there are slots again."""
    bench.timeout_s = SHORT_S
    share(bench)
    wait_for_slots(bench)
    bench.write(trouble)
    bench.read()
    assert not bench.read().readings[0].up
    bench.write()
    bench.until(lambda tick: tick.readings[0].up)
    wait_for_slots(bench)

    counted = calls()

    assert counted["nvmlGpmSampleFree"] >= 3
    assert counted[IN_USE] == 0


def test_sample_that_hangs_takes_its_gpu_down(bench: Bench) -> None:
    """The tick after it names the call; the other GPU goes on."""
    bench.timeout_s = SHORT_S
    bench.scenario.gpus.append(Gpu(index=1))
    share(bench)
    ticks(bench, 2)
    bench.write(f"hang {SAMPLES} gpu=0")
    time.sleep(0.1)

    first, second = bench.read().readings

    assert (first.reason, second.up) == (f"{SAMPLES} does not return", True)
    bench.write()
    bench.until(lambda tick: all(reading.up for reading in tick.readings))


def test_driver_is_not_reloaded_under_a_sample(bench: Bench) -> None:
    """A thread that hangs in a sample keeps the driver from being shut down or opened again."""
    bench.timeout_s = SHORT_S
    bench.scenario.gpus.append(Gpu(index=1))
    share(bench)
    ticks(bench, 2)
    bench.write(f"hang {SAMPLES} gpu=0", "error nvmlDeviceGetMemoryInfo_v2 gpu=1 code=1")
    time.sleep(0.1)
    bench.until(lambda tick: not tick.driver.up)
    bench.later(60)

    assert bench.read().driver.reason == f"an earlier {SAMPLES} does not return"
    bench.write()
    bench.until(lambda tick: all(reading.up for reading in tick.readings))


def test_close_while_a_sample_hangs(bench: Bench) -> None:
    """It returns after a second, without shutting the driver down under the thread."""
    bench.timeout_s = SHORT_S
    share(bench)
    ticks(bench, 2)
    bench.write(f"hang {SAMPLES}")
    time.sleep(0.1)
    started = time.monotonic()

    bench.source.close()

    assert time.monotonic() - started < 5


def test_close_between_samples_is_prompt(bench: Bench) -> None:
    """The thread does not wait for the next sample."""
    share(bench)
    bench.slot_s = 10.0
    for _ in range(3):
        bench.read()
        bench.later(60)
    started = time.monotonic()

    bench.source.close()

    assert time.monotonic() - started < 2  # the next sample is due in 10 s
