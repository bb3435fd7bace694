"""Time on the compute engine, expected from samples, fair time slices and demand."""

from __future__ import annotations

import pytest

from gpuledger.books.engine import EngineTime
from gpuledger.books.fingerprint import Alone, Fingerprint
from gpuledger.books.interval import Interval
from gpuledger.books.rows import Row
from gpuledger.model import Activity, Reading, Resident
from tests.books.worlds import GPU

SECOND = 1_000_000_000
BUSY, LESS = Activity(sm_pct=90.0), Activity(sm_pct=50.0)


def row(pid: int) -> Row:
    """A process."""
    return Row(GPU, GPU.uuid, pid, 1, pid, Resident(pid, "compute"))


ONE, TWO = row(1), row(2)


class Engine:
    """Two processes on an engine, second by second."""

    def __init__(self) -> None:
        self.time = EngineTime()
        self.now_ns = 0

    def second(self, *, activity: Activity = BUSY, **busy: float) -> None:
        """Samples of `one` and `two`."""
        interval = Interval(self.now_ns, frozenset({ONE, TWO}))
        interval.busy_ns = {ONE: int(busy.get("one", 0) * SECOND), TWO: int(busy.get("two", 0) * SECOND)}
        interval._observe_activity(Reading(GPU, activity=activity), 1.0, self.now_ns)
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
    assert times[1] == pytest.approx(0.4, abs=0.05)  # the engine has idle time, so the demand is met


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
