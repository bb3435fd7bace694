"""The loop: what fails costs its part, what is late is counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from gpuledger.loop import Loop
from gpuledger.model import DcgmHealth, Device, Driver, Facts, Health, Reading, Resident, Tick
from gpuledger.model.problem import Problem

TICK = Tick(
    time_ns=10**18,
    driver=Driver(up=True),
    readings=(Reading(Device(0, "GPU-0"), residents=(Resident(7, "compute"), Resident(8, "compute"))),),
)


class Given:
    """A source that gives what it is told to, and may take its time."""

    def __init__(self, read: Callable[[], Tick] = lambda: TICK) -> None:
        self._read = read
        self.closed = False

    def read(self) -> Tick:
        """What was given."""
        return self._read()

    def errors(self) -> Mapping[tuple[str, str], int]:
        """Two, in no order."""
        return {("nvmlB", "Timeout"): 1, ("nvmlA", "Unknown"): 2}

    def problems(self) -> tuple[Problem, ...]:
        """The same, with a fix."""
        return (Problem("nvmlA failed 2 times: Unknown", "check `nvidia-smi`", "nvml"),)

    def close(self) -> None:
        """Remember it."""
        self.closed = True


class Clock:
    """Time that passes only when a test advances it, and the event a loop waits on."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []
        self._set = False

    def monotonic(self) -> float:
        """Now."""
        return self.now

    def wait(self, timeout: float) -> bool:
        """Let the time pass."""
        self.waits.append(timeout)
        self.now += timeout
        return self._set

    def is_set(self) -> bool:
        """Whether the loop is to stop."""
        return self._set

    def set(self) -> None:
        """Stop the loop."""
        self._set = True


def facts_of(tick: Tick) -> dict[int, Facts]:
    """Facts of every listed process."""
    return {pid: Facts(pid, pid * 10, 0, f"p{pid}") for pid in tick.resident_pids()}


def timed(durations_s: list[float]) -> tuple[Loop, Clock]:
    """A loop of 1 s ticks whose readings take so long each, and that stops after the last."""
    clock = Clock()
    left = list(durations_s)

    def read() -> Tick:
        clock.now += left.pop(0)
        if not left:
            clock.set()
        return TICK

    loop = Loop(Given(read), None, interval_s=1.0, monotonic=clock.monotonic)
    loop._stop = clock  # type: ignore[assignment]  # as much of an event as the loop needs
    return loop, clock


def test_a_tick_goes_through_all_stages() -> None:
    """Read, resolved, booked, with the loop's health: and the same tick is there for whoever asks."""
    loop = Loop(Given(), facts_of, interval_s=0.5, health=lambda health: replace(health, open_fds=3))

    tick = loop.once()

    assert tick is loop.tick
    assert [(use.resident.pid, use.facts and use.facts.name) for use in tick.processes] == [(7, "p7"), (8, "p8")]
    assert [(stage.name, stage.success) for stage in tick.health.stages] == [
        ("read", True), ("resolve", True), ("book", True),
    ]  # fmt: skip
    assert tick.health.interval_ns == 500_000_000
    assert tick.health.ticks == 1
    assert tick.health.open_fds == 3
    assert [problem.kind for problem in tick.health.driver_problems] == ["nvml"]
    assert tick.health.driver_errors == ((("nvmlA", "Unknown"), 2), (("nvmlB", "Timeout"), 1))


def test_a_finished_tick_is_published() -> None:
    """Whole, and when it can be asked for already."""
    seen: list[tuple[Tick, Tick | None]] = []
    loop = Loop(Given(), facts_of, interval_s=1, published=lambda tick: seen.append((tick, loop.tick)))

    tick = loop.once()

    assert seen == [(tick, tick)]
    assert tick.health.ticks == 1


class Beside:
    """A collector that adds what it is told to."""

    name = "beside"

    def __init__(self, attach: Callable[[Tick], Tick]) -> None:
        self.attach = attach
        self.closed = False
        self.has_answer = False

    def answered(self) -> bool:
        """When told so."""
        return self.has_answer

    def close(self) -> None:
        """Remember it."""
        self.closed = True


def test_a_collector_adds_to_written_books_and_is_closed() -> None:
    """It is a stage of its own after the books, so that none can depend on it."""
    beside = Beside(lambda tick: replace(tick, dcgm=DcgmHealth(up=len(tick.processes) == 2)))
    loop = Loop(Given(), facts_of, interval_s=1, collectors=[beside])

    tick = loop.once()
    loop.stop()

    assert tick.dcgm == DcgmHealth(up=True)
    assert not loop.has_answers()
    beside.has_answer = True
    assert loop.has_answers()
    assert [stage.name for stage in tick.health.stages] == ["read", "resolve", "book", "beside"]
    assert beside.closed


