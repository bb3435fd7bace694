"""Slots of a GPU without GPM: its power and utilization, from samples that the driver buffers for some seconds."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from struct import Struct
from typing import Any

from gpuledger.driver import nvml
from gpuledger.driver.call import NO_ROWS, Calls
from gpuledger.driver.nvml import Handle
from gpuledger.driver.processes import RecordArray, window_us
from gpuledger.driver.values import UNSIGNED_64, VALUES
from gpuledger.model import Activity, Slot

POWER, UTILIZATION, MEMORY_UTILIZATION = 0, 1, 2
"""Kinds of samples."""
SAMPLE = Struct("=Q8s")  # timestamp, value
HIGHEST_MW = 10_000_000
"""A higher power is not a measurement; NVML's number for a missing value is 2^32-1."""
MOST_SAMPLES = 1 << 14
"""Of a buffer; those of an H200 have 119 and 71."""
LONGEST_SLOT_US = 1_250_000
"""Utilization is sampled every 0.2 s on an H200, and by NVML's documentation at least once a second."""

Samples = list[tuple[int, int]]
"""Times in microseconds, and values."""


class SampleBuffer(RecordArray):
    """nvmlDeviceGetSamples for one kind of value."""

    def __init__(self, kind: int, highest: int) -> None:
        super().__init__("nvmlDeviceGetSamples", SAMPLE, capacity=128)
        self._kind = kind
        self._highest = highest
        self._value_type = ctypes.c_uint()
        self._since_us = 0

    def read(self, calls: Calls, handle: Handle, since_us: int, until_us: int) -> Samples | None:
        """The valid samples after `since_us`, in order of time; None if they are not supported or the call failed."""
        self._since_us = since_us  # not an argument of the call: support does not depend on it
        rows = calls.get(self, handle)
        if rows is None:
            return None
        value = VALUES.get(self._value_type.value, UNSIGNED_64)
        samples = {time_us: value.unpack_from(raw)[0] for time_us, raw in rows if since_us < time_us <= until_us}
        return sorted((time_us, int(number)) for time_us, number in samples.items() if 0 <= number <= self._highest)

    def _fill(self, function: Any, handle: Handle) -> tuple[int, int]:
        count, since_us = ctypes.c_uint(self._capacity), ctypes.c_ulonglong(self._since_us)
        value_type = ctypes.byref(self._value_type)
        code = function(handle, self._kind, since_us, value_type, ctypes.byref(count), self._buffer)
        if code in NO_ROWS:
            return nvml.SUCCESS, 0
        if code == nvml.SUCCESS and count.value == self._capacity < MOST_SAMPLES:  # newer samples may be missing
            code = nvml.INSUFFICIENT_SIZE
        return code, count.value


class BufferedSlots:
    """Reads the slots of one GPU. A slot is the time between two samples of utilization."""

    def __init__(self) -> None:
        self._utilization = SampleBuffer(UTILIZATION, 100)
        self._memory = SampleBuffer(MEMORY_UTILIZATION, 100)
        self._power = SampleBuffer(POWER, HIGHEST_MW)
        self._end_us: int | None = None
        """End of the last slot."""

    def forget(self) -> None:
        """Begin anew: no slot covers the time until the next call of `read`."""
        self._end_us = None

    def read(self, calls: Calls, handle: Handle, now_us: int) -> tuple[Slot, ...]:
        """The slots since the last call; none in the first, which finds the beginning of the next slot.

        A slot without a power sample is left out: on an H200 the driver keeps 119 of them, which are 2.4 s.
        """
        if calls.is_unsupported(self._utilization) or calls.is_unsupported(self._power):
            return ()
        since_us, until_us = window_us(self._end_us, now_us)
        is_first = since_us != self._end_us
        utilization = self._utilization.read(calls, handle, since_us, until_us)
        if utilization is None:
            self.forget()
        if not utilization:
            return ()
        self._end_us = utilization[-1][0]
        if is_first:
            return ()
        power = self._power.read(calls, handle, since_us, until_us)  # after utilization: newer
        if not power:
            return ()
        memory = self._memory.read(calls, handle, since_us, until_us) or []
        return tuple(
            Slot(
                Activity(),
                power_mw=power_mw,
                ended_ms=max(0, round((now_us - end_us) / 1000)),
                utilization_pct=utilization_pct,
                memory_utilization_pct=_mean(memory, start_us, end_us),
            )
            for (start_us, _), (end_us, utilization_pct) in pairwise([(since_us, 0), *utilization])
            if end_us - start_us <= LONGEST_SLOT_US and (power_mw := _mean(power, start_us, end_us)) is not None
        )


def _mean(samples: Samples, start_us: int, end_us: int) -> int | None:
    """Mean of the samples after `start_us` until `end_us`; None if there is none."""
    values = [value for time_us, value in samples if start_us < time_us <= end_us]
    return round(sum(values) / len(values)) if values else None
