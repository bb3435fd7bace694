"""GPM: activity of the units of a GPU or MIG instance between two samples; on Hopper and newer."""

from __future__ import annotations

from contextlib import suppress
from math import isfinite
from struct import Struct
from typing import Any

import pynvml

from gpuledger.model import Activity
from gpuledger.sources.nvml.call import UNSUPPORTED, Calls, Handle

PERCENTAGES = {
    pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL: "graphics_pct",
    pynvml.NVML_GPM_METRIC_SM_UTIL: "sm_pct",
    pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: "occupancy_pct",
    pynvml.NVML_GPM_METRIC_INTEGER_UTIL: "integer_pct",
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: "tensor_pct",
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: "dram_pct",
    pynvml.NVML_GPM_METRIC_FP64_UTIL: "fp64_pct",
    pynvml.NVML_GPM_METRIC_FP32_UTIL: "fp32_pct",
    pynvml.NVML_GPM_METRIC_FP16_UTIL: "fp16_pct",
}
RATES_MIB = {
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: "pcie_transmit_bytes_per_s",
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: "pcie_receive_bytes_per_s",
}
METRICS = (*PERCENTAGES, *RATES_MIB)
METRIC = Struct("=Iid24x")  # id, return code, value, three pointers to names


class Gpm:
    """Measures activity since the previous sample, of the GPU or of a MIG instance (`gpu_instance_id`)."""

    def __init__(self, gpu_instance_id: int | None = None) -> None:
        self._gpu_instance_id = gpu_instance_id
        self._request: Any = None
        self._before: Any = None
        self._now: Any = None
        self._primed = False
        self._supported: bool | None = None

    def read(self, calls: Calls, handle: Handle) -> Activity | None:
        """Activity since the last call; None the first time and if GPM is not supported."""
        if self._supported is None:
            support = calls.get(pynvml.nvmlGpmQueryDeviceSupport, handle)
            self._supported = support is not None and bool(support.isSupportedDevice)
        if not self._supported:
            return None
        try:
            return self._read(calls, handle)
        except pynvml.NVMLError as error:
            self._primed = False
            if error.value in UNSUPPORTED:
                self._supported = False
            else:
                calls.failed(calls.current, error)
            return None

    def close(self) -> None:
        """Free the samples."""
        for sample in (self._before, self._now):
            if sample is not None:
                with suppress(pynvml.NVMLError):
                    pynvml.nvmlGpmSampleFree(sample)
        self._request = self._before = self._now = None
        self._primed = False

    def _read(self, calls: Calls, handle: Handle) -> Activity | None:
        if self._request is None:
            self._prepare(calls)
        self._before, self._now = self._now, self._before
        if self._gpu_instance_id is None:
            calls.require(pynvml.nvmlGpmSampleGet, handle, self._now)
        else:
            calls.require(pynvml.nvmlGpmMigSampleGet, handle, self._gpu_instance_id, self._now)
        if not self._primed:
            self._primed = True
            return None
        self._request.sample1, self._request.sample2 = self._before, self._now
        calls.require(pynvml.nvmlGpmMetricsGet, self._request)
        return _activity(self._request)

    def _prepare(self, calls: Calls) -> None:
        """Allocate two samples and one request, once: the request alone has 14 kB."""
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(METRICS)
        for i, metric in enumerate(METRICS):
            request.metrics[i].metricId = metric
        self._before = calls.require(pynvml.nvmlGpmSampleAlloc)
        self._now = calls.require(pynvml.nvmlGpmSampleAlloc)
        self._request = request


def _activity(request: Any) -> Activity:
    fields: dict[str, float | int] = {}
    # Parsed from bytes: the binding needs a microsecond per attribute, and there are 33.
    start = type(request).metrics.offset
    filled = memoryview(request).cast("B")[start : start + len(METRICS) * METRIC.size]
    for metric, code, value in METRIC.iter_unpack(filled):
        if code != pynvml.NVML_SUCCESS or not isfinite(value) or value < 0:
            continue
        if (name := PERCENTAGES.get(metric)) is not None:
            fields[name] = round(min(value, 100.0), 3)
        else:
            fields[RATES_MIB[metric]] = int(value * 1024 * 1024)
    return Activity(**fields)  # type: ignore[arg-type]  # PERCENTAGES are float fields, RATES_MIB int fields
