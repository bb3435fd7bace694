"""Time on the compute engine, expected from samples, fair time slices and demand."""

from __future__ import annotations

import pytest

from gpuledger.ledger.interval import Interval
from gpuledger.model import Activity, Reading, Slot
from gpuledger.shares.engine import LEAST_SD, SAMPLES_SD, EngineTime, delayed
from gpuledger.shares.fingerprint import Alone, Fingerprint
from tests.builders import GPU, row

SECOND = 1_000_000_000
BUSY, LESS, IDLE = Activity(sm_pct=90.0), Activity(sm_pct=50.0), Activity(sm_pct=0.0)


ONE, TWO = row(1), row(2)


class Engine:
    """Two processes on an engine, second by second."""

    def __init__(self) -> None:
        self.time = EngineTime()
        self.now_ns = 0

    def second(self, *, activity: Activity = BUSY, slots: tuple[float, ...] = (), **busy: float) -> None:
        """Samples of `one` and `two`, and the activity of slots."""
        interval = Interval(self.now_ns, frozenset({ONE, TWO}))
        interval.busy_ns = {ONE: int(busy.get("one", 0) * SECOND), TWO: int(busy.get("two", 0) * SECOND)}
        parts = tuple(Slot(Activity(sm_pct=pct), None, None, 0) for pct in slots)
        interval._observe_activity(Reading(GPU, activity=activity, slots=parts), 1.0, self.now_ns)
        self.now_ns += SECOND
        self.time.update(interval, 1.0, self.now_ns)

    def expected(self, busy: float = 1.0, **known: Fingerprint) -> dict[int, float]:
        """Expected time by pid."""
        fingerprints = {r: known[name] for r, name in ((ONE, "one"), (TWO, "two")) if name in known}
        strangers = [r for r in (ONE, TWO) if r not in fingerprints]
        times, _ = self.time.expected(fingerprints, strangers, busy, by_visibility=False)
        return {r.pid: time for r, time in times.items()}


def demanding(engine_s: float) -> Fingerprint:
    """A process that had the engine for this part of the time while alone."""
    fingerprint = Fingerprint()
    for _ in range(5):
        fingerprint.learn(Alone((0.9,) * 8, 1.0, engine_s, 100.0))
    return fingerprint


def test_samples_near_the_fair_share_are_pulled_to_it() -> None:
    """40 % and 60 % may be aliasing; 10 % and 90 % are rather not."""
    near, far = Engine(), Engine()
    for _ in range(20):
        near.second(one=0.4, two=0.6)
        far.second(one=0.1, two=0.9)

    assert 0.4 < near.expected()[1] < 0.5
    assert far.expected()[1] == pytest.approx(0.1, abs=0.03)


def test_times_of_strangers_add_up_to_the_busy_time() -> None:
    """All that the known process does not have."""
    engine = Engine()
    for _ in range(20):
        engine.second(one=0.5, two=0.3)

    times = engine.expected(0.8, one=demanding(0.4))

    assert times[1] + times[2] == pytest.approx(0.8)
    assert delayed(0.4, 0.8) < times[1] < 0.5


def test_a_pause_is_noticed_if_the_activity_changes() -> None:
    """After three seconds; if nothing changed, samples may alias, and it takes ten."""
    changed, same = Engine(), Engine()
    for _ in range(10):
        changed.second(one=0.5, two=0.5)
        same.second(one=0.5, two=0.5)
    for _ in range(4):
        changed.second(one=1.0, activity=LESS)
        same.second(one=1.0)

    assert changed.time.working == [ONE]
    assert same.time.working == [ONE, TWO]
    for _ in range(7):
        same.second(one=1.0)
    assert same.time.working == [ONE]


def test_a_change_of_load_starts_the_means_again() -> None:
    """A process works less from now on: after a few seconds the old share counts little."""
    engine = Engine()
    for _ in range(30):
        engine.second(one=0.8, two=0.2)
    for _ in range(6):
        engine.second(one=0.2, two=0.8)

    assert engine.expected()[1] < 0.4


def test_a_process_that_only_loaded_does_not_work() -> None:
    """It was sampled once; on a GPU that rests, it does not work unsampled."""
    engine = Engine()
    engine.second(one=0.1, activity=LESS)
    assert engine.time.working == [ONE]

    engine.second(activity=IDLE)

    assert engine.time.working == []


