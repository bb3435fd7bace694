"""The tick, its rows (processes and containers on devices), and the health of the exporter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from gpuledger.model.owners import NO_OWNERS, UNKNOWN_OWNER, Entitlement, Facts, Owner, Owners
from gpuledger.model.problem import Problem
from gpuledger.model.readings import (
    Account,
    Accounting,
    ActivityPart,
    Device,
    Driver,
    Labelled,
    MemoryAccount,
    Percentages,
    Reading,
    Resident,
    Sample,
)
from gpuledger.model.record import dataclass
from gpuledger.model.tokens import TokenServer

BUSY, LOW, PARKED, NO_PROCESS, UNKNOWN_STATE = "busy", "low", "parked", "no_process", "unknown"
"""States of an allocation."""
IDLE_REASONS = (NO_PROCESS, PARKED, LOW)
"""No process on the device; a process without work; work below the threshold."""
ADVICE_AFTER_S = 3600.0
"""Time without use after which commands that would free a device are shown; as in the alert GpuAllocatedIdle."""


@dataclass(frozen=True, slots=True)
class DcgmStats:
    """DCGM's statistics of a process: values of the whole GPU while the process was on it. Not used by the books."""

    energy_mj: int | None = None
    """Energy of the whole GPU; the same for every process on it."""
    sm_pct: int | None = None
    memory_pct: int | None = None
    max_memory_bytes: int | None = None
    """Peak memory of the process itself, from the driver's accounting."""
    other_processes: int | None = None
    """Number of other processes on the GPU in that time."""
    start_us: int | None = None
    """Unix time at which the statistics begin."""


@dataclass(frozen=True, slots=True)
class DcgmHealth:
    """Health of the DCGM collector."""

    up: bool
    problem: Problem | None = None
    version: str = ""
    library: str = ""
    mode: str = ""
    """`embedded` (inside this process) or `hostengine`."""

    @property
    def reason(self) -> str:
        """The problem as one line; empty if there is none."""
        return str(self.problem or "")


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """The use of one device by one process."""

    device: Device
    resident: Resident
    facts: Facts | None = None
    sample: Sample | None = None
    """The newest sample; zeros if the driver reports utilization and the process did no work."""
    accounting: Accounting | None = None
    owner: Owner = UNKNOWN_OWNER
    active: bool | None = True
    """False once the process has left the device; None while the driver does not list processes."""
    energy_mj: Labelled = ()
    """Energy by method of attribution."""
    parked_mj: int = 0
    """The parked part of its energy: what the GPU draws while all its processes wait."""
    busy_ns: int | None = None
    """Time on the compute engine."""
    energy_share_error: float | None = None
    """Standard deviation of its share of the energy above parked power, if the last interval was shared."""
    created_ns: int | None = None
    """Unix time at which its counters were 0; None if they continue those of a journal."""
    activity: ActivityPart | None = None
    """None if it is not known, and after the process has left."""
    dcgm: DcgmStats | None = None
    """Added after the book stage."""


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """The use of one device by one container: the sum over its processes."""

    device: Device
    owner: Owner
    processes: int
    memory_bytes: int | None
    sm_pct: int | None
    """Utilization of the compute engine, summed over its processes."""
    encoder_pct: int | None = None
    decoder_pct: int | None = None
    activity: tuple[ActivityPart, ...] = ()
    """By method, summed over its processes."""
    energy_mj: Labelled = ()
    """Energy by method of attribution, exited processes included."""
    busy_ns: int | None = None
    booked_mj: int = 0
    """Energy in the last booked interval."""
    parked_mj: int = 0
    """The parked part of its energy."""
    earlier_mj: int = 0
    """Energy of earlier containers with this name in the same pod that are no longer shown."""
    namesakes_mj: int = 0
    """Energy of containers with this name in earlier pods of the same name that are no longer shown."""
    inferred_bytes: int | None = None
    """Memory attributed to it by inference; the driver lists no process of it."""


