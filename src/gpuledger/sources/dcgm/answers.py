"""What DCGM says of a process on a GPU, as the model has it. What DCGM leaves blank is absent."""

from __future__ import annotations

from gpuledger.model import DcgmStats
from gpuledger.sources.dcgm.structs import MOST_GPUS, PidInfo, PidSingleInfo

BLANK_64, BLANK_32 = 0x7FFFFFFFFFFFFFF0, 0x7FFFFFF0
"""From here on a number says why there is none: not known, not found, not supported, not permitted."""


def by_gpu(info: PidInfo) -> list[tuple[int, DcgmStats]]:
    """Each GPU the process was on, by DCGM's number of it."""
    count = min(max(info.gpu_count, 0), MOST_GPUS)
    return [(int(gpu.gpu_id), _stats(gpu)) for gpu in info.gpus[:count]]


def _stats(gpu: PidSingleInfo) -> DcgmStats:
    """Left out: PCIe replays (the GPU's counter, not those of the window), XIDs (never more than ten), clocks."""
    return DcgmStats(
        energy_mj=_known(gpu.energy_mj, BLANK_64),
        sm_pct=_percent(gpu.sm_pct.average),
        memory_pct=_percent(gpu.memory_pct.average),
        max_memory_bytes=_known(gpu.max_memory_bytes, BLANK_64),
        other_processes=_known(gpu.other_compute, BLANK_32),
        start_us=_known(gpu.start_us, BLANK_64) or None,
    )


def _known(number: int, blank: int) -> int | None:
    """A driver that was loaded anew makes differences of counters negative: then nothing was measured."""
    return int(number) if 0 <= number < blank else None


def _percent(number: int) -> int | None:
    return int(number) if 0 <= number <= 100 else None
