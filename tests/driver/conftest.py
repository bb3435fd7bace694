"""A source on the fake driver, with clocks the test turns by hand."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuledger.driver.source import NvmlSource
from gpuledger.model import Reading, Tick
from tests import fakedriver
from tests.fakedriver import Gpu, Process, Scenario

SHORT_S = 1.5


class Bench:
    """The fake driver and a source that reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.scenario = Scenario(gpus=[Gpu(index=0)])
        self.monotonic_s = 1000.0
        self.slot_s = 0.2
        self.timeout_s = 10.0
        """Long, because the host may be busy; `SHORT_S` where a call hangs."""
        self._source: NvmlSource | None = None
        self.write()
        fakedriver.load(path)

    @property
    def source(self) -> NvmlSource:
        """Made when first asked for, so that the scenario can be set before."""
        if self._source is None:
            self._source = NvmlSource(timeout_s=self.timeout_s, slot_s=self.slot_s, monotonic=self._monotonic)
        return self._source

    def restart(self) -> None:
        """Make another source when it is next asked for; the old one is closed."""
        self._source = None

    def _monotonic(self) -> float:
        # Turned by hand for backoff, but running as well, so that deadlines within a tick pass.
        return self.monotonic_s + time.monotonic()

    def write(self, *extra: str) -> None:
        """Put the scenario in place, with these lines and no others beside it."""
        self.scenario.extra = list(extra)
        self.scenario.write(self.path)

    def read(self) -> Tick:
        """One tick."""
        return self.source.read()

    def reading(self, ticks: int = 1) -> Reading:
        """GPU 0 in the last of some ticks."""
        for _ in range(ticks):
            tick = self.read()
        return tick.readings[0]

    def later(self, seconds: float) -> None:
        """Let time pass for the backoff."""
        self.monotonic_s += seconds

    def until(self, condition: Callable[[Tick], bool], tries: int = 60) -> Tick:
        """Tick, with time passing, until it holds."""
        for _ in range(tries):
            tick = self.read()
            if condition(tick):
                return tick
            self.later(31)
            time.sleep(0.02)
        raise AssertionError(f"it never held; the last tick was {tick}")

    def close(self) -> None:
        """End the source, after what hangs was let go."""
        self.write()
        if self._source is not None:
            self._source.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """One GPU, no process."""
    bench = Bench(tmp_path / "scenario")
    yield bench
    bench.close()


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: Bench) -> Callable[[], Counter[str]]:
    """Ends the source and returns the number of calls since the start of the test, by function."""
    path = tmp_path / "calls"
    monkeypatch.setenv("FAKE_NVML_CALLS", str(path))

    def counted() -> Counter[str]:
        rows = (line.split() for line in path.read_text().splitlines())
        return Counter({name: int(number) for name, number, _ in rows})

    bench.source.read()
    bench.source.close()  # nvmlShutdown writes the file
    before = counted()
    bench.restart()

    def since() -> Counter[str]:
        bench.source.close()
        return counted() - before

    return since


def process(pid: int, **words: object) -> Process:
    """A process on GPU 0."""
    return Process(gpu=0, pid=pid, **words)  # type: ignore[arg-type]  # the words of Process
