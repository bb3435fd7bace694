"""Metrics of GPUs and of MIG instances."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuledger.catalog.family import (
    C,
    Family,
    G,
    I,
    Kind,
    Series,
    Value,
    activity,
    at,
    divided,
    flag,
    info,
    named,
    pcie,
)
from gpuledger.catalog.kinds import (
    GPU,
    GPU_ACCOUNT,
    GPU_MEMORY,
    GPU_UNATTRIBUTED,
    GPU_USERS,
    MIG,
    MIG_MEMORY,
    MIG_UNATTRIBUTED,
)
from gpuledger.model import Account, MemoryAccount, Percentages, Reading

GPM = "NVML GPM"
GRAPHICS = "nvmlDeviceGetProcessUtilization, summed, on GPUs with GPM; GPM for MIG instances"
LISTS = "nvmlDeviceGet{Compute,Graphics,MPSCompute}RunningProcesses"

ENERGY = "nvmlDeviceGetTotalEnergyConsumption (Volta and newer), or power times time"
LEDGER = "the energy books"
MEMORY = "the memory books"

ACTIVITY: Sequence[tuple[str, str, str]] = (
    ("graphics_active", "graphics_pct", "Share of time in which compute or graphics work was active"),
    ("sm_active", "sm_pct", "Share of SMs with at least one active warp, averaged over time"),
    ("sm_occupancy", "occupancy_pct", "Resident warps divided by the maximum number of warps"),
    ("tensor_active", "tensor_pct", "Share of time in which the tensor cores were active"),
    ("dram_active", "dram_pct", "Used memory bandwidth divided by the peak bandwidth"),
    ("integer_active", "integer_pct", "Share of time in which the integer pipe was active"),
    ("fp64_active", "fp64_pct", "Share of time in which the fp64 pipe was active, without tensor cores"),
    ("fp32_active", "fp32_pct", "Share of time in which the fp32 pipe was active, without tensor cores"),
    ("fp16_active", "fp16_pct", "Share of time in which the fp16 pipe was active, without tensor cores"),
)
"""Name, field and meaning of each activity."""
OWNED = [entry for entry in ACTIVITY if entry[0] in ("graphics_active", "sm_active", "tensor_active", "dram_active")]
"""Those that processes and containers have; more would double their number of series."""


def _activities(prefix: str, of: Kind) -> list[Family]:
    return [
        Family(f"{prefix}_{name}_ratio", G, of, f"{text}.", GRAPHICS if part == "graphics_pct" else GPM,
               activity(part), unit="ratio")
        for name, part, text in ACTIVITY
    ]  # fmt: skip


READERS = [(name, divided(part)) for name, part, _ in OWNED]


def _by_activity(rest: Percentages) -> Series:
    return [((name,), value) for name, read in READERS if (value := read(rest)) is not None]


UNATTRIBUTED_ACTIVITY: tuple[Family, ...] = tuple(
    Family(f"{prefix}_unattributed_activity_ratio", G, of,
           "The part of each activity that belongs to no process.", LEDGER, series=_by_activity,
           labels=("activity",), unit="ratio")
    for prefix, of in (("gpu", GPU_UNATTRIBUTED), ("gpu_mig", MIG_UNATTRIBUTED))
)  # fmt: skip


def _memory(prefix: str, of: Kind, account: Kind) -> list[Family]:
    call = "nvmlDeviceGetMemoryInfo_v2"
    texts = {
        "total": "Total memory of the device.",
        "used": "Used memory, without reserved memory if the v2 call is supported.",
        "free": "Free memory.",
        "reserved": "Memory reserved by driver and firmware; absent if only the v1 call is supported.",
    }
    booked = {
        "known": "Memory of the processes that the driver lists.",
        "overhead": "Used memory beyond the listed amounts: contexts, and memory that is being allocated or freed.",
        "unknown": "Used memory that no listed process holds. Known, overhead and unknown add up to used.",
    }
    return [
        *(
            Family(f"{prefix}_memory_{part}_bytes", G, of, text, call, _bytes(part), unit="bytes")
            for part, text in texts.items()
        ),
        *(
            Family(f"{prefix}_memory_{part}_bytes", G, account, text, f"{call} and {LISTS}", at(f"{part}_bytes"),
                   unit="bytes")
            for part, text in booked.items()
        ),
        Family(f"{prefix}_inference_active", G, account, "1 if used memory exceeds what the listed processes hold.",
               MEMORY, has_unknown_memory),
        Family(f"{prefix}_inference_candidates", G, account,
               "Owners with the best evidence for holding the unknown memory, which is split equally among them.",
               MEMORY, at("candidates")),
    ]  # fmt: skip


def _bytes(part: str) -> Callable[[Reading], Value | None]:
    own = at(f"memory_{part}_bytes")
    if part not in ("total", "used"):
        return own
    system = at(f"system_memory_{part}_bytes")
    return lambda reading: system(reading) if (v := own(reading)) is None else v


def has_unknown_memory(memory: MemoryAccount) -> Value | None:
    """1 if used memory exceeds what the listed processes hold."""
    return None if memory.unknown_bytes is None else int(memory.unknown_bytes > 0)


def _counter_power(account: Account) -> Value | None:
    if not account.checked_power_mj:
        return None
    return round(account.checked_counter_mj / account.checked_power_mj, 5)


GPUS: tuple[Family, ...] = (
    # -- GPUs: identity and memory
    Family("gpu_up", G, GPU, "1 if the GPU could be read in this tick.",
           "every NVML call", flag("up")),
    Family("gpu_info", I, GPU, "Properties of the GPU.", "nvmlDeviceGet{Name,PciInfo,Serial,VbiosVersion,...}",
           series=info("device.name", "device.pci_bus_id", "device.minor", "device.serial", "device.vbios_version",
                 "device.board_part_number", "device.architecture", "device.compute_capability",
                 "device.driver_version"),
           labels=("name", "pci_bus_id", "minor", "serial", "vbios_version", "board_part_number", "architecture",
            "compute_capability", "driver_version")),
    *_memory("gpu", GPU, GPU_MEMORY),
    Family("gpu_memory_source_info", I, GPU,
           "Source of total and used memory, if it is not the driver: system, of which GPU and CPU share the memory.",
           "/proc/meminfo", series=lambda r: () if r.system_memory_total_bytes is None else [(("system",), 1)],
           labels=("source",)),
    # -- utilization
    Family("gpu_utilization_ratio", G, GPU,
           "Share of the driver's last sample period in which at least one kernel ran.",
           "nvmlDeviceGetUtilizationRates", at("utilization_pct", 100), unit="ratio"),
    Family("gpu_busy_seconds_total", C, GPU_ACCOUNT, "Time in which a kernel ran: utilization times time.",
           "nvmlDeviceGetUtilizationRates", at("busy_ns", 1e9), unit="seconds"),
    Family("gpu_in_use", G, GPU_ACCOUNT, "1 if a process is on the GPU, busy or not.", LISTS,
           flag("in_use")),
    Family("gpu_in_use_seconds_total", C, GPU_ACCOUNT, "Time in which a process was on the GPU, busy or not.", LISTS,
           at("in_use_ns", 1e9), unit="seconds"),
    Family("gpu_memory_utilization_ratio", G, GPU,
           "Share of the driver's last sample period in which memory was read or written.",
           "nvmlDeviceGetUtilizationRates", at("memory_utilization_pct", 100), unit="ratio"),
    Family("gpu_encoder_utilization_ratio", G, GPU, "Utilization of the video encoders.",
           "nvmlDeviceGetEncoderUtilization", at("encoder_pct", 100), unit="ratio"),
    Family("gpu_decoder_utilization_ratio", G, GPU, "Utilization of the video decoders.",
           "nvmlDeviceGetDecoderUtilization", at("decoder_pct", 100), unit="ratio"),
    Family("gpu_jpeg_utilization_ratio", G, GPU, "Utilization of the JPEG engines.",
           "nvmlDeviceGetJpgUtilization", at("jpeg_pct", 100), unit="ratio"),
    Family("gpu_optical_flow_utilization_ratio", G, GPU, "Optical-flow engine utilization.",
           "nvmlDeviceGetOfaUtilization", at("optical_flow_pct", 100), unit="ratio"),
    *_activities("gpu", GPU),
    # -- power and energy
    Family("gpu_power_watts", G, GPU, "Power draw of the board.",
           "field POWER_INSTANT, else nvmlDeviceGetPowerUsage", at("power_mw", 1000), unit="watts"),
    Family("gpu_power_average_watts", G, GPU, "Power draw of the board, averaged over one second by the driver.",
           "field POWER_AVERAGE", at("power_average_mw", 1000), unit="watts"),
    Family("gpu_module_power_watts", G, GPU, "Power draw of the module: GPU and CPU together, as of GB200.",
           "field POWER_INSTANT, scope module", at("power_module_mw", 1000), unit="watts"),
    Family("gpu_power_smoothing_enabled", G, GPU, "1 if the driver smooths changes of power (Blackwell).",
           "field PWR_SMOOTHING_ENABLED", flag("power_smoothing_enabled")),
    Family("gpu_power_limit_watts", G, GPU, "Enforced power limit.",
           "nvmlDeviceGetEnforcedPowerLimit", at("power_limit_mw", 1000), unit="watts"),
    Family("gpu_power_default_limit_watts", G, GPU, "Default power limit.",
           "nvmlDeviceGetPowerManagementDefaultLimit", at("power_default_limit_mw", 1000), unit="watts"),
    Family("gpu_energy_joules_total", C, GPU_ACCOUNT,
           "Energy used by the board, from the driver's counter, also if the driver is reloaded.",
           ENERGY, at("energy_mj", 1000), unit="joules"),
    Family("gpu_energy_source_info", I, GPU_ACCOUNT,
           "Source of the energy: counter, or power (integrated over time) without a counter or with a stuck one.",
           LEDGER, series=info("source"), labels=("source",)),
    Family("gpu_idle_energy_joules_total", C, GPU_ACCOUNT, "Energy used while no process was on the GPU.",
           LEDGER, at("idle_mj", 1000), unit="joules"),
    Family("gpu_retired_energy_joules_total", C, GPU_ACCOUNT, "Energy of exited processes that are no longer exposed.",
           LEDGER, at("retired_mj", 1000), unit="joules"),
    Family("gpu_unattributed_energy_joules_total", C, GPU_ACCOUNT,
           "Energy that could not be attributed, by reason. Processes, idle, retired and this add up to the GPU.",
           LEDGER, series=named("unattributed_mj", 1000), labels=("reason",), unit="joules"),
    Family("gpu_user_energy_joules_total", C, GPU_USERS,
           "Energy of all processes of a user outside of containers, exited ones and those beyond --process.max "
           "included, since the exporter started.",
           LEDGER, series=lambda users: [((uid, user), mj / 1000) for uid, user, mj in users],
           labels=("uid", "user"), unit="joules"),
    Family("gpu_idle_power_watts", G, GPU_ACCOUNT, "Power draw with no process on the GPU; absent until observed.",
           LEDGER, at("idle_power_mw", 1000), unit="watts"),
    Family("gpu_parked_power_watts", G, GPU_ACCOUNT,
           "Power draw with only waiting processes on the GPU.",
           LEDGER, at("parked_power_mw", 1000), unit="watts"),
    Family("gpu_parked_power_source_info", I, GPU_ACCOUNT,
           "Source of the parked power: measured at rest, earlier (from the journal), "
           "or model (usual for the GPU model).",
           LEDGER, series=info("parked_power_source"), labels=("source",)),
    Family("gpu_energy_over_power_ratio", G, GPU_ACCOUNT,
           "Increase of the energy counter divided by integrated power, over the last hours; close to 1.",
           LEDGER, _counter_power, unit="ratio"),
    Family("gpuledger_ledger_residual_joules", G, GPU_ACCOUNT, "Device energy minus all booked energy. Always 0.",
           LEDGER, at("residual_mj", 1000), unit="joules"),
    # -- clocks, heat, fans
    Family("gpu_clock_hertz", G, GPU,
           "Current clock frequency.",
           "nvmlDeviceGetClockInfo",
           series=named("clocks_mhz", times=1_000_000), labels=("clock",), unit="hertz"),
    Family("gpu_clock_event_active", G, GPU,
           "1 while the driver throttles the clocks for this reason.",
           "nvmlDeviceGetCurrentClocksEventReasons", series=named("clock_events"), labels=("reason",)),
    Family("gpu_clock_event_seconds_total", C, GPU, "Time in which the clocks were throttled, by policy.",
           "nvmlDeviceGetViolationStatus", series=named("clock_event_ns", 1e9), labels=("policy",), unit="seconds"),
    Family("gpu_temperature_celsius", G, GPU,
           "Temperature by sensor.",
           "nvmlDeviceGetTemperature, field MEMORY_TEMP",
           series=named("temperatures_c"), labels=("sensor",), unit="celsius"),
    Family("gpu_temperature_limit_celsius", G, GPU, "Temperature at which the GPU slows down or shuts down.",
           "nvmlDeviceGetTemperatureThreshold",
           series=named("temperature_limits_c"), labels=("limit",), unit="celsius"),
    Family("gpu_fan_speed_ratio", G, GPU, "Target fan speed divided by the maximum speed.",
           "nvmlDeviceGetFanSpeed_v2", series=named("fans_pct", 100), labels=("fan",), unit="ratio"),
    # -- faults
    Family("gpu_ecc_errors_total", C, GPU, "ECC errors over the lifetime of the board.",
           "nvmlDeviceGetTotalEccErrors, aggregate", series=named("ecc_errors"), labels=("error",)),
    Family("gpu_ecc_volatile_errors_total", C, GPU, "ECC errors since the driver was loaded.",
           "nvmlDeviceGetTotalEccErrors, volatile", series=named("ecc_volatile_errors"), labels=("error",)),
    Family("gpu_sram_ecc_threshold_exceeded", G, GPU,
           "1 if the on-chip memory had more uncorrected errors than NVIDIA accepts: replace the board.",
           "nvmlDeviceGetSramEccErrorStatus", flag("sram_threshold_exceeded")),
    Family("gpu_memory_unrepairable", G, GPU, "1 if the GPU has memory that cannot be repaired: replace the board.",
           "nvmlDeviceGetUnrepairableMemoryFlag_v1", flag("memory_unrepairable")),
    Family("gpu_remapped_rows_total", C, GPU, "Memory rows replaced by spare rows, by cause.",
           "nvmlDeviceGetRemappedRows", series=named("remapped_rows"), labels=("cause",)),
    Family("gpu_row_remap_pending", G, GPU, "1 if a row remapping is pending until the next reset.",
           "nvmlDeviceGetRemappedRows", flag("row_remap_pending")),
    Family("gpu_row_remap_failed", G, GPU, "1 if a row could not be remapped: replace the board.",
           "nvmlDeviceGetRemappedRows", flag("row_remap_failed")),
    Family("gpu_xid_errors_total", C, GPU, "XID errors since the exporter started, by code.",
           "nvmlEventSetWait (XidCriticalError)", series=named("xids"), labels=("xid",)),
    # -- links
    Family("gpu_pcie_replays_total", C, GPU, "PCIe replays.", "nvmlDeviceGetPcieReplayCounter",
           at("pcie_replays")),
    Family("gpu_pcie_link_width", G, GPU, "PCIe lanes in use.", "nvmlDeviceGetCurrPcieLinkWidth",
           at("pcie_width")),
    Family("gpu_pcie_link_max_width", G, GPU, "Maximum number of PCIe lanes of board and slot.",
           "nvmlDeviceGetMaxPcieLinkWidth", at("pcie_max_width")),
    Family("gpu_pcie_transmit_bytes_per_second", G, GPU, "PCIe throughput from the GPU.",
           "GPM, or nvmlDeviceGetPcieThroughput with --collector.pcie-throughput", pcie("transmit")),
    Family("gpu_pcie_receive_bytes_per_second", G, GPU, "PCIe throughput to the GPU.",
           "GPM, or nvmlDeviceGetPcieThroughput with --collector.pcie-throughput", pcie("receive")),
    Family("gpu_nvlink_links", G, GPU, "NVLinks by state.", "nvmlDeviceGetNvLinkState",
           series=named("nvlinks"), labels=("state",)),
    Family("gpu_nvlink_transmit_bytes_total", C, GPU, "Data sent over all NVLinks.",
           "field NVLINK_THROUGHPUT_DATA_TX, NVLINK_COUNT_XMIT_BYTES on Blackwell",
           at("nvlink_transmit_bytes"), unit="bytes"),
    Family("gpu_nvlink_receive_bytes_total", C, GPU, "Data received over all NVLinks.",
           "field NVLINK_THROUGHPUT_DATA_RX, NVLINK_COUNT_RCV_BYTES on Blackwell",
           at("nvlink_receive_bytes"), unit="bytes"),
    Family("gpu_nvlink_errors_total", C, GPU, "NVLink errors of all links, by kind.",
           "nvmlDeviceGetNvLinkErrorCounter, fields NVLINK_COUNT_* on Blackwell",
           series=named("nvlink_errors"), labels=("error",)),
    Family("gpu_c2c_links", G, GPU, "Links between GPU and CPU of one module (NVLink-C2C), by state.",
           "fields C2C_LINK_COUNT, C2C_LINK_GET_STATUS", series=named("c2c_links"), labels=("state",)),
    Family("gpu_c2c_errors_total", C, GPU, "Errors of all links between GPU and CPU of one module, by kind.",
           "fields C2C_LINK_ERROR_*", series=named("c2c_errors"), labels=("error",)),
    Family("gpu_fabric_info", I, GPU, "Cluster and clique of the GPU in the NVLink fabric, once it is registered.",
           "nvmlDeviceGetGpuFabricInfoV", series=info("fabric_cluster", "fabric_clique"),
           labels=("fabric_uuid", "clique")),
    Family("gpu_fabric_state", G, GPU, "1 for the current state of the registration with the NVLink fabric.",
           "nvmlDeviceGetGpuFabricInfoV", series=named("fabric_states"), labels=("state",)),
    Family("gpu_fabric_registration_failed", G, GPU, "1 if the registration with the NVLink fabric failed.",
           "nvmlDeviceGetGpuFabricInfoV", flag("fabric_failed")),
    Family("gpu_fabric_condition_active", G, GPU, "1 while this condition of the NVLink fabric limits the GPU.",
           "nvmlDeviceGetGpuFabricInfoV, health mask", series=named("fabric_conditions"), labels=("condition",)),
    # -- modes
    Family("gpu_mig_enabled", G, GPU, "1 if MIG mode is enabled.",
           "nvmlDeviceGetMigMode", flag("mig_enabled")),
    Family("gpu_processes", G, GPU, "Processes that the driver lists on the GPU.", LISTS,
           lambda r: None if r.residents is None else len({resident.pid for resident in r.residents})),
    Family("gpuledger_driver_seconds", G, GPU, "Time spent in driver calls for this GPU in the last tick.",
           "gpuledger", at("driver_ns", 1e9), unit="seconds"),
)  # fmt: skip

HARDWARE: tuple[Family, ...] = (
    Family("gpu_memory_power_watts", G, GPU, "Power draw of the memory, averaged over one second; part of the board's.",
           "field POWER_AVERAGE, scope memory", at("power_memory_mw", 1000), unit="watts"),
    Family("gpu_performance_state", G, GPU,
           "Performance state, from 0 (fastest) to 15 (slowest).",
           "nvmlDeviceGetPerformanceState", at("performance_state")),
    Family("gpu_clock_max_hertz", G, GPU, "Maximum clock frequency.", "nvmlDeviceGetMaxClockInfo",
           series=named("max_clocks_mhz", times=1_000_000), labels=("clock",), unit="hertz"),
    Family("gpu_ecc_enabled", G, GPU, "1 if ECC is enabled.", "nvmlDeviceGetEccMode",
           flag("ecc_enabled")),
    Family("gpu_sram_ecc_errors_total", C, GPU, "ECC errors of the on-chip memory over the lifetime of the board.",
           "nvmlDeviceGetSramEccErrorStatus, aggregate", series=named("sram_errors"), labels=("error",)),
    Family("gpu_sram_ecc_volatile_errors_total", C, GPU,
           "ECC errors of the on-chip memory since the driver was loaded.",
           "nvmlDeviceGetSramEccErrorStatus, volatile", series=named("sram_volatile_errors"), labels=("error",)),
    Family("gpu_sram_ecc_uncorrected_by_unit_total", C, GPU,
           "Uncorrected ECC errors of the on-chip memory over the lifetime of the board, by unit of the chip.",
           "nvmlDeviceGetSramEccErrorStatus", series=named("sram_uncorrected"), labels=("chip_unit",)),
    Family("gpu_recovery_action_required", G, GPU, "1 if the driver asks for this action to recover the GPU.",
           "field GET_GPU_RECOVERY_ACTION", series=named("recovery_actions"), labels=("action",)),
    Family("gpu_pcie_link_generation", G, GPU, "Current PCIe generation of the link; lower on idle links.",
           "nvmlDeviceGetCurrPcieLinkGeneration", at("pcie_generation")),
    Family("gpu_pcie_link_max_generation", G, GPU, "Maximum PCIe generation of board and slot.",
           "nvmlDeviceGetMaxPcieLinkGeneration", at("pcie_max_generation")),
    Family("gpu_accounting_enabled", G, GPU, "1 if accounting mode is enabled.",
           "nvmlDeviceGetAccountingMode", flag("accounting_enabled")),
    Family("gpu_vgpu_license_active", G, GPU,
           "1 if a vGPU software license is active; 0 if not, or on bare metal.",
           "nvmlDeviceGetGridLicensableFeatures", flag("vgpu_licensed")),
)  # fmt: skip
"""Details of a board that no dashboard, alert or report needs."""

# Separate families, so that a sum over GPUs counts nothing twice.
MIG_INSTANCES: tuple[Family, ...] = (
    Family("gpu_mig_info", I, MIG, "Properties of the MIG instance.", "nvmlDeviceGetMigDeviceHandleByIndex",
           series=info("device.name", "device.mig_profile", "device.gpu_instance_id", "device.compute_instance_id",
                 "device.multiprocessors"),
           labels=("name", "profile", "gpu_instance_id", "compute_instance_id", "multiprocessors")),
    *_memory("gpu_mig", MIG, MIG_MEMORY),
    *_activities("gpu_mig", MIG),
)  # fmt: skip
