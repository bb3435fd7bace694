"""Every metric, declared once: name, type, unit, help, origin, labels and where its value comes from.

docs/metrics.md, the renderers and the tests all read this table. A family belongs to one kind of thing
(the exporter, a GPU, a MIG instance, a process); the labels of that kind come first on each of its series.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any

from gpuledger import __version__
from gpuledger.model import Device, ProcessUse, Reading, Tick

Value = int | float
Series = Iterable[tuple[tuple[str, ...], Value]]


class Type(Enum):
    """Prometheus types; INFO is a gauge of 1 in the text format and `info` in OpenMetrics."""

    GAUGE = "gauge"
    COUNTER = "counter"
    INFO = "info"


class Of(Enum):
    """Whose number it is, with the labels every family of that kind starts with."""

    EXPORTER = ()
    GPU = ("gpu", "uuid")
    MIG = ("gpu", "uuid", "parent_uuid")
    PROCESS = (
        "pid",
        "gpu",
        "uuid",
        "process_name",
        "namespace",
        "pod",
        "container",
        "pod_uid",
        "container_id",
    )


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: either one value a thing (`value`), or several under extra labels (`series`)."""

    name: str
    type: Type
    of: Of
    help: str
    origin: str
    value: Callable[[Any], Value | None] | None = None
    series: Callable[[Any], Series] | None = None
    labels: tuple[str, ...] = ()
    unit: str = ""


def _at(path: str, scale: float = 1) -> Callable[[Any], Value | None]:
    """The number at `path`, divided by `scale` (1000 turns milliwatts into watts); None when absent.

    A dotted path stops at a record that is not there: `sample.sm_pct` of a process without a sample.
    """
    first, _, rest = path.partition(".")
    read = attrgetter(first)
    if rest:
        inner = _at(rest, scale)
        return lambda thing: None if (part := read(thing)) is None else inner(part)
    if scale == 1:
        return read
    return lambda thing: None if (v := read(thing)) is None else v / scale


def _flag(path: str) -> Callable[[Any], Value | None]:
    read = _at(path)
    return lambda thing: None if (v := read(thing)) is None else int(v)


def _activity(part: str) -> Callable[[Any], Value | None]:
    """A GPM percentage as a ratio, without the digits that dividing by 100 adds."""
    read = _at(f"activity.{part}")
    return lambda reading: None if (v := read(reading)) is None else round(v / 100, 5)


def _named(path: str, scale: float = 1, times: int = 1) -> Callable[[Any], Series]:
    """The numbers under names at `path`, one series a name."""
    read = attrgetter(path)
    if scale == 1:
        return lambda thing: [((name,), v * times) for name, v in read(thing)]
    return lambda thing: [((name,), v / scale) for name, v in read(thing)]


def _pcie(way: str) -> Callable[[Reading], Value | None]:
    """GPM knows PCIe traffic for nothing; the slow call is used only where it was asked for."""
    slow, gpm = _at(f"pcie_{way}_bytes_per_s"), _at(f"activity.pcie_{way}_bytes_per_s")
    return lambda reading: slow(reading) if (v := gpm(reading)) is None else v


def _info(*paths: str) -> Callable[[Any], Series]:
    reads = [attrgetter(path) for path in paths]

    def series(thing: Any) -> Series:
        values = [read(thing) for read in reads]
        return ((tuple("" if v is None else str(v) for v in values), 1),)

    return series


def _build(tick: Tick) -> Series:
    return (((__version__, platform.python_version(), tick.source), 1),)


def _driver(tick: Tick) -> Series:
    driver = tick.driver
    if not driver.driver_version:
        return ()
    return (((driver.driver_version, driver.nvml_version, driver.cuda_version), 1),)


