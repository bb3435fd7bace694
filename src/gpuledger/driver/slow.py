"""The values of a GPU that change rarely: errors, links, health and modes every tenth tick, limits once.

Numbers of fields that the binding names only in newer versions are given here.
"""

from __future__ import annotations

from struct import Struct
from typing import Any
from uuid import UUID

import pynvml

from gpuledger.driver.call import Calls, Handle
from gpuledger.driver.values import CLOCKS, Fields, Part, Record, each, engine_pct, field_values, one, read_parts

OTHER_CLOCKS = (("graphics", pynvml.NVML_CLOCK_GRAPHICS), ("video", pynvml.NVML_CLOCK_VIDEO))
"""On all GPUs since Fermi the graphics clock equals the SM clock."""
TEMPERATURE_LIMITS = (
    ("shutdown", pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
    ("slowdown", pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
    ("memory_max", pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX),
    ("gpu_max", pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX),
)
CONSTANTS: tuple[Part, ...] = (
    one("power_default_limit_mw", pynvml.nvmlDeviceGetPowerManagementDefaultLimit),
    each("max_clocks_mhz", pynvml.nvmlDeviceGetMaxClockInfo, (*OTHER_CLOCKS, *CLOCKS)),
    each("temperature_limits_c", pynvml.nvmlDeviceGetTemperatureThreshold, TEMPERATURE_LIMITS),
    one("pcie_max_generation", pynvml.nvmlDeviceGetMaxPcieLinkGeneration),
    one("pcie_max_width", pynvml.nvmlDeviceGetMaxPcieLinkWidth),
)
"""Limits of the board. Read once: the call for the highest clocks blocks up to 47 ms on an H200."""
PCIE_THROUGHPUT: tuple[Part, ...] = tuple(
    one(field, pynvml.nvmlDeviceGetPcieThroughput, direction, convert=lambda kib: kib * 1024)
    for field, direction in (
        ("pcie_transmit_bytes_per_s", pynvml.NVML_PCIE_UTIL_TX_BYTES),
        ("pcie_receive_bytes_per_s", pynvml.NVML_PCIE_UTIL_RX_BYTES),
    )
)
"""Read only on request, because each call blocks 21 ms on an H200."""
IMAGES: tuple[Part, ...] = (
    one("jpeg_pct", pynvml.nvmlDeviceGetJpgUtilization, convert=engine_pct),
    one("optical_flow_pct", pynvml.nvmlDeviceGetOfaUtilization, convert=engine_pct),
    each("clocks_mhz", pynvml.nvmlDeviceGetClockInfo, OTHER_CLOCKS),
)
POLICIES = (
    ("power", pynvml.NVML_PERF_POLICY_POWER),
    ("thermal", pynvml.NVML_PERF_POLICY_THERMAL),
    ("sync_boost", pynvml.NVML_PERF_POLICY_SYNC_BOOST),
    ("board_limit", pynvml.NVML_PERF_POLICY_BOARD_LIMIT),
    ("low_utilization", pynvml.NVML_PERF_POLICY_LOW_UTILIZATION),
    ("reliability", pynvml.NVML_PERF_POLICY_RELIABILITY),
)
ECC_ERRORS: tuple[Part, ...] = tuple(
    each(
        field,
        pynvml.nvmlDeviceGetTotalEccErrors,
        (
            ("corrected", pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, scope),
            ("uncorrected", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, scope),
        ),
    )
    for field, scope in (("ecc_volatile_errors", pynvml.NVML_VOLATILE_ECC), ("ecc_errors", pynvml.NVML_AGGREGATE_ECC))
)
NVLINK_ERRORS = (
    ("replay", pynvml.NVML_NVLINK_ERROR_DL_REPLAY),
    ("recovery", pynvml.NVML_NVLINK_ERROR_DL_RECOVERY),
    ("crc_flit", pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT),
    ("crc_data", pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA),
)
ALL_LINKS = 0xFFFFFFFF
TRANSMITTED, RECEIVED = 202, 204
"""Fields of NVLink 5 (Blackwell), in bytes by link; the fields and calls of older links are not supported there."""
NVLINK5_ERRORS = (
    ("malformed_packet", 206),
    ("buffer_overrun", 207),
    ("receive", 208),
    ("receive_remote", 209),
    ("receive_general", 210),
    ("link_integrity", 211),
    ("transmit_discard", 212),
    ("recovery_failed", 214),
    ("recovery", 215),
    ("effective", 219),
    ("symbol", 221),
)
C2C_LINK_COUNT, C2C_LINK_STATUS = 170, 171
C2C_ERRORS = (("crc", 231), ("replay", 232), ("replay_b2b", 233))
MAX_C2C_LINKS = 64
RECOVERY_ACTION = 230
RECOVERY_ACTIONS = (
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex_domain",
    "bus_reset",
    "system_reboot",
)
"""By number, from 1."""
POWER_SMOOTHING_ENABLED = 251
FABRIC_STATES = {1: "not_started", 2: "in_progress", 3: "completed"}
"""A GPU without a fabric has state 0."""
FABRIC_CONDITIONS = (
    ("degraded_bandwidth", 0),
    ("route_recovery", 2),
    ("route_unhealthy", 4),
    ("access_timeout_recovery", 6),
)
"""Two bits of the health mask at this position: 0 not supported, 1 true, 2 false."""
CONFIGURATION_BITS = 8
"""Position of four bits: 0 not supported, 1 correct, else the error."""
FABRIC = Record("nvmlDeviceGetGpuFabricInfoV", 2, Struct("=I16sIIB3xI"))
SRAM = Record("nvmlDeviceGetSramEccErrorStatus", 1, Struct("=I4x11QI4x"))
UNREPAIRABLE = Record("nvmlDeviceGetUnrepairableMemoryFlag_v1", 1, Struct("=II"))


def _ecc(calls: Calls, handle: Handle) -> Fields:
    mode = calls.get(pynvml.nvmlDeviceGetEccMode, handle)
    if mode is None:
        return {}
    return {"ecc_enabled": bool(mode[0]), **(read_parts(ECC_ERRORS, calls, handle) if mode[0] else {})}


def _remapped_rows(calls: Calls, handle: Handle) -> Fields:
    rows = calls.get(pynvml.nvmlDeviceGetRemappedRows, handle)
    if rows is None:
        return {}
    correctable, uncorrectable, pending, failed = rows
    return {
        "remapped_rows": (("correctable", correctable), ("uncorrectable", uncorrectable)),
        "row_remap_pending": bool(pending),
        "row_remap_failed": bool(failed),
    }


def _nvlink(calls: Calls, handle: Handle) -> Fields:
    """NVLinks by state, with the traffic and errors of all links; empty without NVLink."""
    links = range(pynvml.NVML_NVLINK_MAX_LINKS)
    results = ((link, calls.get(pynvml.nvmlDeviceGetNvLinkState, handle, link)) for link in links)
    states = {link: state for link, state in results if state is not None}
    if not states:
        return {}
    up = [link for link, state in states.items() if state == pynvml.NVML_FEATURE_ENABLED]
    states_by_name = (("up", len(up)), ("down", len(states) - len(up)))
    if up and field_values(calls, handle, [(TRANSMITTED, up[0])]).get((TRANSMITTED, up[0])) is not None:
        return {"nvlinks": states_by_name, **_nvlink5(calls, handle, up)}
    transmit = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS)
    receive = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS)
    kib = field_values(calls, handle, [transmit, receive]) if up else {}
    errors = {
        (kind, link): calls.get(pynvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, kind)
        for _, kind in NVLINK_ERRORS
        for link in up
    }
    return {
        "nvlinks": states_by_name,
        "nvlink_transmit_bytes": None if (sent := kib.get(transmit)) is None else sent * 1024,
        "nvlink_receive_bytes": None if (received := kib.get(receive)) is None else received * 1024,
        "nvlink_errors": _link_sums(errors, NVLINK_ERRORS),
    }


