"""Devices and processes as the driver reports them, and the accounts that the books keep of a device."""

from __future__ import annotations

from dataclasses import field

from gpuledger.model.problem import Problem
from gpuledger.model.record import dataclass

Labelled = tuple[tuple[str, int], ...]
"""Numbers by name, such as `(("gpu", 45), ("memory", 50))`; immutable."""


NO_INDEX = -1
"""The index of a device that only a kubelet reports, on a machine without a driver."""


@dataclass(frozen=True, slots=True)
class Device:
    """The identity of a GPU or MIG instance; constant while the driver is loaded."""

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
    """uuid of the GPU that a MIG instance belongs to; empty for a GPU."""
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    mig_profile: str = ""

    @property
    def gpu_uuid(self) -> str:
        """Uuid of the physical GPU, also for a MIG instance."""
        return self.parent_uuid or self.uuid


@dataclass(frozen=True, slots=True)
class Activity:
    """GPM: mean activity of each unit of the GPU since the previous reading."""

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


DIVIDED = (
    "graphics_pct", "sm_pct", "occupancy_pct", "tensor_pct", "integer_pct", "fp64_pct", "fp32_pct", "fp16_pct",
    "dram_pct",
)  # fmt: skip
"""The fields of Activity that are divided among processes."""
Percentages = tuple[float | None, ...]
"""The values of DIVIDED."""


@dataclass(frozen=True, slots=True)
class ActivityPart:
    """The part of a device's activity that belongs to a process, or to the processes of a container with one method."""

    method: str
    """`exclusive` is measured; all other methods are estimates."""
    pct: Percentages
    error: float
    """Standard deviation of the share in the device's activity."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of a tick, about 0.2 s: its activity, or without GPM its utilization and mean power."""

    activity: Activity
    sm_clock_mhz: int | None = None
    """At its end."""
    power_mw: int | None = None
    """Mean; only without GPM."""
    ended_ms: int = 0
    """How long before the reading it ended."""
    utilization_pct: int | None = None
    memory_utilization_pct: int | None = None


@dataclass(frozen=True, slots=True)
class Resident:
    """A process with a context on a device, as the driver lists it."""

    pid: int
    kind: str
    """`compute`, `graphics` or `mps`; `compute+graphics` if it is in two lists, `unlisted` if it is in none."""
    memory_bytes: int | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """Mean utilization of the GPU by one process since its previous sample."""

    pid: int
    timestamp_us: int
    sm_pct: int
    memory_pct: int
    encoder_pct: int = 0
    decoder_pct: int = 0


@dataclass(frozen=True, slots=True)
class Accounting:
    """The driver's accounting of a process; only with accounting mode on."""

    pid: int
    running: bool
    gpu_pct: int | None = None
    memory_pct: int | None = None
    peak_memory_bytes: int | None = None
    time_ms: int = 0
    start_us: int = 0

    @property
    def busy_ns(self) -> int:
        """Time on the compute engine."""
        return (self.gpu_pct or 0) * self.time_ms * 10_000


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """The memory of a device by account: used = known + overhead + unknown."""

    known_bytes: int
    """Memory of the processes that the driver lists."""
    unknown_bytes: int | None = None
    """Memory of processes that the driver does not list; None if used memory is not reported."""
    overhead_bytes: int | None = None
    """Memory that contexts use beside the listed memory."""
    inferred_bytes: int = 0
    """Part of `unknown_bytes` that is attributed to containers by inference."""
    candidates: int = 0
    """Number of candidates with the best evidence for holding the unknown memory."""


@dataclass(frozen=True, slots=True)
class Account:
    """The ledger of one GPU: energy_mj = processes + retired + idle + unattributed."""

    energy_mj: int | None = None
    source: str = ""
    """`counter`, or `power` if power is integrated: the GPU has no energy counter, or a stuck one."""
    counter_stuck: bool = False
    """Whether the energy counter stands still while the GPU draws power."""
    idle_mj: int = 0
    retired_mj: int = 0
    """Energy of processes that are no longer shown."""
    unowned_mj: int = 0
    """Energy owned by no container. Monotonic."""
    booked_mj: int = 0
    """Energy of the last booked interval."""
    unbooked_ns: int = 0
    """Time up to this tick whose energy is not booked yet."""
    unattributed_mj: Labelled = ()
    """Unattributed energy, by reason."""
    residual_mj: int = 0
    """Difference between `energy_mj` and the sum of its parts: always 0."""
    idle_power_mw: int | None = None
    """Power without a process on the GPU, as learned."""
    parked_power_mw: int | None = None
    """Power with only waiting processes on the GPU."""
    parked_power_source: str = ""
    """`measured`, `earlier` (from the journal) or `model` (usual for the GPU model)."""
    checked_counter_mj: int = 0
    """Energy by counter in the ticks of the cross-check."""
    checked_power_mj: int = 0
    """Energy by power x time in the same ticks."""
    busy_ns: int | None = None
    in_use: bool | None = None
    in_use_ns: int = 0


