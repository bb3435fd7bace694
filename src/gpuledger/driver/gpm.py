"""GPM: activity of the units of a GPU or MIG instance between two samples; on Hopper and newer."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from math import isfinite
from struct import Struct
from typing import Any, NamedTuple

from gpuledger.driver import nvml
from gpuledger.driver.call import UNSUPPORTED, Calls
from gpuledger.driver.nvml import Handle, NvmlError
from gpuledger.driver.values import SM_CLOCK
from gpuledger.errors import DriverGoneError, GpuLostError
from gpuledger.model import Activity, Slot

GRAPHICS = 1
PERCENTAGES = {
    GRAPHICS: "graphics_pct",
    2: "sm_pct",
    3: "occupancy_pct",
    4: "integer_pct",
    5: "tensor_pct",
    10: "dram_pct",
    11: "fp64_pct",
    12: "fp32_pct",
    13: "fp16_pct",
}
RATES_MIB = {
    20: "pcie_transmit_bytes_per_s",
    21: "pcie_receive_bytes_per_s",
}
METRICS = (*PERCENTAGES, *RATES_MIB)
WITHOUT_GRAPHICS = METRICS[1:]
SLOT_METRICS = tuple(metric for metric in PERCENTAGES if metric != GRAPHICS)
"""On an H200 a request takes 1.5 ms with graphics activity, and 0.11 ms without."""
REQUEST = Struct("=IIQQ")  # version, number of metrics, addresses of two samples
METRIC = Struct("=Iid24x")  # id, return code, value, three pointers to names
MOST_METRICS = 512
"""The library may read as many as its header has, which were 477 in 2025."""


SLOT_S = 0.2
"""Length of a slot of a shared GPU; the driver's utilization samples of processes are as long."""
MOST_SLOTS = 9
"""Most slots of one reading. If readings are further apart, slots are longer."""
SHORTEST_SLOT, LONGEST_SLOT = 0.5, 1.75
"""Limits of a slot, relative to the planned length: the books take slots to be equally long."""
SHORTEST_TICK = 2.4
"""Shortest time between two readings that is divided, in slots. With 0.2 s: readings every 0.5 s, with some jitter."""


class GpmSample(NamedTuple):
    """A buffer of the driver that was filled at `time_s`."""

    buffer: Any
    time_s: float
    sm_clock_mhz: int | None = None
    """Read only with samples that end a slot."""