def _nvlink5(calls: Calls, handle: Handle, up: list[int]) -> Fields:
    """Traffic and errors of NVLink 5, which has them only by link."""
    kinds = (("sent", TRANSMITTED), ("received", RECEIVED), *NVLINK5_ERRORS)
    sums = dict(_link_sums(field_values(calls, handle, [(n, link) for _, n in kinds for link in up]), kinds))
    return {
        "nvlink_transmit_bytes": sums.pop("sent", None),
        "nvlink_receive_bytes": sums.pop("received", None),
        "nvlink_errors": tuple(sums.items()),
    }


def _link_sums(values: dict[Any, int | None], kinds: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Each kind of counter, added up over the links that report it."""
    sums = []
    for name, field in kinds:
        known = [value for (number, _), value in values.items() if number == field and value is not None]
        if known:
            sums.append((name, sum(known)))
    return tuple(sums)


def _licenses(calls: Calls, handle: Handle) -> Fields:
    """Whether a vGPU feature is licensed; False if the GPU or driver does not support licenses."""
    answer = calls.get(pynvml.nvmlDeviceGetGridLicensableFeatures_v4, handle)
    if answer is None:
        return {"vgpu_licensed": False if calls.is_unsupported(pynvml.nvmlDeviceGetGridLicensableFeatures_v4) else None}
    features = answer.gridLicensableFeatures[: answer.licensableFeaturesCount]
    return {"vgpu_licensed": bool(answer.isGridLicenseSupported) and any(feature.featureState for feature in features)}


def _images_and_fans(calls: Calls, handle: Handle) -> Fields:
    """Image engines, other clocks, and fans; passively cooled boards have no fans."""
    count = calls.get(pynvml.nvmlDeviceGetNumFans, handle) or 0
    fans = each("fans_pct", pynvml.nvmlDeviceGetFanSpeed_v2, tuple((str(fan), fan) for fan in range(count)))
    return read_parts((*IMAGES, fans), calls, handle)


def _fabric(calls: Calls, handle: Handle) -> Fields:
    """Registration with the NVLink fabric; empty without a fabric."""
    record = calls.get(FABRIC, handle)
    if record is None or not record[3]:
        return {}
    cluster, status, clique, state, health = record
    conditions = [
        (name, int(value == 1)) for name, position in FABRIC_CONDITIONS if (value := health >> position & 3) in (1, 2)
    ]
    if configuration := health >> CONFIGURATION_BITS & 15:
        conditions.append(("incorrect_configuration", int(configuration > 1)))
    is_completed = FABRIC_STATES.get(state) == "completed"
    return {
        "fabric_states": tuple((name, int(state == number)) for number, name in FABRIC_STATES.items()),
        "fabric_cluster": str(UUID(bytes=cluster)) if is_completed else "",
        "fabric_clique": clique if is_completed else None,
        "fabric_failed": is_completed and status != pynvml.NVML_SUCCESS,
        "fabric_conditions": tuple(conditions),
    }


def _sram(calls: Calls, handle: Handle) -> Fields:
    """Errors of the on-chip memory."""
    if (record := calls.get(SRAM, handle)) is None:
        return {}
    parity, secded, corrected, new_parity, new_secded, new_corrected, *units, is_exceeded = record
    names = ("corrected", "uncorrected_parity", "uncorrected_secded")
    return {
        "sram_errors": tuple(zip(names, (corrected, parity, secded), strict=True)),
        "sram_volatile_errors": tuple(zip(names, (new_corrected, new_parity, new_secded), strict=True)),
        "sram_uncorrected": tuple(zip(("l2", "sm", "pcie", "mcu", "other"), units, strict=True)),
        "sram_threshold_exceeded": bool(is_exceeded),
    }


def _recovery(calls: Calls, handle: Handle) -> Fields:
    """What the driver asks for so that the GPU can be used again."""
    action = field_values(calls, handle, [RECOVERY_ACTION]).get(RECOVERY_ACTION)
    if action is None:
        return {}
    return {"recovery_actions": tuple((name, int(action == n)) for n, name in enumerate(RECOVERY_ACTIONS, start=1))}


def _c2c(calls: Calls, handle: Handle) -> Fields:
    """The links between a GPU and its CPU on one module, as in GB200; empty without them."""
    count = field_values(calls, handle, [C2C_LINK_COUNT]).get(C2C_LINK_COUNT)
    if not count or count > MAX_C2C_LINKS:
        return {}
    kinds = (C2C_LINK_STATUS, *(field for _, field in C2C_ERRORS))
    values = field_values(calls, handle, [(field, link) for link in range(count) for field in kinds])
    up = sum(values.get((C2C_LINK_STATUS, link)) == 1 for link in range(count))
    return {"c2c_links": (("up", up), ("down", count - up)), "c2c_errors": _link_sums(values, C2C_ERRORS)}


def _power_smoothing(calls: Calls, handle: Handle) -> Fields:
    """Whether the driver smooths changes of power.

    Driver 580.65 has a counter of nanoseconds under the same number, which is of another type; 580.159 has not.
    """
    fields = [POWER_SMOOTHING_ENABLED]
    values = field_values(calls, handle, fields, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT)
    enabled = values.get(POWER_SMOOTHING_ENABLED)
    if values and enabled is None:  # 150 us on an H200
        calls.skip(pynvml.nvmlDeviceGetFieldValues, tuple(fields))
    return {"power_smoothing_enabled": bool(enabled)} if enabled in (0, 1) else {}


SLOW: tuple[Part, ...] = (
    one("power_limit_mw", pynvml.nvmlDeviceGetEnforcedPowerLimit),
    each("clock_event_ns", pynvml.nvmlDeviceGetViolationStatus, POLICIES, lambda status: status.violationTime),
    _ecc,
    _remapped_rows,
    one("pcie_replays", pynvml.nvmlDeviceGetPcieReplayCounter),
    one("pcie_generation", pynvml.nvmlDeviceGetCurrPcieLinkGeneration),
    one("pcie_width", pynvml.nvmlDeviceGetCurrPcieLinkWidth),
    _nvlink,
    one("mig_enabled", pynvml.nvmlDeviceGetMigMode, convert=lambda modes: bool(modes[0])),
    one("accounting_enabled", pynvml.nvmlDeviceGetAccountingMode, convert=bool),
    _licenses,
    _images_and_fans,
    _fabric,
    _sram,
    one("memory_unrepairable", UNREPAIRABLE, convert=lambda record: bool(record[0])),
    _recovery,
    _c2c,
    _power_smoothing,
)
