"""What flows from stage to stage: frozen records, integers with the unit in the name.

`None` always means "this GPU or driver does not say"; a number is never invented in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Labelled = tuple[tuple[str, int], ...]
"""A few numbers under names, as `(("gpu", 45), ("memory", 50))`; a tuple so that it is immutable."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or a MIG instance of one: what does not change while the driver is loaded."""

    index: int
    uuid: str
    name: str = ""
    pci_bus_id: str = ""
    minor: int | None = None
    serial: str = ""
    vbios_version: str = ""
    board_part_number: str = ""
    architecture: str = ""
    compute_capability: str = ""
    driver_version: str = ""
    multiprocessors: int | None = None
    parent_uuid: str = ""
    """The GPU a MIG instance is cut from; empty for a whole GPU."""
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    mig_profile: str = ""


@dataclass(frozen=True, slots=True)
class Activity:
    """GPM: how busy each part of the chip was since the reading before, in percent."""

    graphics_pct: float | None = None
    sm_pct: float | None = None
    occupancy_pct: float | None = None
    integer_pct: float | None = None
    tensor_pct: float | None = None
    dram_pct: float | None = None
    fp64_pct: float | None = None
    fp32_pct: float | None = None
    fp16_pct: float | None = None
    pcie_transmit_bytes_per_s: int | None = None
    pcie_receive_bytes_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class Resident:
    """A process that holds a context on a device, as the driver lists it."""

    pid: int
    kind: str
    """`compute`, `graphics` or `mps`; `compute+graphics` when several lists name it."""
    memory_bytes: int | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of the driver's process utilization: whole-engine percent since the row before."""

    pid: int
    timestamp_us: int
    sm_pct: int
    memory_pct: int
    encoder_pct: int = 0
    decoder_pct: int = 0


@dataclass(frozen=True, slots=True)
class Accounting:
    """The driver's own account of a process, where accounting mode is on."""

    pid: int
    running: bool
    gpu_pct: int | None = None
    memory_pct: int | None = None
    peak_memory_bytes: int | None = None
    time_ms: int = 0
    start_us: int = 0


@dataclass(frozen=True, slots=True)
class Account:
    """What the books hold of one GPU. Its processes' energy is in their own rows; with it the sum is `energy_mj`."""

    energy_mj: int | None = None
    source: str = ""
    """`counter`, or `power` where the GPU has no energy counter and power is added up instead."""
    idle_mj: int = 0
    retired_mj: int = 0
    """Of processes whose rows are gone."""
    unattributed_mj: Labelled = ()
    """By the reason why nobody has it."""
    residual_mj: int = 0
    """What does not add up: 0, always."""
    idle_power_mw: int | None = None
    """Power with nobody on the GPU, learned while it was so."""
    parked_power_mw: int | None = None
    """Power with processes on the GPU that do nothing, learned while it was so."""
    checked_counter_mj: int = 0
    checked_power_mj: int = 0
    """The counter's rise and power times time, over the same ticks."""
    busy_ns: int | None = None
    in_use: bool | None = None
    in_use_ns: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything the driver said about one device in one tick."""

    device: Device
    up: bool = True
    reason: str = ""
    """Why the device is down; empty when it is up."""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    utilization_pct: int | None = None
    memory_utilization_pct: int | None = None
    encoder_pct: int | None = None
    decoder_pct: int | None = None
    jpeg_pct: int | None = None
    optical_flow_pct: int | None = None
    power_mw: int | None = None
    power_average_mw: int | None = None
    power_limit_mw: int | None = None
    power_default_limit_mw: int | None = None
    energy_mj: int | None = None
    performance_state: int | None = None
    clocks_mhz: Labelled = ()
    max_clocks_mhz: Labelled = ()
    temperatures_c: Labelled = ()
    temperature_limits_c: Labelled = ()
    clock_events: Labelled = ()
    """Each reason the driver may slow this GPU down for: 1 while it does, else 0."""
    clock_event_ns: Labelled = ()
    fans_pct: Labelled = ()
    ecc_enabled: bool | None = None
    ecc_errors: Labelled = ()
    ecc_volatile_errors: Labelled = ()
    remapped_rows: Labelled = ()
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    pcie_replays: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_max_generation: int | None = None
    pcie_max_width: int | None = None
    pcie_transmit_bytes_per_s: int | None = None
    pcie_receive_bytes_per_s: int | None = None
    nvlinks: Labelled = ()
    nvlink_transmit_bytes: int | None = None
    nvlink_receive_bytes: int | None = None
    nvlink_errors: Labelled = ()
    mig_enabled: bool | None = None
    accounting_enabled: bool | None = None
    activity: Activity | None = None
    xids: Labelled = ()
    residents: tuple[Resident, ...] | None = None
    samples: tuple[Sample, ...] | None = None
    """Rows newer than those of any reading before; `()` when nothing ran, `None` when unsupported."""
    accounting: tuple[Accounting, ...] = ()
    driver_ns: int | None = None
    """Time spent inside driver calls for this reading."""
    account: Account | None = None
    """What the books say of the GPU; None before the book stage, and for MIG instances."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the kernel says about a process; (pid, start_ticks) identifies it for one boot."""

    pid: int
    start_ticks: int
    start_time_ms: int
    """Unix time."""
    name: str = ""
    uid: int | None = None
    cgroup: str = ""
    """The text of /proc/<pid>/cgroup."""
    user: str = ""
    """The uid's name on its host."""
    inner_pid: int | None = None
    """Its pid inside its container, where that is another."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose process it is. Empty means not known, or that there is no such thing: a service has no container."""

    container: str = ""
    container_id: str = ""
    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""
    runtime: str = ""
    image: str = ""
    workload_kind: str = ""
    workload_name: str = ""
    unit: str = ""
    job: str = ""
    """The scheduler and its id, as `slurm/211`."""
    step: str = ""
    task: str = ""
    user: str = ""
    account: str = ""
    """Whom the scheduler bills."""
    labels: tuple[tuple[str, str], ...] = ()
    reason: str = ""
    """Why there is no more to say; empty when everything is."""