def test_slots_that_are_alike_mean_fair_time_slices() -> None:
    """Right after a change there are few samples; steady activity tells more than they do."""
    steady, unsteady = Engine(), Engine()
    for _ in range(2):
        steady.second(one=0.8, two=0.2, slots=(90.0, 90.3, 90.1, 90.2))
        unsteady.second(one=0.8, two=0.2, slots=(90.0, 80.0, 95.0, 85.0))

    known = demanding(1.0)

    assert 0.5 < steady.expected(one=known)[1] < unsteady.expected(one=known)[1]


@pytest.mark.parametrize(("alone", "shared"), [(0.15, 0.1), (0.68, 0.54), (1.0, 1.0)])
def test_others_delay_a_process_that_waits_for_its_host(alone: float, shared: float) -> None:
    """Not one that always has work: samples and the time slicer tell its time."""
    assert delayed(alone, 1.0) == pytest.approx(shared, abs=0.005)
    assert delayed(alone, alone) == alone


def test_known_processes_get_at_most_their_time_next_to_others() -> None:
    """That is their time alone, less the delay; unless the samples contradict it."""
    few, many = Engine(), Engine()
    few.second(one=0.25, two=0.75)
    for _ in range(60):
        many.second(one=0.6, two=0.4)
    known = {ONE: demanding(0.2), TWO: demanding(1.0)}

    assert few.time.of_known(known, 1.0)[ONE].time == pytest.approx(delayed(0.2, 1.0), abs=0.02)
    assert many.time.of_known(known, 1.0)[ONE].time > 0.55


def test_the_time_of_a_process_that_does_little_alone_is_more_certain() -> None:
    """Until samples prove that it does more."""
    few, many = Engine(), Engine()
    for _ in range(20):
        few.second(one=0.1, two=0.9)
        many.second(one=0.6, two=0.4)
    known = {ONE: demanding(0.2), TWO: demanding(1.0)}

    assert few.time.of_known(known, 1.0)[ONE].sd == LEAST_SD
    assert few.time.of_known(known, 1.0)[TWO].sd == SAMPLES_SD
    assert many.time.of_known(known, 1.0)[ONE].sd == SAMPLES_SD


def test_samples_of_known_processes_are_pulled_to_the_fair_share() -> None:
    """Two of the same workload cannot be told apart by activity."""
    engine = Engine()
    for _ in range(20):
        engine.second(one=0.4, two=0.6)

    times = engine.time.of_known({ONE: demanding(1.0), TWO: demanding(1.0)}, 1.0)

    assert 0.4 < times[ONE].time < 0.5 < times[TWO].time < 0.6


def test_rests_do_not_hide_a_process_that_works() -> None:
    """Next to one with gaps, it is sampled in some seconds only."""
    engine = Engine()
    for second in range(20):
        engine.second(one=0.9, two=0.1 if second % 3 == 0 else 0.0)
        engine.second(activity=IDLE)

    assert engine.time.working == [ONE, TWO]


def test_the_last_second_counts_after_a_change() -> None:
    """A process returns: its time is that of this second, not the mean with the pause before."""
    engine = Engine()
    for _ in range(12):
        engine.second(two=0.2, activity=LESS)
    engine.second(one=0.8, two=0.2)

    times = engine.time.of_known({ONE: demanding(1.0), TWO: demanding(0.3)}, 1.0)

    assert times[ONE].time > 0.7


def test_little_work_alone_does_not_limit_the_time_next_to_a_stranger() -> None:
    """Neither on a busy engine nor on one with idle time, if the samples contradict it."""
    engine = Engine()
    for _ in range(60):
        engine.second(one=0.5, two=0.4)

    assert engine.expected(0.9, one=demanding(0.1))[1] > 0.4
    assert engine.expected(1.0, one=demanding(0.1))[1] > 0.4


def test_idle_time_has_no_fair_share() -> None:
    """Twins that need a tenth and four tenths of the engine."""
    engine = Engine()
    for _ in range(60):
        engine.second(one=0.1, two=0.4)

    times = engine.time.of_known({ONE: demanding(0.6), TWO: demanding(0.6)}, 0.5)

    assert times[ONE].time < 0.15
