"""What the driver says of devices and the processes on them, and what the books make of a device."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.problem import Problem

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

    @property
    def gpu_uuid(self) -> str:
        """Of the whole GPU, also for a MIG instance."""
        return self.parent_uuid or self.uuid


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
    """`compute`, `graphics` or `mps`; `compute+graphics` when several lists name it, `unlisted` when none does."""
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

    @property
    def busy_ns(self) -> int:
        """How long it had the compute engine."""
        return (self.gpu_pct or 0) * self.time_ms * 10_000


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """Whose the used memory of a device is: used = known + overhead + unknown, where the driver says what is used."""

    known_bytes: int
    """Of the processes the driver lists."""
    unknown_bytes: int | None = None
    """Held by somebody the driver does not list."""
    overhead_bytes: int | None = None
    """What contexts need beside what is listed."""
    inferred_bytes: int = 0
    """The part of unknown that containers are taken to hold."""
    candidates: int = 0
    """How many may hold what is unknown, of those with the best evidence."""


@dataclass(frozen=True, slots=True)
class Account:
    """What the books hold of one GPU. Its processes' energy is in their own rows; with it the sum is `energy_mj`."""

    energy_mj: int | None = None
    source: str = ""
    """`counter`, or `power` where the GPU has no energy counter and power is added up instead."""
    idle_mj: int = 0
    retired_mj: int = 0
    """Of processes whose rows are gone."""
    unowned_mj: int = 0
    """All that is no container's, shown or gone. Never falls: what a container got late is first made up for."""
    booked_mj: int = 0
    """The energy of the interval that was booked last."""
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
    problem: Problem | None = None
    """Why the device is down; None while it is up."""
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
    nvlink_bytes_per_s: int | None = None
    """Both ways together, between the last two readings of them."""
    nvlink_errors: Labelled = ()
    mig_enabled: bool | None = None
    accounting_enabled: bool | None = None
    vgpu_licensed: bool | None = None
    activity: Activity | None = None
    xids: Labelled = ()
    last_xid: int | None = None
    residents: tuple[Resident, ...] | None = None
    samples: tuple[Sample, ...] | None = None
    """Rows newer than those of any reading before; `()` when nothing ran, `None` when unsupported."""
    accounting: tuple[Accounting, ...] = ()
    driver_ns: int | None = None
    """Time spent inside driver calls for this reading."""

    @property
    def reason(self) -> str:
        """The problem as one line; empty if there is none."""
        return str(self.problem or "")


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
        """The problem as one line; empty if there is none."""
        return str(self.problem or "")
