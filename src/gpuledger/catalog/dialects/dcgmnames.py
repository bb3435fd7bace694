"""The names of dcgm-exporter 4.9 beside those of 4.8, and the units of both.

4.9 renames its default and profiling fields, and gives eleven of them base units. Names of DCGM 4.7's field reference;
`DCGM_FI_DEV_BOARD_LIMIT_VIOLATION` has a new name too, which no public source spells out, and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

OLD, NEW, BOTH = "old", "new", "both"
NAMES = (OLD, NEW, BOTH)
"""Names that the dcgm dialect writes: those of 4.8, those of 4.9, or both."""
PREFIX = "DCGM_FI_"
"""Of every name, in both versions."""
KEPT = frozenset(PREFIX + name for name in (
    "DEV_ECC_SBE_VOL_TOTAL", "DEV_ECC_DBE_VOL_TOTAL", "DEV_ECC_SBE_AGG_TOTAL", "DEV_ECC_DBE_AGG_TOTAL", "DEV_MIG_MODE",
    "DEV_ROW_REMAP_PENDING", "DEV_PCIE_LINK_GEN", "DEV_PCIE_LINK_WIDTH", "DEV_VBIOS_VERSION", "DEV_BOARD_PART_NUMBER",
    "DEV_VGPU_LICENSE_STATUS", "PROF_PCIE_TX_BYTES", "PROF_PCIE_RX_BYTES"))  # fmt: skip
"""Names that did not change."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A change of unit: new value = old value x times / per. The texts are those of HELP."""

    old: str
    new: str
    times: int = 1
    per: int = 1


SAME = Unit("", "")
HERTZ = Unit("in MHz", "in Hz", times=10**6)
RATIO = Unit("in percent", "from 0 to 1", per=100)
JOULES = Unit("in mJ", "in J", per=1000)
BYTES = Unit("in MiB", "in bytes", times=1 << 20)
SECONDS = Unit("in ns", "in seconds", per=10**9)
RATE = Unit("in units of 1000 KiB per second, as in DCGM", "in bytes per second", times=1_024_000)


@dataclass(frozen=True, slots=True)
class Rename:
    """A field with both names."""

    old: str
    new: str
    unit: Unit = SAME


def _renames(prefix: str, names: dict[str, str], unit: Unit = SAME) -> tuple[Rename, ...]:
    return tuple(Rename(prefix + old, prefix + new, unit) for old, new in names.items())


RENAMES = (
    *_renames("DCGM_FI_DEV_", {
        "SM_CLOCK": "SM_CLOCK_HERTZ", "MEM_CLOCK": "MEMORY_CLOCK_HERTZ", "VIDEO_CLOCK": "VIDEO_CLOCK_HERTZ",
    }, HERTZ),
    *_renames("DCGM_FI_DEV_", {
        "GPU_UTIL": "GPU_UTIL_RATIO", "MEM_COPY_UTIL": "MEMORY_UTIL_RATIO", "ENC_UTIL": "ENC_UTIL_RATIO",
        "DEC_UTIL": "DEC_UTIL_RATIO", "FAN_SPEED": "FAN_SPEED_RATIO",
    }, RATIO),
    *_renames("DCGM_FI_DEV_", {
        "FB_FREE": "FB_FREE_BYTES", "FB_USED": "FB_USED_BYTES", "FB_RESERVED": "FB_RESERVED_BYTES",
        "FB_TOTAL": "FB_CAPACITY_BYTES",
    }, BYTES),
    Rename("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", JOULES),
    Rename("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND", RATE),
    *_renames("DCGM_FI_DEV_", {
        f"{kind}_VIOLATION": f"GPU_{kind}_THROTTLE_SECONDS_TOTAL"
        for kind in ("POWER", "THERMAL", "SYNC_BOOST", "LOW_UTIL", "RELIABILITY")
    }, SECONDS),
    *_renames("DCGM_FI_DEV_", {
        "GPU_TEMP": "GPU_TEMP_CELSIUS", "MEMORY_TEMP": "MEMORY_TEMP_CELSIUS", "POWER_USAGE": "BOARD_POWER_WATTS",
        "POWER_USAGE_INSTANT": "BOARD_POWER_RAW_WATTS", "ENFORCED_POWER_LIMIT": "BOARD_POWER_LIMIT_ENFORCED_WATTS",
        "POWER_MGMT_LIMIT_DEF": "BOARD_POWER_LIMIT_DEFAULT_WATTS", "PSTATE": "GPU_PSTATE", "XID_ERRORS": "XID_ERROR",
        "PCIE_REPLAY_COUNTER": "PCIE_REPLAY_TOTAL", "ROW_REMAP_FAILURE": "ROW_REMAP_FAILED",
        "UNCORRECTABLE_REMAPPED_ROWS": "ROW_REMAP_UNCORRECTABLE_TOTAL",
        "CORRECTABLE_REMAPPED_ROWS": "ROW_REMAP_CORRECTABLE_TOTAL",
        **{f"NVLINK_{kind}_ERROR_COUNT_TOTAL": f"NVLINK_{kind}_ERROR_TOTAL"
           for kind in ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY")},
    }),
    *_renames("DCGM_FI_PROF_", {
        "GR_ENGINE_ACTIVE": "GR_ENGINE_UTIL_RATIO", "SM_ACTIVE": "SM_UTIL_RATIO", "SM_OCCUPANCY": "SM_OCCUPANCY_RATIO",
        "PIPE_TENSOR_ACTIVE": "TENSOR_UTIL_RATIO", "DRAM_ACTIVE": "DRAM_UTIL_RATIO",
        **{f"PIPE_{pipe}_ACTIVE": f"{pipe}_UTIL_RATIO" for pipe in ("FP64", "FP32", "FP16", "INT")},
    }),
)  # fmt: skip
BY_OLD = {rename.old: rename for rename in RENAMES}
BY_NEW = {rename.new: rename for rename in RENAMES}
LABELS = {
    "DCGM_FI_DRIVER_VERSION": "DCGM_FI_SYSTEM_DRIVER_VERSION",
    "DCGM_FI_NVML_VERSION": "DCGM_FI_SYSTEM_NVML_VERSION",
    "DCGM_FI_DEV_SERIAL": "DCGM_FI_DEV_BOARD_SERIAL",
}
"""Renamed fields that are labels, by their old names."""
