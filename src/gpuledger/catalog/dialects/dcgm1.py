"""The names of the pod exporter before dcgm-exporter 2.0: the same numbers under shorter names and fewer labels.

It did not support MIG; here `uuid` is that of the MIG instance. Times are in microseconds, as it documented.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpuledger.catalog.dialects import Choices, dcgm
from gpuledger.catalog.dialects.dcgm import Kinds
from gpuledger.catalog.family import Family, Value
from gpuledger.model import Tick
from gpuledger.model.holders import HolderLabels, Holding

NAMES = {
    "dcgm_sm_clock": "DCGM_FI_DEV_SM_CLOCK",
    "dcgm_memory_clock": "DCGM_FI_DEV_MEM_CLOCK",
    "dcgm_memory_temp": "DCGM_FI_DEV_MEMORY_TEMP",
    "dcgm_gpu_temp": "DCGM_FI_DEV_GPU_TEMP",
    "dcgm_power_usage": "DCGM_FI_DEV_POWER_USAGE",
    "dcgm_total_energy_consumption": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "dcgm_pcie_replay_counter": "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "dcgm_gpu_utilization": "DCGM_FI_DEV_GPU_UTIL",
    "dcgm_mem_copy_utilization": "DCGM_FI_DEV_MEM_COPY_UTIL",
    "dcgm_enc_utilization": "DCGM_FI_DEV_ENC_UTIL",
    "dcgm_dec_utilization": "DCGM_FI_DEV_DEC_UTIL",
    "dcgm_fb_total": "DCGM_FI_DEV_FB_TOTAL",
    "dcgm_fb_free": "DCGM_FI_DEV_FB_FREE",
    "dcgm_fb_used": "DCGM_FI_DEV_FB_USED",
    "dcgm_ecc_sbe_volatile_total": "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    "dcgm_ecc_dbe_volatile_total": "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "dcgm_ecc_sbe_aggregate_total": "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",
    "dcgm_ecc_dbe_aggregate_total": "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
    "dcgm_nvlink_flit_crc_error_count_total": "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_data_crc_error_count_total": "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_replay_error_count_total": "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_recovery_error_count_total": "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_bandwidth_total": "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "dcgm_fi_prof_gr_engine_active": "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "dcgm_fi_prof_sm_active": "DCGM_FI_PROF_SM_ACTIVE",
    "dcgm_fi_prof_sm_occupancy": "DCGM_FI_PROF_SM_OCCUPANCY",
    "dcgm_fi_prof_pipe_tensor_active": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "dcgm_fi_prof_dram_active": "DCGM_FI_PROF_DRAM_ACTIVE",
    "dcgm_fi_prof_pcie_tx_bytes": "DCGM_FI_PROF_PCIE_TX_BYTES",
    "dcgm_fi_prof_pcie_rx_bytes": "DCGM_FI_PROF_PCIE_RX_BYTES",
}
VIOLATIONS = ("power", "thermal", "sync_boost", "board_limit", "low_util", "reliability")
LABELS = ("container_name", "gpu", "pod_name", "pod_namespace", "uuid")


def families(choices: Choices) -> tuple[Family, ...]:
    """The families of 1.x, most of them derived from those of 2.0."""
    kinds = Kinds(LABELS, _label, shared=choices.shared)
    newer = {family.name: family for family in (*dcgm.default_families(kinds), *dcgm.optional_families(kinds))}
    return (
        *(replace(newer[theirs], name=name) for name, theirs in NAMES.items()),
        _in_kib("dcgm_pcie_tx_throughput", newer["DCGM_FI_PROF_PCIE_TX_BYTES"]),
        _in_kib("dcgm_pcie_rx_throughput", newer["DCGM_FI_PROF_PCIE_RX_BYTES"]),
        replace(newer["DCGM_FI_DEV_XID_ERRORS"], name="dcgm_xid_errors", value=dcgm.last_xid, series=None, labels=()),
        *(_in_us(f"dcgm_{name}_violation", newer[f"DCGM_FI_DEV_{name.upper()}_VIOLATION"]) for name in VIOLATIONS),
        *dcgm.sharing_families(kinds),
    )


def _label(_: Tick, holding: Holding, holder: HolderLabels) -> tuple[str, ...]:
    device = holding.reading.device
    return holder.container, str(device.index), holder.pod, holder.namespace, device.uuid


def _in_us(name: str, family: Family) -> Family:
    return replace(family, name=name, help="Time in us in which the clocks were throttled.", value=_whole(family, 1000))


def _in_kib(name: str, family: Family) -> Family:
    way = "from" if "_tx_" in name else "to"
    return replace(family, name=name, help=f"PCIe traffic {way} the GPU in KiB per second.", value=_whole(family, 1024))


def _whole(family: Family, scale: int) -> Callable[[Any], Value | None]:
    read = family.value
    assert read is not None  # noqa: S101 - only XIDs have a series
    return lambda thing: None if (v := read(thing)) is None else int(v) // scale
