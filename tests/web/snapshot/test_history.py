"""The last hour: times, means, owners and memory."""

from __future__ import annotations

import json
import threading
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.books import Books
from gpuledger.model import ContainerUse, Device, Owner, Reading, Tick
from gpuledger.web.snapshot.codec import encode
from gpuledger.web.snapshot.history import MAX_GPUS, MAX_OWNERS, History, Ring
from tests.builders import GPU, World

MOMENTS = st.lists(
    st.dictionaries(st.sampled_from("abcd"), st.integers(-100, 100) | st.none(), max_size=4), max_size=40
)


def past_of(history: History) -> Any:
    """The history as the JSON API serves it."""
    return json.loads(encode(history.past()))


class Past:
    """A world whose ticks go through the books into a history."""

    def __init__(self, interval_s: float = 1.0, **names: str) -> None:
        self.world = World(containers={int(pid[1:]): name for pid, name in names.items()})
        self.books = Books()
        self.interval_s = interval_s
        self.history = History(interval_s)

    def pass_by(self, ticks: int, *pids: int, mj: int = 0, **more: object) -> Tick:
        """Add equal ticks; returns the last one."""
        for _ in range(ticks):
            tick = self.world.tick(*pids, mj=mj, after_s=self.interval_s, **more)  # type: ignore[arg-type]
            tick = self.books.book(tick)
            self.history.add(tick)
        return tick


@pytest.mark.parametrize(("interval_s", "recent", "older"), [(0.5, 600, 299), (1.0, 600, 299), (60.0, 10, 49)])
def test_always_an_hour(interval_s: float, recent: int, older: int) -> None:
    """Ten minutes with a point a second at most, fewer where ticks are slower; before that a tenth of them."""
    past = Past(interval_s)
    past.pass_by(int(4000 / interval_s), utilization_pct=50)

    gpus = past_of(past.history)["gpus"]
    times = gpus["times"]
    assert gpus["step_seconds"] == max(1.0, interval_s)
    assert sum(time > times[-1] - 600 for time in times) == pytest.approx(recent, abs=1)
    assert sum(time <= times[-1] - 600 for time in times) == pytest.approx(older, abs=2)
    assert times == sorted(set(times))
    assert times[-1] - times[0] == pytest.approx(3600, rel=0.05)
    assert gpus["rows"][0]["utilization_ratio"] == [0.5] * len(times)


def test_older_points_are_means() -> None:
    """A second at 500 W and four at 0 W are 100 W; the five seconds without a value do not count."""
    past = Past()
    for _ in range(70):
        past.pass_by(1, power_mw=500_000)
        past.pass_by(4, power_mw=0)
        past.pass_by(5, power_mw=None)

    gpus = past_of(past.history)["gpus"]
    older = [watts for time, watts in zip(gpus["times"], gpus["rows"][0]["power_watts"], strict=True)
             if time <= gpus["times"][-1] - 600]  # fmt: skip
    assert older == [100.0] * len(older)
    assert len(older) == 10


def test_an_owner_that_left_is_in_the_older_points() -> None:
    """For an hour; then its row is dropped."""
    past = Past(p7="c7")
    past.pass_by(60, 7, mj=100_000, work={7: 100})
    past.pass_by(1000)

    (row,) = past_of(past.history)["owners"]["rows"]
    assert row["owner"] == "c7"
    assert any(row["watts"])
    assert not any(row["watts"][-100:])
    past.pass_by(3300)
    assert past_of(past.history)["owners"]["rows"] == []


def test_power_adds_up() -> None:
    """Owners and what has no owner are the power of the GPU; what was used before the start is no power."""
    past = Past(p7="c7")
    past.pass_by(1, mj=10**9)
    past.pass_by(20, mj=40_000)
    past.pass_by(40, 7, mj=100_000, work={7: 100})

    owners = past_of(past.history)["owners"]
    unowned, (row,) = owners["unowned_watts"], owners["rows"]
    assert len(unowned) == len(owners["times"])
    assert unowned[0] is None
    assert unowned[1:4] == [pytest.approx(40, rel=0.15)] * 3
    assert row["watts"][-4:] == [pytest.approx(100, rel=0.15)] * 4
    assert unowned[-4:] == [0.0] * 4


def test_memory_is_bounded() -> None:
    """Full, it takes less than six megabytes; GPUs and owners that come and go do not add to that."""
    history, tick = History(1.0), World().tick()

    def pass_by(seconds: range, generation: str) -> int:
        """Traced bytes after ticks with the largest number of GPUs and owners."""
        owners = [Owner(container=f"{generation}{n}") for n in range(MAX_OWNERS)]
        containers = tuple(ContainerUse(GPU, owner, 1, 1 << 30, None) for owner in owners)
        devices = [Device(n, f"{generation}{n}") for n in range(MAX_GPUS)]
        readings = tuple(Reading(device, power_mw=1) for device in devices)
        for second in seconds:
            history.add(replace(tick, time_ns=second * 10**9, readings=readings, containers=containers))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    first = pass_by(range(100, 140), "a")
    second = pass_by(range(140, 180), "b")
    tracemalloc.stop()

    assert 4 << 20 < first < 6 << 20
    assert second == pytest.approx(first, rel=0.05)


