"""The values of a GPU that change rarely: error counts, links and modes every tenth tick, limits once."""

from __future__ import annotations

import pynvml

from gpuledger.driver import health
from gpuledger.driver.call import Calls, Handle
from gpuledger.driver.device import CLOCKS, IMAGES, OTHER_CLOCKS, Fields, engines, field_values, labelled

TEMPERATURE_LIMITS = (
    ("shutdown", pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
    ("slowdown", pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
    ("memory_max", pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX),
    ("gpu_max", pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX),
)
POLICIES = (
    ("power", pynvml.NVML_PERF_POLICY_POWER),
    ("thermal", pynvml.NVML_PERF_POLICY_THERMAL),
    ("sync_boost", pynvml.NVML_PERF_POLICY_SYNC_BOOST),
    ("board_limit", pynvml.NVML_PERF_POLICY_BOARD_LIMIT),
    ("low_utilization", pynvml.NVML_PERF_POLICY_LOW_UTILIZATION),
    ("reliability", pynvml.NVML_PERF_POLICY_RELIABILITY),
)
ECC_ERRORS = (
    ("corrected", pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
    ("uncorrected", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
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


def constants(calls: Calls, handle: Handle) -> Fields:
    """Limits of the board. Read once: the call for the highest clocks blocks up to 47 ms on an H200."""
    return {
        "power_default_limit_mw": calls.get(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle),
        "max_clocks_mhz": labelled(calls, pynvml.nvmlDeviceGetMaxClockInfo, handle, (*OTHER_CLOCKS, *CLOCKS)),
        "temperature_limits_c": labelled(calls, pynvml.nvmlDeviceGetTemperatureThreshold, handle, TEMPERATURE_LIMITS),
        "pcie_max_generation": calls.get(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        "pcie_max_width": calls.get(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
    }


def limits(calls: Calls, handle: Handle) -> Fields:
    """The power limit, and for how long each policy reduced the clocks."""
    violations = ((name, calls.get(pynvml.nvmlDeviceGetViolationStatus, handle, policy)) for name, policy in POLICIES)
    return {
        "power_limit_mw": calls.get(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
        "clock_event_ns": tuple((name, status.violationTime) for name, status in violations if status is not None),
    }


def other(calls: Calls, handle: Handle) -> Fields:
    """Image engines, other clocks, and fans; passively cooled boards have no fans."""
    count = calls.get(pynvml.nvmlDeviceGetNumFans, handle) or 0
    speeds = ((str(fan), calls.get(pynvml.nvmlDeviceGetFanSpeed_v2, handle, fan)) for fan in range(count))
    return {
        **engines(calls, handle, IMAGES),
        "clocks_mhz": labelled(calls, pynvml.nvmlDeviceGetClockInfo, handle, OTHER_CLOCKS),
        "fans_pct": tuple((fan, pct) for fan, pct in speeds if pct is not None),
    }


def faults(calls: Calls, handle: Handle) -> Fields:
    """Memory errors and remapped rows."""
    fields: Fields = {}
    mode = calls.get(pynvml.nvmlDeviceGetEccMode, handle)
    if mode is not None:
        fields["ecc_enabled"] = bool(mode[0])
    if fields.get("ecc_enabled"):
        for name, scope in (
            ("ecc_volatile_errors", pynvml.NVML_VOLATILE_ECC),
            ("ecc_errors", pynvml.NVML_AGGREGATE_ECC),
        ):
            counts = (
                (error, calls.get(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, scope))
                for error, kind in ECC_ERRORS
            )
            fields[name] = tuple((error, count) for error, count in counts if count is not None)
    rows = calls.get(pynvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None:
        correctable, uncorrectable, pending, failed = rows
        fields["remapped_rows"] = (("correctable", correctable), ("uncorrectable", uncorrectable))
        fields["row_remap_pending"], fields["row_remap_failed"] = bool(pending), bool(failed)
    return fields


def pcie(calls: Calls, handle: Handle) -> Fields:
    """The PCIe link to the host."""
    return {
        "pcie_replays": calls.get(pynvml.nvmlDeviceGetPcieReplayCounter, handle),
        "pcie_generation": calls.get(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        "pcie_width": calls.get(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
    }


def pcie_throughput(calls: Calls, handle: Handle) -> Fields:
    """PCIe throughput; only on request, because each call blocks 21 ms on an H200."""
    transmit = calls.get(pynvml.nvmlDeviceGetPcieThroughput, handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)
    receive = calls.get(pynvml.nvmlDeviceGetPcieThroughput, handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
    return {
        "pcie_transmit_bytes_per_s": None if transmit is None else transmit * 1024,
        "pcie_receive_bytes_per_s": None if receive is None else receive * 1024,
    }


def nvlink(calls: Calls, handle: Handle) -> Fields:
    """NVLinks by state, with the traffic and errors of all links; empty without NVLink."""
    states = {}
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = calls.get(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is not None:
            states[link] = state
    if not states:
        return {}
    up = [link for link, state in states.items() if state == pynvml.NVML_FEATURE_ENABLED]
    states_by_name = (("up", len(up)), ("down", len(states) - len(up)))
    if up and field_values(calls, handle, [(TRANSMITTED, up[0])]).get((TRANSMITTED, up[0])) is not None:
        return {"nvlinks": states_by_name, **_nvlink5(calls, handle, up)}
    transmit = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS)
    receive = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS)
    kib = field_values(calls, handle, [transmit, receive]) if up else {}
    errors = []
    for name, kind in NVLINK_ERRORS:
        counts = [calls.get(pynvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, kind) for link in up]
        known = [count for count in counts if count is not None]
        if known:
            errors.append((name, sum(known)))
    return {
        "nvlinks": states_by_name,
        "nvlink_transmit_bytes": None if (sent := kib.get(transmit)) is None else sent * 1024,
        "nvlink_receive_bytes": None if (received := kib.get(receive)) is None else received * 1024,
        "nvlink_errors": tuple(errors),
    }


def _nvlink5(calls: Calls, handle: Handle, up: list[int]) -> Fields:
    """Traffic and errors of NVLink 5, which has them only by link."""
    kinds = (("sent", TRANSMITTED), ("received", RECEIVED), *NVLINK5_ERRORS)
    sums = dict(health.link_sums(field_values(calls, handle, [(n, link) for _, n in kinds for link in up]), kinds))
    return {
        "nvlink_transmit_bytes": sums.pop("sent", None),
        "nvlink_receive_bytes": sums.pop("received", None),
        "nvlink_errors": tuple(sums.items()),
    }


def modes(calls: Calls, handle: Handle) -> Fields:
    """MIG and accounting mode."""
    mig = calls.get(pynvml.nvmlDeviceGetMigMode, handle)
    accounting = calls.get(pynvml.nvmlDeviceGetAccountingMode, handle)
    return {
        "mig_enabled": None if mig is None else bool(mig[0]),
        "accounting_enabled": None if accounting is None else bool(accounting),
    }


def licenses(calls: Calls, handle: Handle) -> Fields:
    """Whether a vGPU feature is licensed; False if the GPU or driver does not support licenses."""
    answer = calls.get(pynvml.nvmlDeviceGetGridLicensableFeatures_v4, handle)
    if answer is None:
        return {"vgpu_licensed": False if calls.is_unsupported(pynvml.nvmlDeviceGetGridLicensableFeatures_v4) else None}
    features = answer.gridLicensableFeatures[: answer.licensableFeaturesCount]
    return {"vgpu_licensed": bool(answer.isGridLicenseSupported) and any(feature.featureState for feature in features)}


SLOW = (
    limits,
    faults,
    pcie,
    nvlink,
    modes,
    licenses,
    other,
    health.fabric,
    health.memory,
    health.recovery,
    health.c2c,
    health.power_smoothing,
)
