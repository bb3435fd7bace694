"""One period as a whole, and its rows: processes and containers on devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuledger.model.owners import NO_OWNERS, NOBODY, Facts, Owner, Owners
from gpuledger.model.readings import (
    Account,
    Accounting,
    Device,
    Driver,
    Labelled,
    MemoryAccount,
    Reading,
    Resident,
    Sample,
)
from gpuledger.problem import Problem


@dataclass(frozen=True, slots=True)
class DcgmStats:
    """What DCGM says of a process: numbers of the whole GPU while the process was on it. No book may read them."""

    energy_mj: int | None = None
    """Of the whole GPU; every process on it is told the same."""
    sm_pct: int | None = None
    memory_pct: int | None = None
    max_memory_bytes: int | None = None
    """The process's own, from the driver's accounting."""
    other_processes: int | None = None
    """How many others were on the GPU in that time."""
    start_us: int | None = None
    """Unix time from which on it counts."""


@dataclass(frozen=True, slots=True)
class DcgmHealth:
    """How DCGM is, where it is asked."""

    up: bool
    problem: Problem | None = None
    version: str = ""
    library: str = ""
    mode: str = ""
    """`embedded` in this process, or `hostengine`."""

    @property
    def reason(self) -> str:
        """The problem as one line; empty if there is none."""
        return str(self.problem or "")


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process on one device: the driver's numbers joined with what the kernel knows."""

    device: Device
    resident: Resident
    facts: Facts | None = None
    sample: Sample | None = None
    """The row of this tick; a sample of zeros when the driver measured and saw no work."""
    accounting: Accounting | None = None
    owner: Owner = NOBODY
    active: bool | None = True
    """False once it has left the device; None while the driver does not say who is there."""
    energy_mj: Labelled = ()
    """By how it is known."""
    busy_ns: int | None = None
    """Time it had the compute engine."""
    energy_share_error: float | None = None
    """Standard deviation of its share of the GPU's energy above parked power, if that was shared just now."""
    dcgm: DcgmStats | None = None
    """Put here after the books are written."""


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """All processes of one container on one device together."""

    device: Device
    owner: Owner
    processes: int
    memory_bytes: int | None
    sm_pct: int | None
    """Sum of its processes' shares of the compute engine."""
    energy_mj: Labelled = ()
    """Of all its processes, exited ones too, by how it is known."""
    busy_ns: int | None = None
    booked_mj: int = 0
    """Its part of the interval that was booked last."""
    earlier_mj: int = 0
    """Of earlier containers of this name in the same pod, whose rows are gone."""
    namesakes_mj: int = 0
    """Of containers of this name in earlier pods of the same name, whose rows are gone."""
    inferred_bytes: int | None = None
    """Memory it is taken to hold though the driver lists no process of it."""


@dataclass(frozen=True, slots=True)
class LearnedBehaviour:
    """One way in which a workload works, seen while it had a GPU to itself."""

    seconds: float
    """For how long; what is old counts less."""
    power_mw: int
    """Above parked power, while it has the compute engine."""
    activity: tuple[tuple[str, float], ...]
    """How busy each part of the chip is while it has the compute engine, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What is known of a workload from when it was alone."""

    workload: tuple[tuple[str, str], ...]
    """What it is known by."""
    behaviours: tuple[LearnedBehaviour, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """How one stage of the tick went."""

    name: str
    duration_ns: int
    success: bool


@dataclass(frozen=True, slots=True)
class Upstream:
    """How the dcgm-exporter is whose metrics we show with pods on them."""

    up: bool
    problem: Problem | None
    last_success_ns: int
    """Unix time; 0 before the first success."""
    duration_ns: int
    series: int
    with_pod: int
    duplicates: int
    """Series left out because one with the same labels came before, since start."""
    failures: Labelled = ()
    """By kind, since start."""

    @property
    def reason(self) -> str:
        """The problem as one line; empty if there is none."""
        return str(self.problem or "")


@dataclass(frozen=True, slots=True)
class Health:
    """The exporter's own condition at the end of a tick."""

    interval_ns: int = 0
    duration_ns: int = 0
    ticks: int = 0
    missed_ticks: int = 0
    stages: tuple[Stage, ...] = ()
    driver_errors: tuple[tuple[tuple[str, str], int], ...] = ()
    resident_memory_bytes: int | None = None
    cpu_ms: int | None = None
    open_fds: int | None = None
    threads: int | None = None
    start_time_ms: int = 0
    http_connections: int = 0
    http_rejected: int = 0
    upstream: Upstream | None = None
    """None where there is none."""


@dataclass(frozen=True, slots=True)
class JournalHealth:
    """How writing the journal goes."""

    written_ns: int | None = None
    """Unix time of the last tick that was written; None before the first."""
    size_bytes: int | None = None
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Tick:
    """One period's world. Each stage takes it and returns it richer; nothing changes it."""

    time_ns: int
    """Unix time at which the readings were complete."""
    driver: Driver
    readings: tuple[Reading, ...] = ()
    source: str = "nvml"
    facts: Mapping[int, Facts] = field(default_factory=dict)
    """By pid, for every process the readings name and the kernel still knows."""
    owners: Owners = NO_OWNERS
    accounts: Mapping[str, Account] = field(default_factory=dict)
    """The ledger of each GPU after the book stage, by uuid."""
    memory: Mapping[str, MemoryAccount] = field(default_factory=dict)
    """Memory by owner after the book stage, by uuid of the device; absent if the driver does not list processes."""
    processes: tuple[ProcessUse, ...] = ()
    dropped_processes: int = 0
    """Rows left out since start to keep the number of series bounded."""
    containers: tuple[ContainerUse, ...] = ()
    learned: tuple[Learned, ...] = ()
    """The workloads that were ever alone."""
    dcgm: DcgmHealth | None = None
    """None where DCGM is not asked."""
    health: Health = Health()
    journal: JournalHealth | None = None
    """None without a journal."""

    def working_pids(self) -> set[int]:
        """Every process the driver saw at work, listed or not."""
        return {sample.pid for reading in self.readings for sample in reading.samples or ()}

    def resident_pids(self) -> set[int]:
        """Every process the driver lists on some device."""
        return {resident.pid for reading in self.readings for resident in reading.residents or ()}