G, C, I = Type.GAUGE, Type.COUNTER, Type.INFO  # noqa: E741 - a table reads better with short marks
SELF = "gpuledger itself"
GPM = "NVML GPM (Hopper and newer), between this reading and the one before"
LISTS = "nvmlDeviceGet{Compute,Graphics,MPSCompute}RunningProcesses"
SAMPLES = "nvmlDeviceGetProcessesUtilizationInfo, or nvmlDeviceGetProcessUtilization where it is missing"
ACCOUNTING = "nvmlDeviceGetAccountingStats, where accounting mode is on"

_ACTIVITY: Sequence[tuple[str, str, str]] = (
    ("graphics_active", "graphics_pct", "Share of time in which any compute or graphics work was active"),
    ("sm_active", "sm_pct", "Share of SMs that were busy, averaged over time"),
    ("sm_occupancy", "occupancy_pct", "Resident warps over the most the SMs can hold"),
    ("tensor_active", "tensor_pct", "Share of time in which the tensor cores were active"),
    ("dram_active", "dram_pct", "Memory bandwidth used over the most there is"),
    ("integer_active", "integer_pct", "Share of time in which the integer pipe was active"),
    ("fp64_active", "fp64_pct", "Share of time in which the fp64 pipe was active, tensor cores not counted"),
    ("fp32_active", "fp32_pct", "Share of time in which the fp32 pipe was active, tensor cores not counted"),
    ("fp16_active", "fp16_pct", "Share of time in which the fp16 pipe was active, tensor cores not counted"),
)


def _activities(prefix: str, of: Of) -> list[Family]:
    return [
        Family(f"{prefix}_{name}_ratio", G, of, f"{text}.", GPM, _activity(part), unit="ratio")
        for name, part, text in _ACTIVITY
    ]


def _memory(prefix: str, of: Of) -> list[Family]:
    call = "nvmlDeviceGetMemoryInfo_v2"
    texts = {
        "total": "Memory of the device.",
        "used": "Memory held by processes; reserved memory is not in it where the v2 call is supported.",
        "free": "Memory nobody holds.",
        "reserved": "Memory the driver and firmware keep for themselves; absent where only the v1 call works.",
    }
    return [
        Family(f"{prefix}_memory_{part}_bytes", G, of, text, call, _at(f"memory_{part}_bytes"), unit="bytes")
        for part, text in texts.items()
    ]


