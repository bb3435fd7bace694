"""Readings for `record_natural.py`: activity every 0.2 s and the driver's power samples. Needs pynvml."""

from __future__ import annotations

import time
from typing import Any

import pynvml
import record_timelines


class Reader(record_timelines.Reader):
    """Reads the power samples as well, which the driver takes every 20 ms."""

    def begin(self) -> None:
        """Start a new recording without earlier samples."""
        super().begin()
        self._newest_power_us = int(time.time() * 1e6)

    def row(self) -> dict[str, Any]:
        """Read one row."""
        found = super().row()
        try:
            _, samples = pynvml.nvmlDeviceGetSamples(self._gpu, pynvml.NVML_TOTAL_POWER_SAMPLES, self._newest_power_us)
        except pynvml.NVMLError as error:
            found["power_samples_err"] = int(error.value)
            return found
        new = [[s.timeStamp, s.sampleValue.uiVal] for s in samples if s.timeStamp > self._newest_power_us]
        if new:
            found["power_samples"] = new
            self._newest_power_us = new[-1][0]
        return found