def test_a_collector_that_fails_costs_its_part() -> None:
    """The books are shown as they are."""
    loop = Loop(Given(), facts_of, interval_s=1, collectors=[Beside(lambda _: 1 / 0)])  # type: ignore[arg-type,return-value]

    tick = loop.once()

    assert len(tick.processes) == 2
    assert [(stage.name, stage.success) for stage in tick.health.stages][-2:] == [("book", True), ("beside", False)]


def test_a_driver_that_is_down_is_a_failed_read_stage() -> None:
    """It is no exception, and the tick is published."""
    loop = Loop(Given(lambda: Tick(1, Driver(up=False, problem=Problem("gone")))), facts_of, interval_s=1)

    assert next((stage.name, stage.success) for stage in loop.once().health.stages) == ("read", False)


def test_a_recording_keeps_the_facts_it_brings() -> None:
    """Without a reader of facts those of the tick stay."""
    brought = {7: Facts(7, 1, 2, "old")}
    loop = Loop(Given(lambda: replace(TICK, facts=brought)), None, interval_s=1)

    assert loop.once().processes[0].facts == brought[7]


def test_a_stage_that_raises_costs_its_part_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """The numbers stay, the names are missing, and there is one line for its beginning and one for its end."""
    caplog.set_level(logging.INFO)
    broken = [True]

    def facts(tick: Tick) -> dict[int, Facts]:
        if broken[0]:
            raise RuntimeError("no /proc\nhere")
        return facts_of(tick)

    loop = Loop(Given(), facts, interval_s=1)
    for _ in range(5):
        tick = loop.once()
        assert [(use.resident.pid, use.facts) for use in tick.processes] == [(7, None), (8, None)]
        assert [stage.success for stage in tick.health.stages] == [True, False, True]
    broken[0] = False
    assert loop.once().processes[0].facts is not None

    assert caplog.messages == ["stage resolve failed: RuntimeError: no /proc\nhere", "stage resolve succeeds again"]


def test_a_source_that_raises_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """The last tick stays and grows old, which /healthz tells; the log says it once, and when it is over."""
    caplog.set_level(logging.INFO)
    clock = Clock()
    outcomes: Iterator[Tick | Exception] = iter([TICK, ValueError("bug"), ValueError("bug"), ValueError("bug"), TICK])

    def read() -> Tick:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            assert loop.tick is not None
            ages.append(loop.age_s())
            raise outcome
        if loop.tick is not None:
            clock.set()
        return outcome

    ages: list[float | None] = []
    loop = Loop(Given(read), None, interval_s=1.0, monotonic=clock.monotonic)
    loop._stop = clock  # type: ignore[assignment]
    loop.run()

    assert ages == [1.0, 2.0, 3.0]
    assert caplog.messages == ["tick failed: ValueError: bug", "ticks succeed again"]


def test_health_that_raises_is_survived(caplog: pytest.LogCaptureFixture) -> None:
    """A bug in the measuring of ourselves is said, and the loop goes on."""
    clock = Clock()
    calls = []

    def health(_: Health) -> Health:
        calls.append(1)
        if len(calls) == 3:
            clock.set()
        raise OSError("statm")

    loop = Loop(Given(), None, interval_s=1, health=health, monotonic=clock.monotonic)
    loop._stop = clock  # type: ignore[assignment]
    loop.run()

    assert len(calls) == 3
    assert caplog.messages == ["tick failed: OSError: statm"]


def test_ticks_come_at_multiples_of_the_interval() -> None:
    """What a tick takes is taken from the wait after it: no drift."""
    loop, clock = timed([0.25, 0.5, 0.0, 0.75])

    loop.run()

    assert clock.waits == [0.75, 0.5, 1.0, 0.25]
    assert loop.tick is not None
    assert loop.tick.health.missed_ticks == 0


@pytest.mark.parametrize(
    ("took_s", "missed", "wait_s"), [(1.0, 0, 0.0), (1.5, 1, 0.5), (2.0, 1, 0.0), (10.25, 10, 0.75)]
)
def test_ticks_that_fall_out_are_counted(took_s: float, missed: int, wait_s: float) -> None:
    """A slow reading does not make a burst of ticks after it; the next comes when it is due, the others are counted."""
    loop, clock = timed([took_s, 0.0])

    loop.run()

    assert clock.waits[0] == pytest.approx(wait_s)
    assert loop.tick is not None
    assert loop.tick.health.missed_ticks == missed


def test_age_is_unknown_before_the_first_tick() -> None:
    """And afterwards it is the time since the tick was published."""
    clock = Clock()
    loop = Loop(Given(), None, interval_s=1, monotonic=clock.monotonic)

    assert loop.age_s() is None
    loop.once()
    clock.now += 2.5
    assert loop.age_s() == 2.5


def test_stop_ends_a_waiting_loop_and_closes_the_source() -> None:
    """Even with an hour to the next tick."""
    source = Given()
    loop = Loop(source, None, interval_s=3600)
    thread = threading.Thread(target=loop.run)
    thread.start()

    loop.stop()

    thread.join(5)
    assert not thread.is_alive()
    assert source.closed