@dataclass(frozen=True, slots=True)
class Granted:
    """A device that was given to a container, whether it is used or not."""

    device: Device
    namespace: str = ""
    pod: str = ""
    container: str = ""
    resource: str = ""
    replica: str = ""


@dataclass(frozen=True, slots=True)
class ProviderHealth:
    """How somebody is who knows names."""

    name: str
    up: bool
    reason: str
    since_ns: int
    """Unix time of the last change between up and down."""
    last_success_ns: int
    """Unix time; 0 before the first success."""
    fetches: int
    failures: int


@dataclass(frozen=True, slots=True)
class Owners:
    """What the resolve stage found in a tick."""

    by_pid: Mapping[int, Owner] = field(default_factory=dict)
    granted: tuple[Granted, ...] = ()
    granted_jobs: tuple[tuple[Device, str], ...] = ()
    """Devices that a scheduler's prolog says it gave to a job."""
    given: tuple[tuple[Device, str, str], ...] = ()
    """Devices that Docker or Podman gave to a container: its name and id."""
    providers: tuple[ProviderHealth, ...] = ()
    unresolved: Labelled = ()
    """Processes whose owner is not fully known, by reason."""
    conflicts: int = 0
    """Processes met on a device that was given to another pod, since start."""
    unknown_device_ids: int = 0
    """Device ids in a form nobody knows, in this tick."""
    host_pid_namespace: bool | None = None
    readable: Labelled = ()
    """Which files of other processes can be read."""


@dataclass(frozen=True, slots=True)
class Driver:
    """The state of the driver as a whole."""

    up: bool
    reason: str = ""
    driver_version: str = ""
    nvml_version: str = ""
    cuda_version: str = ""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process on one device: the driver's numbers joined with what the kernel knows."""

    device: Device
    resident: Resident
    facts: Facts | None = None
    sample: Sample | None = None
    """The row of this tick; a sample of zeros when the driver measured and saw no work."""
    accounting: Accounting | None = None
    owner: Owner = Owner()
    active: bool | None = True
    """False once it has left the device; None while the driver does not say who is there."""
    energy_mj: Labelled = ()
    """By how it is known."""
    busy_ns: int | None = None
    """Time it had the compute engine."""
    energy_share_error: float | None = None
    """Standard deviation of its share of the GPU's energy above parked power, if that was shared just now."""


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
    owners: Owners = Owners()
    processes: tuple[ProcessUse, ...] = ()
    dropped_processes: int = 0
    """Rows left out since start to keep the number of series bounded."""
    containers: tuple[ContainerUse, ...] = ()
    learned: tuple[Learned, ...] = ()
    """The workloads that were ever alone, the last first."""
    health: Health = Health()

    def resident_pids(self) -> set[int]:
        """Every process the driver lists on some device."""
        return {resident.pid for reading in self.readings for resident in reading.residents or ()}