CATALOG: tuple[Family, ...] = (
    # -- the exporter itself
    Family("gpuledger_build_info", I, Of.EXPORTER, "Version of gpuledger, of Python, and what it reads from.",
           SELF, series=_build, labels=("version", "python_version", "source")),
    Family("gpuledger_up", G, Of.EXPORTER, "1 when the driver can be read, else 0; the log says why.",
           "nvmlInit", _flag("driver.up")),
    Family("gpuledger_driver_info", I, Of.EXPORTER, "Versions of the driver, its library and CUDA.",
           "nvmlSystemGet*Version", series=_driver, labels=("driver_version", "nvml_version", "cuda_version")),
    Family("gpuledger_driver_errors_total", C, Of.EXPORTER, "Driver calls that failed in an unforeseen way.",
           "every NVML call", series=attrgetter("health.driver_errors"), labels=("call", "error")),
    Family("gpuledger_tick_timestamp_seconds", G, Of.EXPORTER,
           "Unix time of the readings shown here; a scrape never touches the driver.",
           SELF, _at("time_ns", 1e9), unit="seconds"),
    Family("gpuledger_tick_interval_seconds", G, Of.EXPORTER, "Configured time between two readings.",
           SELF, _at("health.interval_ns", 1e9), unit="seconds"),
    Family("gpuledger_tick_duration_seconds", G, Of.EXPORTER, "How long the last tick took, from first to last stage.",
           SELF, _at("health.duration_ns", 1e9), unit="seconds"),
    Family("gpuledger_ticks_total", C, Of.EXPORTER, "Ticks since start.", SELF, _at("health.ticks")),
    Family("gpuledger_ticks_missed_total", C, Of.EXPORTER, "Ticks left out because one before them took too long.",
           SELF, _at("health.missed_ticks")),
    Family("gpuledger_stage_duration_seconds", G, Of.EXPORTER, "How long each stage of the last tick took.",
           SELF, series=lambda t: [((s.name,), s.duration_ns / 1e9) for s in t.health.stages],
           labels=("stage",), unit="seconds"),
    Family("gpuledger_stage_success", G, Of.EXPORTER, "1 when the stage of the last tick worked, else 0.",
           SELF, series=lambda t: [((s.name,), int(s.success)) for s in t.health.stages], labels=("stage",)),
    Family("gpuledger_resident_memory_bytes", G, Of.EXPORTER, "Resident memory of the exporter.",
           "/proc/self/statm", _at("health.resident_memory_bytes"), unit="bytes"),
    Family("gpuledger_cpu_seconds_total", C, Of.EXPORTER, "CPU time of the exporter, user and system.",
           "getrusage", _at("health.cpu_ms", 1000), unit="seconds"),
    Family("gpuledger_open_fds", G, Of.EXPORTER, "Open file descriptors of the exporter.",
           "/proc/self/fd", _at("health.open_fds")),
    Family("gpuledger_threads", G, Of.EXPORTER, "Threads of the exporter.", SELF, _at("health.threads")),
    Family("gpuledger_start_time_seconds", G, Of.EXPORTER, "Unix time at which the exporter started.",
           SELF, _at("health.start_time_ms", 1000), unit="seconds"),
    Family("gpuledger_http_connections", G, Of.EXPORTER, "Open HTTP connections at the last tick.",
           SELF, _at("health.http_connections")),
    Family("gpuledger_http_connections_rejected_total", C, Of.EXPORTER,
           "HTTP connections closed unanswered or with 503 to stay below the limit.",
           SELF, _at("health.http_rejected")),
    # -- GPUs: identity and memory
    Family("gpu_up", G, Of.GPU, "1 when the GPU answered in this tick, else 0; the log says why.",
           "every NVML call", _flag("up")),
    Family("gpu_info", I, Of.GPU, "What the GPU is.", "nvmlDeviceGet{Name,PciInfo,Serial,VbiosVersion,...}",
           series=_info("device.name", "device.pci_bus_id", "device.minor", "device.serial", "device.vbios_version",
                 "device.board_part_number", "device.architecture", "device.compute_capability"),
           labels=("name", "pci_bus_id", "minor", "serial", "vbios_version", "board_part_number", "architecture",
            "compute_capability")),
    *_memory("gpu", Of.GPU),
    # -- utilization
    Family("gpu_utilization_ratio", G, Of.GPU,
           "Share of the driver's last sample period in which a kernel ran, however small.",
           "nvmlDeviceGetUtilizationRates", _at("utilization_pct", 100), unit="ratio"),
    Family("gpu_memory_utilization_ratio", G, Of.GPU,
           "Share of the driver's last sample period in which memory was read or written.",
           "nvmlDeviceGetUtilizationRates", _at("memory_utilization_pct", 100), unit="ratio"),
    Family("gpu_encoder_utilization_ratio", G, Of.GPU, "Use of the video encoders.",
           "nvmlDeviceGetEncoderUtilization", _at("encoder_pct", 100), unit="ratio"),
    Family("gpu_decoder_utilization_ratio", G, Of.GPU, "Use of the video decoders.",
           "nvmlDeviceGetDecoderUtilization", _at("decoder_pct", 100), unit="ratio"),
    Family("gpu_jpeg_utilization_ratio", G, Of.GPU, "Use of the JPEG engines.",
           "nvmlDeviceGetJpgUtilization", _at("jpeg_pct", 100), unit="ratio"),
    Family("gpu_optical_flow_utilization_ratio", G, Of.GPU, "Use of the optical-flow engines.",
           "nvmlDeviceGetOfaUtilization", _at("optical_flow_pct", 100), unit="ratio"),
    *_activities("gpu", Of.GPU),
    # -- power and energy
    Family("gpu_power_watts", G, Of.GPU, "Power drawn by the board now.",
           "field POWER_INSTANT, or nvmlDeviceGetPowerUsage where it is missing", _at("power_mw", 1000), unit="watts"),
    Family("gpu_power_average_watts", G, Of.GPU, "Power drawn by the board, averaged by the driver over a second.",
           "field POWER_AVERAGE", _at("power_average_mw", 1000), unit="watts"),
    Family("gpu_power_limit_watts", G, Of.GPU, "Power limit in force.",
           "nvmlDeviceGetEnforcedPowerLimit", _at("power_limit_mw", 1000), unit="watts"),
    Family("gpu_power_default_limit_watts", G, Of.GPU, "Power limit the board starts with.",
           "nvmlDeviceGetPowerManagementDefaultLimit", _at("power_default_limit_mw", 1000), unit="watts"),
    Family("gpu_energy_joules_total", C, Of.GPU, "Energy used by the board since the driver was loaded.",
           "nvmlDeviceGetTotalEnergyConsumption (Volta and newer)", _at("energy_mj", 1000), unit="joules"),
    # -- clocks, heat, fans
    Family("gpu_performance_state", G, Of.GPU, "Performance state: 0 is the fastest, 15 the slowest.",
           "nvmlDeviceGetPerformanceState", _at("performance_state")),
    Family("gpu_clock_hertz", G, Of.GPU, "Clock now.", "nvmlDeviceGetClockInfo",
           series=_named("clocks_mhz", times=1_000_000), labels=("clock",), unit="hertz"),
    Family("gpu_clock_max_hertz", G, Of.GPU, "Highest clock the board allows.", "nvmlDeviceGetMaxClockInfo",
           series=_named("max_clocks_mhz", times=1_000_000), labels=("clock",), unit="hertz"),
    Family("gpu_clock_event_active", G, Of.GPU, "1 while the driver holds the clocks back for this reason, else 0.",
           "nvmlDeviceGetCurrentClocksEventReasons", series=_named("clock_events"), labels=("reason",)),
    Family("gpu_clock_event_seconds_total", C, Of.GPU, "Time the clocks were held back, by policy.",
           "nvmlDeviceGetViolationStatus", series=_named("clock_event_ns", 1e9), labels=("policy",), unit="seconds"),
    Family("gpu_temperature_celsius", G, Of.GPU, "Temperature by sensor.",
           "nvmlDeviceGetTemperature, field MEMORY_TEMP",
           series=_named("temperatures_c"), labels=("sensor",), unit="celsius"),
    Family("gpu_temperature_limit_celsius", G, Of.GPU, "Temperature at which the GPU slows down or shuts down.",
           "nvmlDeviceGetTemperatureThreshold",
           series=_named("temperature_limits_c"), labels=("limit",), unit="celsius"),
    Family("gpu_fan_speed_ratio", G, Of.GPU, "Fan speed asked for, over the fan's highest.",
           "nvmlDeviceGetFanSpeed_v2", series=_named("fans_pct", 100), labels=("fan",), unit="ratio"),
    # -- faults
    Family("gpu_ecc_enabled", G, Of.GPU, "1 when error correction is on.", "nvmlDeviceGetEccMode",
           _flag("ecc_enabled")),
    Family("gpu_ecc_errors_total", C, Of.GPU, "ECC errors over the life of the board.",
           "nvmlDeviceGetTotalEccErrors, aggregate", series=_named("ecc_errors"), labels=("error",)),
    Family("gpu_ecc_volatile_errors_total", C, Of.GPU, "ECC errors since the driver was loaded.",
           "nvmlDeviceGetTotalEccErrors, volatile", series=_named("ecc_volatile_errors"), labels=("error",)),
    Family("gpu_remapped_rows_total", C, Of.GPU, "Memory rows replaced by spare ones, by cause.",
           "nvmlDeviceGetRemappedRows", series=_named("remapped_rows"), labels=("cause",)),
    Family("gpu_row_remap_pending", G, Of.GPU, "1 when a row waits for the next reset to be remapped.",
           "nvmlDeviceGetRemappedRows", _flag("row_remap_pending")),
    Family("gpu_row_remap_failed", G, Of.GPU, "1 when a row could not be remapped: replace the board.",
           "nvmlDeviceGetRemappedRows", _flag("row_remap_failed")),
    Family("gpu_xid_errors_total", C, Of.GPU, "XID errors since the exporter started, by code.",
           "nvmlEventSetWait (XidCriticalError)", series=_named("xids"), labels=("xid",)),
    # -- links
    Family("gpu_pcie_replays_total", C, Of.GPU, "PCIe packets sent again.", "nvmlDeviceGetPcieReplayCounter",
           _at("pcie_replays")),
    Family("gpu_pcie_link_generation", G, Of.GPU, "PCIe generation of the link now; idle links fall back.",
           "nvmlDeviceGetCurrPcieLinkGeneration", _at("pcie_generation")),
    Family("gpu_pcie_link_width", G, Of.GPU, "PCIe lanes in use.", "nvmlDeviceGetCurrPcieLinkWidth",
           _at("pcie_width")),
    Family("gpu_pcie_link_max_generation", G, Of.GPU, "Highest PCIe generation of board and slot.",
           "nvmlDeviceGetMaxPcieLinkGeneration", _at("pcie_max_generation")),
    Family("gpu_pcie_link_max_width", G, Of.GPU, "Most PCIe lanes of board and slot.",
           "nvmlDeviceGetMaxPcieLinkWidth", _at("pcie_max_width")),
    Family("gpu_pcie_transmit_bytes_per_second", G, Of.GPU, "PCIe traffic from the GPU.",
           "GPM, or nvmlDeviceGetPcieThroughput with --collector.pcie-throughput", _pcie("transmit")),
    Family("gpu_pcie_receive_bytes_per_second", G, Of.GPU, "PCIe traffic to the GPU.",
           "GPM, or nvmlDeviceGetPcieThroughput with --collector.pcie-throughput", _pcie("receive")),
    Family("gpu_nvlink_links", G, Of.GPU, "NVLinks by state.", "nvmlDeviceGetNvLinkState",
           series=_named("nvlinks"), labels=("state",)),
    Family("gpu_nvlink_transmit_bytes_total", C, Of.GPU, "Data sent over all NVLinks.",
           "field NVLINK_THROUGHPUT_DATA_TX", _at("nvlink_transmit_bytes"), unit="bytes"),
    Family("gpu_nvlink_receive_bytes_total", C, Of.GPU, "Data received over all NVLinks.",
           "field NVLINK_THROUGHPUT_DATA_RX", _at("nvlink_receive_bytes"), unit="bytes"),
    Family("gpu_nvlink_errors_total", C, Of.GPU, "NVLink errors by kind, all links.",
           "nvmlDeviceGetNvLinkErrorCounter", series=_named("nvlink_errors"), labels=("error",)),
    # -- modes
    Family("gpu_mig_enabled", G, Of.GPU, "1 when the GPU is cut into MIG instances.",
           "nvmlDeviceGetMigMode", _flag("mig_enabled")),
    Family("gpu_accounting_enabled", G, Of.GPU, "1 when the driver keeps accounts of processes.",
           "nvmlDeviceGetAccountingMode", _flag("accounting_enabled")),
    Family("gpu_processes", G, Of.GPU, "Processes the driver lists on the GPU.", LISTS,
           lambda r: None if r.residents is None else len(r.residents)),
    Family("gpuledger_driver_seconds", G, Of.GPU, "Time the last tick spent inside driver calls for this GPU.",
           SELF, _at("driver_ns", 1e9), unit="seconds"),
    # -- MIG instances, in families of their own so that sums over GPUs count nothing twice
    Family("gpu_mig_info", I, Of.MIG, "What the MIG instance is.", "nvmlDeviceGetMigDeviceHandleByIndex",
           series=_info("device.name", "device.mig_profile", "device.gpu_instance_id", "device.compute_instance_id",
                 "device.multiprocessors"),
           labels=("name", "profile", "gpu_instance_id", "compute_instance_id", "multiprocessors")),
    *_memory("gpu_mig", Of.MIG),
    *_activities("gpu_mig", Of.MIG),
    # -- processes
    Family("gpu_process_info", I, Of.PROCESS, "How the process uses the GPU and as which user it runs.",
           f"{LISTS}; /proc/PID/status",
           series=lambda p: (((p.resident.kind, _uid(p)), 1),), labels=("kind", "uid")),
    Family("gpu_process_active", G, Of.PROCESS, "1 while the process is on the GPU.", LISTS, lambda _: 1),
    Family("gpu_process_memory_used_bytes", G, Of.PROCESS, "GPU memory of the process; absent where not told.",
           LISTS, _at("resident.memory_bytes"), unit="bytes"),
    Family("gpu_process_sm_utilization_ratio", G, Of.PROCESS,
           "Share of time the process had the compute engine, as sampled by the driver about every 0.2 s.",
           SAMPLES, _at("sample.sm_pct", 100), unit="ratio"),
    Family("gpu_process_memory_utilization_ratio", G, Of.PROCESS,
           "Share of time the process had memory busy, as sampled by the driver.",
           SAMPLES, _at("sample.memory_pct", 100), unit="ratio"),
    Family("gpu_process_encoder_utilization_ratio", G, Of.PROCESS, "Share of the video encoders the process used.",
           SAMPLES, _at("sample.encoder_pct", 100), unit="ratio"),
    Family("gpu_process_decoder_utilization_ratio", G, Of.PROCESS, "Share of the video decoders the process used.",
           SAMPLES, _at("sample.decoder_pct", 100), unit="ratio"),
    Family("gpu_process_start_time_seconds", G, Of.PROCESS, "Unix time at which the process started.",
           "/proc/PID/stat", _at("facts.start_time_ms", 1000), unit="seconds"),
    Family("gpu_process_accounting_utilization_ratio", G, Of.PROCESS,
           "Compute engine use over the life of the process.", ACCOUNTING,
           _at("accounting.gpu_pct", 100), unit="ratio"),
    Family("gpu_process_accounting_memory_utilization_ratio", G, Of.PROCESS,
           "Memory activity over the life of the process.", ACCOUNTING,
           _at("accounting.memory_pct", 100), unit="ratio"),
    Family("gpu_process_accounting_peak_memory_bytes", G, Of.PROCESS, "Most GPU memory the process ever held.",
           ACCOUNTING, _at("accounting.peak_memory_bytes"), unit="bytes"),
)  # fmt: skip


def _uid(use: ProcessUse) -> str:
    return "" if use.facts is None or use.facts.uid is None else str(use.facts.uid)


def things(tick: Tick, of: Of) -> Iterable[tuple[tuple[str, ...], Any]]:
    """Everything of a kind in this tick, each with the values of the kind's labels."""
    if of is Of.EXPORTER:
        return [((), tick)]
    if of is Of.GPU:
        return [(_device(r.device), r) for r in tick.readings if not r.device.parent_uuid]
    if of is Of.MIG:
        return [((*_device(r.device), r.device.parent_uuid), r) for r in tick.readings if r.device.parent_uuid]
    return [(_process_labels(use), use) for use in tick.processes]


def _device(device: Device) -> tuple[str, str]:
    return str(device.index), device.uuid


def _process_labels(use: ProcessUse) -> tuple[str, ...]:
    name = use.facts.name if use.facts is not None else ""
    return (str(use.resident.pid), *_device(use.device), name, "", "", "", "", "")