COUNTER = {"counter": True}
"""Metadata of a field whose numbers only rise, until the driver is loaded again."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The values of one device in one tick."""

    device: Device
    up: bool = True
    problem: Problem | None = None
    """Why the device is down; None while it is up."""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    system_memory_total_bytes: int | None = None
    """Memory that the GPU shares with the CPU; None if the GPU has memory of its own."""
    system_memory_used_bytes: int | None = None
    utilization_pct: int | None = None
    memory_utilization_pct: int | None = None
    encoder_pct: int | None = None
    decoder_pct: int | None = None
    jpeg_pct: int | None = None
    optical_flow_pct: int | None = None
    power_mw: int | None = None
    power_average_mw: int | None = None
    power_module_mw: int | None = None
    """Power of the GPU with its CPU, on modules that have both."""
    power_memory_mw: int | None = None
    power_smoothing_enabled: bool | None = None
    power_limit_mw: int | None = None
    power_default_limit_mw: int | None = None
    energy_mj: int | None = field(default=None, metadata=COUNTER)
    performance_state: int | None = None
    clocks_mhz: Labelled = ()
    max_clocks_mhz: Labelled = ()
    temperatures_c: Labelled = ()
    temperature_limits_c: Labelled = ()
    clock_events: Labelled = ()
    """Each reason for reduced clocks: 1 while it applies, else 0."""
    clock_event_ns: Labelled = field(default=(), metadata=COUNTER)
    fans_pct: Labelled = ()
    ecc_enabled: bool | None = None
    ecc_errors: Labelled = field(default=(), metadata=COUNTER)
    ecc_volatile_errors: Labelled = field(default=(), metadata=COUNTER)
    sram_errors: Labelled = field(default=(), metadata=COUNTER)
    sram_volatile_errors: Labelled = field(default=(), metadata=COUNTER)
    sram_uncorrected: Labelled = field(default=(), metadata=COUNTER)
    """Uncorrected errors by unit of the chip, over the lifetime of the board."""
    sram_threshold_exceeded: bool | None = None
    memory_unrepairable: bool | None = None
    recovery_actions: Labelled = ()
    """Each action that the driver may ask for: 1 if it does, else 0."""
    remapped_rows: Labelled = field(default=(), metadata=COUNTER)
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    pcie_replays: int | None = field(default=None, metadata=COUNTER)
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_max_generation: int | None = None
    pcie_max_width: int | None = None
    pcie_transmit_bytes_per_s: int | None = None
    pcie_receive_bytes_per_s: int | None = None
    nvlinks: Labelled = ()
    nvlink_transmit_bytes: int | None = field(default=None, metadata=COUNTER)
    nvlink_receive_bytes: int | None = field(default=None, metadata=COUNTER)
    nvlink_bytes_per_s: int | None = None
    """Sum of both directions, between the last two readings."""
    nvlink_errors: Labelled = field(default=(), metadata=COUNTER)
    c2c_links: Labelled = ()
    c2c_errors: Labelled = field(default=(), metadata=COUNTER)
    fabric_states: Labelled = ()
    """Each state of the registration: 1 if it is the current one, else 0."""
    fabric_cluster: str = ""
    fabric_clique: int | None = None
    fabric_failed: bool | None = None
    """Whether the registration ended with an error."""
    fabric_conditions: Labelled = ()
    """Each condition of the fabric that limits the GPU: 1 while it applies, else 0."""
    mig_enabled: bool | None = None
    accounting_enabled: bool | None = None
    vgpu_licensed: bool | None = None
    activity: Activity | None = None
    activity_held: bool = False
    """Whether the activity was measured before an earlier reading; only of MIG instances."""
    activity_outdated: bool = False
    """Whether power or processes have changed since; a later reading has the new activity."""
    deferred: bool = False
    """Whether energy and utilization by process are left to a later reading; `energy_mj` is that of the last one."""
    slots: tuple[Slot, ...] = ()
    """Parts of the time since the previous reading, about equally long; only while a GPU is shared."""
    xids: Labelled = field(default=(), metadata=COUNTER)
    last_xid: int | None = None
    residents: tuple[Resident, ...] | None = None
    samples: tuple[Sample, ...] | None = None
    """Samples since the previous reading; `()` if no process worked, `None` if unsupported."""
    accounting: tuple[Accounting, ...] = ()
    driver_ns: int | None = None
    """Time spent in driver calls for this reading."""

    @property
    def reason(self) -> str:
        """What is wrong, without the fix; empty if nothing is."""
        return self.problem.what if self.problem is not None else ""


@dataclass(frozen=True, slots=True)
class Driver:
    """The state of the driver as a whole."""

    up: bool
    problem: Problem | None = None
    driver_version: str = ""
    nvml_version: str = ""
    cuda_version: str = ""

    @property
    def reason(self) -> str:
        """What is wrong, without the fix; empty if nothing is."""
        return self.problem.what if self.problem is not None else ""
