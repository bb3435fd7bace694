"""The clock: whether it goes, stands somewhere near the present, and agrees with the driver's samples.

Samples with times to come, or from long ago, are dropped; were the clocks apart, no process would have utilization.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import pynvml

from gpuledger.doctor.finding import Finding, ok, problem, warning
from gpuledger.model import Reading
from gpuledger.sources.nvml.processes import NewSamples, OldSamples

EARLIEST_NS = 1_704_067_200 * 10**9
"""2024: this program is younger."""
STEP_NS = 500_000_000
AHEAD_US, BEHIND_US = 2_000_000, 60_000_000
FIX = "`timedatectl` shows the clock; `sudo chronyc makestep` (or `sudo systemctl restart systemd-timesyncd`) sets it"


def clock(now_ns: int, wall_ns: int, steady_ns: int, sample_us: int | None) -> list[Finding]:
    """`wall_ns` and `steady_ns` went by on the two clocks; `sample_us` is the driver's sample nearest to now."""
    if now_ns < EARLIEST_NS:
        return [
            problem("clock", f"says that it is {now_ns // 10**9} s after 1970, before this program was written", FIX)
        ]
    if abs(wall_ns - steady_ns) > STEP_NS:
        text = f"was set by {(wall_ns - steady_ns) / 1e9:+.1f} s while we looked"
        return [warning("clock", text, FIX)]
    if sample_us is None:
        return [ok("clock", "goes; the driver has no samples to compare it with")]
    apart_us = sample_us - now_ns // 1000
    if not -BEHIND_US <= apart_us <= AHEAD_US:
        text = f"the driver's samples are {apart_us / 1e6:+.0f} s from it: processes have no utilization"
        return [warning("clock", text, FIX)]
    return [ok("clock", "goes, and agrees with the driver's samples")]


def nearest_sample_us(readings: Iterable[Reading], now_us: int) -> int | None:
    """Of GPUs that are at work, for an idle one may have none of today. Calls the driver, which may hang.

    The nearest, because among its rows are some that the driver made up.
    """
    found = []
    for reading in readings:
        if reading.up and reading.utilization_pct and not reading.device.parent_uuid:
            for form in (NewSamples(), OldSamples()):
                with suppress(pynvml.NVMLError):
                    rows = form(pynvml.nvmlDeviceGetHandleByIndex(reading.device.index), 0)
                    found += [row[form.timestamp_at] for row in rows]
                    break
    return min(found, key=lambda sample_us: abs(sample_us - now_us), default=None)
