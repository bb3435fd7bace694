"""The observations of one GPU in one interval: the time since its energy was last booked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuledger.ledger.rows import Row, Work
from gpuledger.model import Activity, Labelled, Reading, Slot
from gpuledger.shares.units import activities

QUIET_NS = 50_000_000
"""An interval shorter than this is not used to learn the power of a GPU at rest."""


class ObservedSlot(NamedTuple):
    """A part of an interval."""

    slot: Slot
    clock: float
    """SM clock relative to its highest value."""
    end_ns: int


def _slot_of(reading: Reading) -> Slot:
    """A whole tick as one slot."""
    if reading.activity is not None:
        return Slot(reading.activity)
    utilization_pct, memory_pct = reading.utilization_pct, reading.memory_utilization_pct
    return Slot(Activity(), utilization_pct=utilization_pct, memory_utilization_pct=memory_pct)


@dataclass(slots=True)
class Interval:
    """The observations of one GPU since its energy was last booked."""

    start_ns: int
    at_start: frozenset[Row] | None
    """The processes on the GPU at the start of the interval; None if unknown."""
    power_mw: int | None = None
    """Power at the start of the interval."""
    rows: set[Row] = field(default_factory=set)
    """Every process that was on the GPU during the interval, however briefly."""
    energy_mj: int = 0
    restarted: bool = False
    """The exporter restarted within the interval and resumed from its journal."""
    failed: bool = False
    """The GPU or its process list could not be read in at least one tick."""
    has_samples: bool = False
    """The driver reports utilization by process."""
    busy_ns: dict[Row, int] = field(default_factory=dict)
    unlisted: set[Row] = field(default_factory=set)
    """Processes that worked but were in no process list."""
    hidden: bool = False
    """Used memory shows that an unlisted process is on the GPU."""
    mig_busy: dict[str, int] = field(default_factory=dict)
    """SM activity x multiprocessors x time, by MIG instance."""
    mig_activity: dict[str, list[float]] = field(default_factory=dict)
    """Activity of each unit x seconds, by MIG instance."""
    mig_engine_s: dict[str, float] = field(default_factory=dict)
    """Time in which a kernel ran, by MIG instance."""
    mig_sizes: dict[str, int] = field(default_factory=dict)
    """Multiprocessors, by MIG instance."""
    mig_clock: float = 1.0
    """SM clock of the GPU in the last tick, relative to its highest value."""
    gpu_size: int | None = None
    """Multiprocessors of the whole GPU."""
    mig_missing: set[str] = field(default_factory=set)
    """MIG instances that did not report their activity in at least one tick."""
    mig_held: bool = False
    """Whether the activity of an instance is from an earlier tick; then nothing can be learned from it."""
    mig_outdated: bool = False
    """Whether the next tick will have the activity that the last one lacks."""
    mig_measured_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the activity, by MIG instance."""
    activity_measured_s: float = 0.0
    """How long the activity of the GPU was measured."""
    slots: list[ObservedSlot] = field(default_factory=list)
    """Parts of the interval of about 0.2 s."""
    sampled_ns: dict[int, int] = field(default_factory=dict)
    """Time of the last sample of each process, by pid."""

    def __post_init__(self) -> None:
        self.rows |= self.at_start or frozenset()

    def observe(
        self,
        reading: Reading,
        migs: Iterable[Reading],
        present: frozenset[Row] | None,
        work: Work,
        *,
        hidden: bool,
        now_ns: int,
        time_ns: int,
        elapsed_ns: int,
    ) -> None:
        """Add the observations of one tick; `time_ns` is `now_ns` on the clock of the driver's samples."""
        if present is None:
            self.failed = True
        else:
            self.rows |= present
        self.has_samples |= work.has_samples
        self.rows |= work.unlisted
        self.unlisted = (self.unlisted | work.unlisted) - (present or frozenset())
        self.hidden |= hidden
        for row, busy_ns in work.busy_ns.items():
            self.busy_ns[row] = self.busy_ns.get(row, 0) + busy_ns
        self.mig_clock, self.gpu_size = relative_clocks(reading, [None])[0], reading.device.multiprocessors
        self.mig_outdated = False
        for mig in migs:
            self._observe_mig(mig, self.mig_clock, elapsed_ns)
        if self.restarted and self._names_other_process(reading):
            self.at_start = None
        self._observe_activity(reading, elapsed_ns / 1e9, now_ns)
        if self.slots:
            self.sampled_ns |= {
                sample.pid: sample.timestamp_us * 1000 - time_ns + now_ns
                for sample in reading.samples or ()
                if sample.sm_pct
            }

    def _observe_activity(self, reading: Reading, seconds: float, now_ns: int) -> None:
        slots = reading.slots or (_slot_of(reading),)
        clocks = relative_clocks(reading, [slot.sm_clock_mhz for slot in slots])
        self.slots += [
            ObservedSlot(slot, clock, now_ns - slot.ended_ms * 1_000_000)
            for slot, clock in zip(slots, clocks, strict=True)
        ]
        if reading.activity is not None:
            self.activity_measured_s += max(0.0, seconds)

    def _observe_mig(self, mig: Reading, clock: float, elapsed_ns: int) -> None:
        uuid, multiprocessors = mig.device.uuid, mig.device.multiprocessors
        units = activities(mig.activity, clock)
        if mig.activity is None or mig.activity.sm_pct is None or units is None or not multiprocessors:
            self.mig_missing.add(uuid)
            return
        self.mig_held |= mig.activity_held
        if mig.activity_outdated:
            self.mig_outdated = True
            return
        busy = int(max(0.0, mig.activity.sm_pct) * 1000) * multiprocessors * (elapsed_ns // 1_000_000 + 1)
        self.mig_busy[uuid] = self.mig_busy.get(uuid, 0) + busy
        self.mig_sizes[uuid] = multiprocessors
        seconds = elapsed_ns / 1e9
        self.mig_measured_s[uuid] = self.mig_measured_s.get(uuid, 0.0) + seconds
        sums = self.mig_activity.get(uuid) or [0.0] * len(units)
        self.mig_activity[uuid] = [old + new * seconds for old, new in zip(sums, units, strict=True)]
        engine_pct = mig.activity.graphics_pct or mig.activity.sm_pct
        self.mig_engine_s[uuid] = self.mig_engine_s.get(uuid, 0.0) + engine_pct / 100 * seconds

    def _names_other_process(self, reading: Reading) -> bool:
        """Whether samples or accounting, which cover the recent past, name a process outside the interval."""
        pids = {sample.pid for sample in reading.samples or ()} | {account.pid for account in reading.accounting}
        return not pids <= {row.pid for row in self.rows}

    def forget_processes(self) -> None:
        """Drop the processes of an interval that is too long to be split; this bounds its memory."""
        self.at_start, self.failed = None, True
        self.rows, self.busy_ns, self.unlisted = set(), {}, set()
        self.slots, self.sampled_ns = [], {}

    def has_worked(self, present: frozenset[Row] | None) -> bool:
        """Whether a process worked while none came or left."""
        return (
            not self.failed
            and not self.restarted
            and bool(self.rows)
            and self.at_start == present
            and (any(self.busy_ns.values()) or any(self.mig_busy.values()))
        )

    def is_quiet(self, reading: Reading, present: frozenset[Row] | None, elapsed_ns: int) -> bool:
        """Whether no process came, left or worked, so that the interval's power is that of a GPU at rest."""
        return (
            not self.failed
            and not self.restarted
            and present is not None
            and self.at_start == present
            and len(self.rows) == len(present)
            and elapsed_ns >= QUIET_NS
            and reading.utilization_pct in (0, None)
            and not self.hidden
            and not any(self.busy_ns.values())
            and not any(self.mig_busy.values())
            and (self.has_samples or bool(self.mig_busy) or not present)
        )


def relative_clocks(reading: Reading, clocks_mhz: Iterable[int | None]) -> list[float]:
    """SM clocks relative to the highest one; that of the reading in place of an unknown one, and 1 if it is unknown."""
    highest_mhz, present_mhz = _sm_clock(reading.max_clocks_mhz), _sm_clock(reading.clocks_mhz)
    if not highest_mhz:
        return [1.0 for _ in clocks_mhz]
    return [(mhz or present_mhz or highest_mhz) / highest_mhz for mhz in clocks_mhz]


def _sm_clock(clocks_mhz: Labelled) -> int | None:
    for name, mhz in clocks_mhz:
        if name == "sm":
            return mhz
    return None