class Gpm:
    """Measures activity since the previous reading, of the GPU or of a MIG instance (`gpu_instance_id`).

    Samples between two readings divide the time between them into slots.
    """

    def __init__(
        self,
        gpu_instance_id: int | None = None,
        *,
        slot_s: float = SLOT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gpu_instance_id = gpu_instance_id
        self._slot_s = slot_s
        self._monotonic = monotonic
        self._supported: bool | None = None
        self._requests: dict[tuple[int, ...], Any] = {}
        """By metrics."""
        self._samples: list[GpmSample] = []
        """The sample of the previous reading, then the samples since."""
        self._spare: list[Any] = []
        """Buffers not in use. A buffer is allocated when it is first needed and freed by `close`."""
        self._tick_s = 0.0
        """Time between the last two readings; 0 if unknown."""
        self._length_s = 0.0
        """Planned length of the slots until the next reading."""

    @property
    def is_unsupported(self) -> bool:
        """Whether the device has no GPM; False before the first reading."""
        return self._supported is False

    def read(self, calls: Calls, handle: Handle, *, graphics: bool = True) -> dict[str, Any]:
        """Activity and slots since the last call, as fields of a reading; `graphics` includes graphics activity.

        None the first time and if GPM is not supported.
        """
        if self._supported is None:
            support = calls.get(nvml.GPM_SUPPORT, handle)
            self._supported = support is not None and bool(support[0])
        if not self._supported:
            return {}
        self._tick_s = 0.0
        try:
            first, last = self._take(calls, handle, ends_slot=len(self._samples) > 1)
            if first is last:
                return {}
            activity = self._between(calls, first, last, METRICS if graphics else WITHOUT_GRAPHICS)
        except NvmlError as error:
            self._keep()
            self._failed(calls, error)
            return {}
        slots = self._slots(calls)
        self._keep(last)
        self._tick_s = last.time_s - first.time_s
        return {"activity": activity, "slots": slots}

    def plan(self) -> list[float]:
        """When to call `sample` before the next reading; never if readings follow each other too fast.

        Assumes that the next reading comes after the same time as the last one. The times go on after it, because it
        may be late.
        """
        if self._tick_s < SHORTEST_TICK * self._slot_s:
            return []
        self._length_s = self._tick_s / min(round(self._tick_s / self._slot_s), MOST_SLOTS)
        return [self._samples[-1].time_s + i * self._length_s for i in range(1, MOST_SLOTS)]

    def sample(self, calls: Calls, handle: Handle) -> bool:
        """Take a sample between two readings. False if it failed; the next reading then has no slots."""
        try:
            self._take(calls, handle, ends_slot=True)
        except NvmlError as error:
            self._keep(*self._samples[:1])
            self._failed(calls, error)
            return False
        except (GpuLostError, DriverGoneError):  # the next reading reports it
            self._keep()
            return False
        return True

    def close(self) -> None:
        """Free the samples."""
        self._keep()
        for buffer in self._spare:
            with suppress(NvmlError):
                nvml.GPM_FREE(buffer)
        self._spare, self._tick_s = [], 0.0

    def _take(self, calls: Calls, handle: Handle, *, ends_slot: bool) -> tuple[GpmSample, GpmSample]:
        """Take a sample; returns the first and the last sample."""
        if not self._spare:
            self._spare.append(calls.require(nvml.GPM_ALLOCATE))
        buffer, time_s = self._spare[-1], self._monotonic()
        if self._gpu_instance_id is None:
            calls.require(nvml.GPM_SAMPLE, handle, buffer)
        else:
            calls.require(nvml.GPM_MIG_SAMPLE, handle, self._gpu_instance_id, buffer)
        clock_mhz = calls.get(nvml.CLOCK, handle, SM_CLOCK) if ends_slot else None
        self._spare.pop()  # only now: the buffer of a failed call stays spare
        self._samples.append(GpmSample(buffer, time_s, clock_mhz))
        return self._samples[0], self._samples[-1]

    def _keep(self, *kept: GpmSample) -> None:
        """Forget all other samples and reuse their buffers."""
        self._spare += [sample.buffer for sample in self._samples if sample not in kept]
        self._samples = list(kept)

    def _failed(self, calls: Calls, error: NvmlError) -> None:
        if error.code in UNSUPPORTED:
            self._supported = False
        else:
            calls.failed(calls.current, error)

    def _slots(self, calls: Calls) -> tuple[Slot, ...]:
        """Activity between consecutive samples; none unless all slots are about as long as planned."""
        first, *between, last = self._samples
        ends = [first]
        for sample in between:
            if min(sample.time_s - ends[-1].time_s, last.time_s - sample.time_s) >= SHORTEST_SLOT * self._length_s:
                ends.append(sample)
        slots = list(pairwise([*ends, last]))
        if len(slots) == 1 or any(end.time_s - start.time_s > LONGEST_SLOT * self._length_s for start, end in slots):
            return ()
        try:
            parts = [self._between(calls, start, end, SLOT_METRICS) for start, end in slots]
        except NvmlError as error:  # activity was measured, so GPM is supported
            calls.failed(calls.current, error)
            return ()
        return tuple(
            Slot(part, end.sm_clock_mhz, ended_ms=round(1000 * (last.time_s - end.time_s)))
            for part, (_, end) in zip(parts, slots, strict=True)
        )

    def _between(self, calls: Calls, start: GpmSample, end: GpmSample, metrics: tuple[int, ...]) -> Activity:
        """Activity between two samples."""
        request = self._requests.get(metrics)
        if request is None:
            request = self._requests[metrics] = _new_request(metrics)
        REQUEST.pack_into(request, 0, 1, len(metrics), start.buffer.value, end.buffer.value)
        calls.require(nvml.GPM_METRICS, request)
        return _activity(memoryview(request)[REQUEST.size : REQUEST.size + len(metrics) * METRIC.size])


def _new_request(metrics: tuple[int, ...]) -> Any:
    """A request for some metrics. It is reused, because it has 20 kB."""
    request = ctypes.create_string_buffer(REQUEST.size + MOST_METRICS * METRIC.size)
    for i, metric in enumerate(metrics):
        METRIC.pack_into(request, REQUEST.size + i * METRIC.size, metric, 0, 0.0)
    return request


def _activity(metrics: memoryview) -> Activity:
    fields: dict[str, float | int] = {}
    for metric, code, value in METRIC.iter_unpack(metrics):
        if code != nvml.SUCCESS or not isfinite(value) or value < 0:
            continue
        if (name := PERCENTAGES.get(metric)) is not None:
            fields[name] = round(min(value, 100.0), 3)
        else:
            fields[RATES_MIB[metric]] = int(value * 1024 * 1024)
    return Activity(**fields)  # type: ignore[arg-type]  # PERCENTAGES are float fields, RATES_MIB int fields
