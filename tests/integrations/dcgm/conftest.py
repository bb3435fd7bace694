"""A collector on the fake DCGM, run round by round, with a clock that the test sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuledger.integrations.dcgm.collector import DcgmCollector
from gpuledger.model import DcgmHealth, DcgmStats, Device, Driver, ProcessUse, Reading, Resident, Tick
from tests import fakedcgm

GPU = Device(index=0, uuid="GPU-a")
OTHER = Device(index=1, uuid="GPU-b")


def use(pid: int, device: Device = GPU) -> ProcessUse:
    """A process on a device."""
    return ProcessUse(device, Resident(pid, "compute"))


def tick(*uses: ProcessUse, readings: tuple[Reading, ...] = ()) -> Tick:
    """A booked tick."""
    return Tick(time_ns=0, driver=Driver(up=True), processes=uses, readings=readings)


class Bench:
    """The fake DCGM and a collector that reads it."""

    def __init__(self, folder: Path, major: int) -> None:
        self.major = major
        self.scenario = folder / "dcgm"
        self._calls = folder / "calls"
        self.monotonic_s = 1000.0
        self.collector = self.make()
        self.write()

    def make(self, **words: object) -> DcgmCollector:
        """The collector, instead of the one before."""
        options = {"library": str(fakedcgm.build(self.major)), "monotonic": lambda: self.monotonic_s} | words
        self.collector = DcgmCollector(**options)  # type: ignore[arg-type]  # the words of DcgmCollector
        return self.collector

    def write(self, *lines: str) -> None:
        """Put two GPUs and these lines in place."""
        fakedcgm.write(self.scenario, "gpu 0 GPU-a", "gpu 1 GPU-b", *lines)

    def calls(self, name: str = "") -> list[str]:
        """The calls so far, those of a name or all."""
        text = self._calls.read_text() if self._calls.exists() else ""
        return [line for line in text.splitlines() if line.startswith(name)]

    def ask(self, *uses: ProcessUse, readings: tuple[Reading, ...] = ()) -> Tick:
        """A tick with the statistics of its processes."""
        world = tick(*uses, readings=readings)
        self.collector.attach(world)
        self.collector.round()
        return self.collector.attach(world)

    def stats(self, *uses: ProcessUse) -> list[DcgmStats | None]:
        """The numbers of processes, after a round."""
        return [one.dcgm for one in self.ask(*uses).processes]

    def health(self, *uses: ProcessUse) -> DcgmHealth:
        """How DCGM is, after a round."""
        health = self.ask(*uses).dcgm
        assert health is not None
        return health

    def later(self, seconds: float = 31) -> None:
        """Let time pass for the backoff."""
        self.monotonic_s += seconds


@pytest.fixture(params=[4, 3], ids=["libdcgm.so.4", "libdcgm.so.3"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Two GPUs without processes, on DCGM 4 and on DCGM 3."""
    monkeypatch.setenv("FAKE_DCGM_SCENARIO", str(tmp_path / "dcgm"))
    monkeypatch.setenv("FAKE_DCGM_CALLS", str(tmp_path / "calls"))
    bench = Bench(tmp_path, request.param)
    yield bench
    bench.write()
    bench.collector.close()
    bench.collector.leave()