def use_identity(use: ProcessUse | ContainerUse) -> tuple[object, ...]:
    """A key that finds the same process or container on the same device in another tick."""
    if isinstance(use, ContainerUse):
        return use.device.uuid, use.owner.container_id, use.owner.pod_uid, use.owner.container
    return use.device.uuid, use.resident.pid, use.facts.start_ticks if use.facts is not None else None


@dataclass(frozen=True, slots=True)
class AllocationUse:
    """How a device was used by the pod, container or job it is allocated to: allocated = busy + idle + unknown."""

    device: Device
    owner: Owner
    state: str
    """BUSY, one of IDLE_REASONS, or UNKNOWN_STATE; empty once the allocation has ended."""
    shared_by: int
    """Number of allocations of the device."""
    started_ns: int
    """Unix time at which the allocation was first seen."""
    last_busy_ns: int | None
    """Unix time; None if it was never busy."""
    idle_since_ns: int | None
    """Unix time at which the present idle period began; None if there is none."""
    busy_ns: int
    idle_ns: Labelled
    """By reason."""
    unknown_ns: int
    """Time in which it is not known whether the allocation was busy."""
    idle_gpu_ns: int
    """Idle time of the whole GPU: that of a MIG instance or of a shared device counts in part."""
    energy_mj: Labelled
    """By state; empty if the GPU reports no energy."""
    period_gpu_ns: int = 0
    """The part of `idle_gpu_ns` that belongs to the present idle period."""
    period_mj: int | None = None
    """Energy in the present idle period; None if the GPU reports no energy."""
    entitlement: Entitlement | None = None
    used_pct: float | None = None
    """Utilization of the device by the owner; None if it cannot be told from that of others."""
    memory_bytes: int | None = None
    """Memory of the device that the owner's processes hold, inferred memory included."""

    @property
    def allocated_ns(self) -> int:
        """Time since the allocation was first seen."""
        return self.busy_ns + sum(ns for _, ns in self.idle_ns) + self.unknown_ns

    @property
    def compute_used_ratio(self) -> float | None:
        """Utilization as a part of the compute that the owner asked for."""
        if self.entitlement is None or self.used_pct is None or not self.entitlement.compute_ratio:
            return None
        return self.used_pct / 100 * self.entitlement.device_ratio / self.entitlement.compute_ratio

    @property
    def memory_used_ratio(self) -> float | None:
        """Memory in use as a part of the memory that the owner asked for."""
        if self.entitlement is None or self.memory_bytes is None or not self.entitlement.memory_bytes:
            return None
        return self.memory_bytes / self.entitlement.memory_bytes


@dataclass(frozen=True, slots=True)
class Learned:
    """The fingerprint of a workload: what it does per second on the compute engine."""

    workload: tuple[tuple[str, str], ...]
    """Names and values that identify the workload."""
    seconds: float
    """Weight of the observations, in seconds."""
    power_ratio: float
    """Power above parked power, relative to the power limit."""
    activity: tuple[tuple[str, float], ...]
    """Activity of each unit of the GPU, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Duration and success of one stage of a tick."""

    name: str
    duration_ns: int
    success: bool


@dataclass(frozen=True, slots=True)
class Upstream:
    """Health of the connection to a dcgm-exporter whose metrics are enriched with pods."""

    up: bool
    problem: Problem | None
    last_success_ns: int
    """Unix time; 0 before the first success."""
    duration_ns: int
    series: int
    with_pod: int
    duplicates: int
    """Series dropped since the start because another one has the same labels."""
    failures: Labelled = ()
    """Failures since the start, by kind."""
    pods_problem: Problem | None = None
    """Why no series gets a pod; None if devices are known to be allocated to pods, or not."""

    @property
    def reason(self) -> str:
        """The problem as one line; empty if there is none."""
        return str(self.problem or "")


