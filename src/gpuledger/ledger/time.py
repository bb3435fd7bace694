"""Busy time: how long each process had the compute engine, and how long each GPU was busy and in use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuledger.model import Accounting, Reading, Sample, Tick
from gpuledger.model.record import dataclass

SAMPLE_US = 200_000
"""The driver's sample period, approximately."""
LATE_NS = 1_000_000_000
"""Maximum delay of a sample after its process has exited."""
BUFFER_NS = 10_000_000_000
"""The driver's sample buffer covers this time; older samples are lost."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Compute-engine time on one GPU in one tick, by pid."""

    sampled_ns: dict[int, int]
    ended_ns: dict[int, int]
    """Processes that ended since the previous tick and were in no process list, from accounting mode."""
    since_ns: int
    """A row with the same pid that was last listed before this time belongs to an earlier process."""


@dataclass(slots=True)
class GpuTime:
    """How long a GPU was busy and in use."""

    busy_ns: int | None = None
    in_use: bool | None = None
    in_use_ns: int = 0


class TimeBook:
    """Adds up busy time; each driver sample counts once.

    Each reading requests the samples since the newest one of the previous reading. The driver returns the mean over
    that whole window for every process, regardless of the sample's timestamp.
    """

    def __init__(self, longest_ns: int = BUFFER_NS) -> None:
        self._longest_ns = longest_ns
        self._newest_us: dict[str, int] = {}
        self._deferred_ns: dict[str, int] = {}
        """Time since the last samples were read, by GPU."""
        self.gpus: dict[str, GpuTime] = {}

    def resume(self, gpus: dict[str, GpuTime]) -> None:
        """Start with the totals of a journal."""
        self.gpus = gpus

    def book(self, tick: Tick, in_use: Mapping[str, bool | None], elapsed_ns: int) -> dict[str, Busy | None]:
        """Busy time by GPU in this tick; None if the driver does not report utilization by process."""
        elapsed_ns = min(elapsed_ns, self._longest_ns)
        busy: dict[str, Busy | None] = {}
        for reading in tick.readings:
            if not reading.device.parent_uuid:
                uuid = reading.device.uuid
                busy[uuid] = self._processes(reading, tick.time_ns, elapsed_ns)
                self._gpu(reading, elapsed_ns, in_use=in_use.get(uuid))
        return busy

    def _processes(self, reading: Reading, now_ns: int, elapsed_ns: int) -> Busy | None:
        if not reading.up or reading.samples is None:
            return None
        if elapsed_ns:
            elapsed_ns += self._deferred_ns.pop(reading.device.uuid, 0)
        if reading.deferred:
            self._deferred_ns[reading.device.uuid] = elapsed_ns
            return Busy({}, {}, now_ns)
        window_us = self._window_us(reading.samples, reading.device.uuid, now_ns, elapsed_ns)
        ended_ns: dict[int, int] = {}
        for account in _ended(reading) if elapsed_ns else ():
            ended_ns.setdefault(account.pid, min(account.busy_ns, (account.gpu_pct or 0) * elapsed_ns // 100))
        return Busy(
            sampled_ns={s.pid: min(max(s.sm_pct, 0), 100) * window_us * 10 for s in reading.samples},
            ended_ns=ended_ns,
            since_ns=now_ns - 2 * elapsed_ns - LATE_NS,
        )

    def _window_us(self, samples: Sequence[Sample], uuid: str, now_ns: int, elapsed_ns: int) -> int:
        newest_us = max((sample.timestamp_us for sample in samples), default=0)
        if not newest_us:
            return 0
        earliest_us = (now_ns - elapsed_ns) // 1000 - SAMPLE_US
        latest_us = now_ns // 1000 + SAMPLE_US
        previous_us = self._newest_us.get(uuid, earliest_us)
        if previous_us > latest_us:  # the clock was set back
            previous_us = earliest_us
        window_us = min(newest_us, latest_us) - max(previous_us, earliest_us)
        self._newest_us[uuid] = newest_us
        return max(0, min(window_us, elapsed_ns // 1000 + SAMPLE_US, BUFFER_NS // 1000)) if elapsed_ns else 0

    def _gpu(self, reading: Reading, elapsed_ns: int, *, in_use: bool | None) -> None:
        gpu = self.gpus.setdefault(reading.device.uuid, GpuTime())
        if reading.up and reading.utilization_pct is not None:
            gpu.busy_ns = (gpu.busy_ns or 0) + min(reading.utilization_pct, 100) * elapsed_ns // 100
        if gpu.in_use and in_use is not None:  # an interval counts by the state at its beginning
            gpu.in_use_ns += elapsed_ns
        gpu.in_use = in_use


def _ended(reading: Reading) -> Iterator[Accounting]:
    """Accounts of processes that ended since the previous reading and are in no process list."""
    listed = {resident.pid for resident in reading.residents or ()}
    return (account for account in reading.accounting if not account.running and account.pid not in listed)
