"""Ticks of one GPU, as the renderers see them."""

from __future__ import annotations

from typing import Any

from gpuledger.model import Device, Driver, Facts, Health, ProcessUse, Reading, Resident, Sample, Stage, Tick

GPU = Device(index=0, uuid="GPU-1", name="NVIDIA H200")
DRIVER = Driver(up=True, driver_version="580.1", nvml_version="13.580.1", cuda_version="13.0")
PROMETHEUS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
"""The Accept header of Prometheus."""


def tick_with(*processes: ProcessUse, **reading: Any) -> Tick:
    """One GPU with these processes."""
    return Tick(
        time_ns=1_700_000_000_000_000_000,
        driver=DRIVER,
        readings=(Reading(device=GPU, **reading),),
        processes=processes,
        health=Health(stages=(Stage("read", 5, success=True),)),
    )


def use(pid: int, name: str = "python3") -> ProcessUse:
    """A process on the GPU."""
    return ProcessUse(GPU, Resident(pid, "compute", 100), Facts(pid, 1, 1000, name), Sample(pid, 1, 40, 10))