@dataclass(frozen=True, slots=True)
class OtlpHealth:
    """Health of the push to an OpenTelemetry collector."""

    up: bool
    problem: Problem | None
    last_success_ns: int
    """Unix time; 0 before the first success."""
    waiting: int
    """Requests that are not sent yet."""
    sent_points: int
    rejected_points: int
    dropped: Labelled = ()
    """Requests that were dropped, by reason."""


@dataclass(frozen=True, slots=True)
class Health:
    """Health of the exporter at the end of a tick."""

    interval_ns: int = 0
    duration_ns: int = 0
    ticks: int = 0
    missed_ticks: int = 0
    stages: tuple[Stage, ...] = ()
    driver_errors: tuple[tuple[tuple[str, str], int], ...] = ()
    """Unexpected failures of driver calls since the start, by call and error."""
    driver_problems: tuple[Problem, ...] = ()
    """Unexpected failures of driver calls as problems, with their fixes."""
    resident_memory_bytes: int | None = None
    virtual_memory_bytes: int | None = None
    cpu_ms: int | None = None
    open_fds: int | None = None
    max_fds: int | None = None
    threads: int | None = None
    start_time_ms: int = 0
    http_connections: int = 0
    http_rejected: int = 0
    upstream: Upstream | None = None
    """None if no dcgm-exporter is configured."""
    otlp: OtlpHealth | None = None
    """None if nothing is pushed."""
    review_problem: Problem | None = None
    """Why the API server does not review the tokens of clients; None if it does."""


@dataclass(frozen=True, slots=True)
class JournalHealth:
    """Health of the journal."""

    written_ns: int | None = None
    """Unix time of the last written tick; None before the first."""
    size_bytes: int | None = None
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Tick:
    """All data of one moment. Each stage returns a copy with more fields set."""

    time_ns: int
    """Unix time at which the readings were complete."""
    driver: Driver
    readings: tuple[Reading, ...] = ()
    source: str = "nvml"
    monotonic_ns: int | None = None
    """Monotonic time of the readings; None in a recording."""
    facts: Mapping[int, Facts] = field(default_factory=dict)
    """By pid, for every process in the readings that still runs."""
    owners: Owners = NO_OWNERS
    accounts: Mapping[str, Account] = field(default_factory=dict)
    """The ledger of each GPU after the book stage, by uuid."""
    memory: Mapping[str, MemoryAccount] = field(default_factory=dict)
    """Memory by owner after the book stage, by uuid of the device; absent if the driver does not list processes."""
    unattributed_activity: Mapping[str, Percentages] = field(default_factory=dict)
    """The activity of each device that belongs to no process, by uuid."""
    processes: tuple[ProcessUse, ...] = ()
    dropped_processes: int = 0
    """Process rows dropped by the limit since the start."""
    containers: tuple[ContainerUse, ...] = ()
    users: Mapping[str, tuple[tuple[str, str, int], ...]] = field(default_factory=dict)
    """Uid, name and energy of each user outside of containers since the start of the exporter, by uuid of the GPU."""
    allocations: tuple[AllocationUse, ...] = ()
    """Allocations that are or were recently in force, after the book stage."""
    dropped_allocations: int = 0
    """Allocations in force that are left out because of the limit."""
    learned: tuple[Learned, ...] = ()
    """Fingerprints of all workloads that had a GPU to themselves."""
    dcgm: DcgmHealth | None = None
    """None if the DCGM collector is off."""
    health: Health = Health()
    journal: JournalHealth | None = None
    """None if there is no journal."""
    servers: tuple[TokenServer, ...] | None = None
    """Servers of language models; None without --tokens.scrape. Added after the book stage."""

    def working_pids(self) -> set[int]:
        """The processes with a sample, listed or not."""
        return {sample.pid for reading in self.readings for sample in reading.samples or ()}

    def resident_pids(self) -> set[int]:
        """The processes that the driver lists on some device."""
        return {resident.pid for reading in self.readings for resident in reading.residents or ()}
