"""The snapshot of one tick as frozen records, in base units. An unknown value is None, never 0.

The JSON API serialises these records, its OpenAPI description is derived from them, and `top` reads them, also from the
JSON of another exporter. Fields may be added; a field that changes its meaning requires a new VERSION.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from gpuledger.model.owners import UNKNOWN

VERSION = 1
MEASURED = frozenset({"exclusive"})
"""Energy methods that measure; all others estimate."""

Names = tuple[str, ...]
Numbers = Mapping[str, float]
Counts = Mapping[str, int]


def sum_known(numbers: Iterable[float | None]) -> float | None:
    """The sum of the known numbers; None if all are unknown."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverState:
    """The NVIDIA driver."""

    up: bool = False
    reason: Annotated[str, "Why the driver is down."] = ""
    driver_version: str = ""
    cuda_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """used = known + overhead + unknown + system. inferred is part of unknown; reserved is separate."""

    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: Annotated[int | None, "Reserved by the driver."] = None
    known_bytes: Annotated[int | None, "Held by processes that the driver lists."] = None
    overhead_bytes: Annotated[int | None, "CUDA contexts, beyond what the driver lists per process."] = None
    unknown_bytes: Annotated[int | None, "Held by processes that the driver does not list."] = None
    inferred_bytes: Annotated[int | None, "Part of unknown that is inferred to be held by containers."] = None
    candidates: Annotated[int | None, "Containers that may hold the unknown memory."] = None
    system_bytes: Annotated[
        int | None, "Used by others than GPU processes, if GPU and CPU share the memory of the system; else null."
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """joules = processes + retired + idle + unattributed. Null for a MIG instance."""

    joules: float | None = None
    source: Annotated[str, "`counter`, or `power` if the GPU has no energy counter."] = ""
    processes_joules: Annotated[float, "All processes that are not retired, listed as rows or not."] = 0.0
    idle_joules: float = 0.0
    retired_joules: Annotated[float, "Processes that are no longer listed."] = 0.0
    unattributed_joules: Annotated[Numbers, "Energy without an owner, by reason."] = field(default_factory=dict)
    residual_joules: Annotated[float, "Difference between the sum and the device's total; always 0."] = 0.0
    idle_power_watts: float | None = None
    parked_power_watts: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """What all owners but the viewer have of a device, and the driver itself."""

    memory_bytes: Annotated[int | None, "Memory in use beyond that of the viewer."] = None
    joules: Annotated[
        float | None, "Energy beyond that of the viewer, without idle energy; null for a MIG instance."
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU or a MIG instance."""

    gpu: Annotated[int, "The driver's index."]
    uuid: str
    gpu_uuid: Annotated[str, "UUID of the whole GPU, also for a MIG instance."] = ""
    name: str = ""
    pci_bus_id: str = ""
    parent_uuid: Annotated[str, "GPU that contains this MIG instance; empty for a whole GPU."] = ""
    mig_profile: str = ""
    up: bool = False
    reason: Annotated[str, "Why the device is down."] = ""
    memory: Memory = Memory()
    utilization_ratio: float | None = None
    memory_utilization_ratio: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperatures_celsius: Numbers = field(default_factory=dict)
    temperature_limits_celsius: Numbers = field(default_factory=dict)
    clocks_hertz: Numbers = field(default_factory=dict)
    slowed_by: Annotated[Names, "Active reasons that limit the clocks."] = ()
    fans_ratio: Numbers = field(default_factory=dict)
    xids: Annotated[Counts, "Count by XID, since the exporter started."] = field(default_factory=dict)
    ecc_errors: Counts = field(default_factory=dict)
    mig_enabled: bool | None = None
    energy: Energy | None = None
    busy_seconds: float | None = None
    allocated_to: Annotated[Names, "Pods, containers and jobs to which the device is allocated, used or not."] = ()
    in_use: bool | None = None
    in_use_seconds: float | None = None
    others: Annotated[Others | None, "In an own view, the sum over the workloads of others; else null."] = None

    @property
    def label(self) -> str:
        """The index, followed by the profile of a MIG instance."""
        return f"{self.gpu}/{self.mig_profile}" if self.mig_profile else str(self.gpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class UseRow:
    """Fields that processes and containers share."""

    gpu: Annotated[int, "The driver's index of the GPU."]
    uuid: Annotated[str, "UUID of the GPU or MIG instance."]
    gpu_uuid: Annotated[str, "UUID of the whole GPU."] = ""
    owner: Annotated[str, "Display name of the owner, the same as in the history."] = UNKNOWN
    namespace: str = ""
    pod: str = ""
    container: str = ""
    pod_uid: str = ""
    container_id: str = ""
    runtime: str = ""
    image: str = ""
    workload: Annotated[str, "Kind and name, such as `Job/train`."] = ""
    unit: Annotated[str, "systemd unit."] = ""
    job: Annotated[str, "Scheduler and job id, such as `slurm/211`."] = ""
    unknown_because: Annotated[str, "Why part of the owner is unknown."] = ""
    user: str = ""
    memory_bytes: int | None = None
    sm_ratio: Annotated[float | None, "Share of the SM (compute engine) time."] = None
    watts: Annotated[float | None, "Mean power over the last seconds; null for a new row."] = None
    joules: Annotated[Numbers, "Energy by method; only `exclusive` is measured."] = field(default_factory=dict)
    busy_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow(UseRow):
    """A process on a device."""

    pid: int
    process_name: str = ""
    kind: Annotated[str, "`compute`, `graphics`, `mps`, or several of them joined by `+`."] = ""
    active: Annotated[bool | None, "False if the process has left the device; null if unknown."] = None
    start_time: Annotated[float | None, "Unix time."] = None
    energy_share_error_ratio: Annotated[float | None, "Standard deviation of the process's energy share."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRow(UseRow):
    """A container on a device. `joules` includes its exited processes."""

    processes: int = 0
    inferred_bytes: Annotated[int | None, "Memory it is inferred to hold without a listed process."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRow:
    """A device allocated to a pod, container or job. allocated_seconds = busy + idle + unknown seconds."""

    gpu: Annotated[int, "The driver's index of the GPU."]
    uuid: Annotated[str, "UUID of the GPU or MIG instance."]
    gpu_uuid: Annotated[str, "UUID of the whole GPU."] = ""
    owner: Annotated[str, "Display name of the pod, container or job."] = UNKNOWN
    namespace: str = ""
    pod: str = ""
    container: str = ""
    container_id: str = ""
    job: str = ""
    state: Annotated[str, "`busy`, `no_process`, `parked`, `low` or `unknown`."] = ""
    shared_by: Annotated[int | None, "Allocations of the device; null in an own view."] = 1
    start_time: Annotated[float | None, "Unix time at which the allocation was first seen."] = None
    last_busy: Annotated[float | None, "Unix time; null if it was never busy."] = None
    idle_since: Annotated[float | None, "Unix time; null if it is busy."] = None
    allocated_seconds: float = 0.0
    busy_seconds: float = 0.0
    idle_seconds: Annotated[Numbers, "By reason."] = field(default_factory=dict)
    unknown_seconds: float = 0.0
    idle_gpu_seconds: Annotated[float, "Idle time as a part of the whole GPU."] = 0.0
    period_gpu_seconds: Annotated[float, "The part of it since `idle_since`."] = 0.0
    joules: Annotated[Numbers, "Energy by state."] = field(default_factory=dict)
    period_joules: Annotated[float | None, "Energy since `idle_since`."] = None
    entitlement: Annotated[str, "Source of what the owner asked for; empty if that is not known."] = ""
    asked_ratio: Annotated[float | None, "Compute it asked for, as a part of the whole GPU."] = None
    asked_bytes: Annotated[int | None, "Memory it asked for."] = None
    compute_used_ratio: Annotated[float | None, "Utilization over the compute it asked for."] = None
    memory_used_ratio: Annotated[float | None, "Memory in use over the memory it asked for."] = None
    free_command: Annotated[str, "Command that would free it; empty until it is idle for an hour."] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRow:
    """The language-model servers of one owner, over all its GPUs. Values are of the last minute."""

    server: Annotated[str, "The owner as in --tokens.scrape."] = ""
    owner: Annotated[str, "Display name of the owner; empty while it is on no GPU."] = ""
    up: bool = False
    reason: Annotated[str, "Why the server is down."] = ""
    models: Names = ()
    prompt_tokens: Annotated[int | None, "Since the server started."] = None
    output_tokens: Annotated[int | None, "Since the server started."] = None
    prompt_tokens_per_second: float | None = None
    output_tokens_per_second: float | None = None
    work_watts: Annotated[float | None, "Power above parked power."] = None
    parked_watts: float | None = None
    joules_per_output_token: Annotated[float | None, "Energy above parked power per output token."] = None
    joules_per_token: Annotated[float | None, "The same per token, prompt and output together."] = None
    prefill_joules: Annotated[float | None, "Estimated energy of a prompt token; null if it is not determined."] = None
    prefill_error_joules: Annotated[float | None, "Its standard error."] = None
    decode_joules: Annotated[float | None, "Estimated energy of an output token; null if it is not determined."] = None
    decode_error_joules: Annotated[float | None, "Its standard error."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A provider of names, such as Docker or the kubelet."""

    name: str = ""
    up: bool = False
    reason: Annotated[str, "Why the provider is down."] = ""
    since: Annotated[float, "Unix time of the last change between up and down."] = 0.0
    last_success: Annotated[float | None, "Unix time; null before the first success."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRow:
    """Something that is wrong, and how to fix it."""

    level: Literal["problem", "warning", "note"]
    about: Annotated[str, "The component or device."] = ""
    what: str = ""
    fix: Annotated[str, "How to fix it, with commands in backticks."] = ""
    kind: Annotated[str, "A stable word for programs, such as `permission`; may be empty."] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One tick of the exporter."""

    version: Literal[1] = VERSION  # type: ignore[assignment]  # a Literal cannot name the constant
    gpuledger: Annotated[str, "Version of the exporter."] = ""
    time: Annotated[float, "Unix time of the tick."] = 0.0
    interval_seconds: Annotated[float, "Configured time between two ticks."] = 0.0
    node: Annotated[str, "Name of the host."] = ""
    viewer: Annotated[str, "Whose workloads are listed, in an own view; empty if all are listed."] = ""
    recording: Annotated[bool, "True if a recording is being replayed."] = False
    driver: DriverState = DriverState()
    gpus: Annotated[tuple[Gpu, ...], "Whole GPUs, and MIG instances, which have a `parent_uuid`."] = ()
    process_count: Annotated[int | None, "Processes that the driver lists, shown as rows or not."] = None
    processes: tuple[ProcessRow, ...] = ()
    containers: tuple[ContainerRow, ...] = ()
    allocations: Annotated[tuple[AllocationRow, ...], "Allocations in force."] = ()
    servers: Annotated[tuple[ServerRow, ...], "Servers of language models, with --tokens.scrape."] = ()
    colours: Annotated[Counts, "Colours of owners, 0 to 7; kept while the exporter runs."] = field(default_factory=dict)
    dropped_processes: Annotated[int, "Rows left out since the start because of --process.max."] = 0
    providers: Annotated[tuple[Provider, ...], "Providers of names."] = ()
    unresolved: Annotated[Counts, "Processes whose owner is not fully known, by reason."] = field(default_factory=dict)
    host_pid_namespace: Annotated[bool | None, "Whether the exporter sees the host's processes."] = None
    tick_seconds: Annotated[float, "Duration of the tick."] = 0.0
    problems: Annotated[tuple[ProblemRow, ...], "Worst first."] = ()

    @property
    def hidden_processes(self) -> int:
        """Processes that the driver lists and that have no row."""
        shown = {process.pid for process in self.processes if process.active is not False}
        return max(0, (self.process_count or 0) - len(shown))