def test_numbers_of_a_gpu() -> None:
    """In base units, null for unknown values; a GPU that is down has none, and is dropped after an hour."""
    past = Past()
    past.pass_by(1, utilization_pct=50, power_mw=290_500, temperatures_c=(("memory", 70), ("gpu", 60)))
    past.pass_by(1, memory_used_bytes=3 << 30)
    past.pass_by(1, up=False, power_mw=1)

    (row,) = past_of(past.history)["gpus"]["rows"]
    assert row == {
        "uuid": GPU.uuid,
        "utilization_ratio": [0.5, None, None],
        "memory_used_bytes": [None, 3 << 30, None],
        "power_watts": [290.5, None, None],
        "temperature_celsius": [60.0, None, None],
    }
    past.pass_by(3700, up=False)
    assert past_of(past.history)["gpus"]["rows"] == []


def test_owners_every_five_seconds() -> None:
    """100 W of a single process are its container's 100 W; the first point has no power, because none is before it."""
    past = Past(p7="c7")
    past.pass_by(41, 7, mj=100_000, work={7: 100})

    owners = past_of(past.history)["owners"]
    (row,) = owners["rows"]
    assert owners["step_seconds"] == 5.0
    assert row["owner"] == "c7"
    assert row["watts"][0] is None
    assert row["watts"][1:] == [pytest.approx(100, rel=0.2)] * 8
    assert row["memory_bytes"] == [None] * 9, "the driver does not report it"


def test_power_is_not_known_while_a_gpu_is_down() -> None:
    """Null, not 0."""
    past = Past(p7="c7")
    past.pass_by(21, 7, mj=100_000, work={7: 100})
    past.pass_by(10, up=False, residents=None)

    (row,) = past_of(past.history)["owners"]["rows"]
    assert row["watts"][1:] == [*[pytest.approx(100, rel=0.2)] * 4, None, None]


def test_processes_without_a_container_are_owners_too() -> None:
    """Processes of the same owner are added up; an exited process holds no memory."""
    past = Past()
    tick = past.pass_by(1, 7, 8)
    held = tuple(replace(use, resident=replace(use.resident, memory_bytes=100)) for use in tick.processes)
    history = History(1.0)
    history.add(replace(tick, processes=held))
    left = (held[0], replace(held[1], active=False))
    history.add(replace(tick, processes=left, time_ns=tick.time_ns + 10**10))

    (row,) = past_of(history)["owners"]["rows"]
    assert (row["owner"], row["memory_bytes"]) == ("unknown", [200, 100])


def test_the_tick_to_take_power_from() -> None:
    """None at first; then six to twelve seconds back."""
    past = Past(0.5)
    assert past.history.before() is None
    ages = []
    for _ in range(40):
        tick = past.pass_by(1)
        before = past.history.before()
        assert before is not None
        ages.append((tick.time_ns - before.time_ns) / 1e9)

    assert (min(ages[12:]), max(ages)) == (6.0, 11.5)


def test_a_clock_that_is_set_back() -> None:
    """Earlier points would be out of order, so they are dropped."""
    past = Past()
    past.pass_by(100, 7, utilization_pct=10)
    past.world.now_ns -= 3600 * 10**9
    tick = past.pass_by(1, 7, utilization_pct=20)

    picture = past_of(past.history)
    assert [row["utilization_ratio"] for row in picture["gpus"]["rows"]] == [[0.2]]
    assert len(picture["owners"]["times"]) == 1
    assert past.history.before() is tick


def test_reads_while_ticks_are_added() -> None:
    """All columns have as many values as there are times, at any moment."""
    past = Past()
    done = threading.Event()
    torn: list[object] = []

    def read() -> None:
        while not done.is_set():
            gpus = past_of(past.history)["gpus"]
            torn.extend(row for row in gpus["rows"] if len(row["power_watts"]) != len(gpus["times"]))

    reader = threading.Thread(target=read)
    reader.start()
    past.pass_by(300, power_mw=1)
    done.set()
    reader.join()

    assert torn == []


@given(MOMENTS, st.integers(1, 9))
def test_a_ring_holds_the_last_times(moments: list[dict[str, int | None]], points: int) -> None:
    """Every value of the last times, null where there was none, and no row without a value."""
    ring = Ring(points, 1, 4)
    for time, moment in enumerate(moments):
        ring.add(time, {name: (value,) for name, value in moment.items()})

    kept = moments[-points:]
    assert ring.times() == list(range(len(moments)))[-points:]
    names = {name for moment in kept for name in moment}
    assert ring.rows() == {name: [[moment.get(name) for moment in kept]] for name in names}


def test_a_new_row_evicts_the_row_without_values_for_the_longest_time() -> None:
    """Of two rows; while both have values, a third one is ignored."""
    ring = Ring(5, 1, 2)
    ring.add(1, {"a": [1], "b": [1]})
    ring.add(2, {"a": [2], "b": [2], "c": [2]})
    assert ring.rows().keys() == {"a", "b"}
    ring.add(3, {"a": [3]})
    ring.add(4, {"c": [4]})

    assert ring.rows() == {"a": [[1, 2, 3, None]], "c": [[None, None, None, 4]]}


def test_means_replace_old_points() -> None:
    """Two recent points, then means of two; the oldest mean is dropped, and unknown values do not count."""
    ring = Ring(2, 1, 2, older=2, per_older=2)
    for time, value in enumerate([1, 3, None, 5, None, None, 7, 8, 9]):
        ring.add(time, {"a": [value]})

    assert (ring.times(), ring.rows()) == ([3, 5, 6, 7, 8], {"a": [[5, None, 7, 8, 9]]})


def test_a_row_has_all_columns() -> None:
    """A missing value is an error of the caller."""
    with pytest.raises(ValueError, match="zip"):
        Ring(2, 2, 2).add(1, {"a": [1]})
