"""Names of nvidia_gpu_prometheus_exporter, which Princeton's jobstats and its dashboards read.

Series have the job and the user of the device. If several jobs share a device, each has series of its own: memory and
duty cycle are those of the job's processes, all other values are those of the device, as that exporter shows the power
of a GPU for each of its MIG instances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from gpuledger.catalog.dialects import Choices
from gpuledger.catalog.dialects.dcgm import of
from gpuledger.catalog.family import Family, G, Kind, Thing, Value, activity, at
from gpuledger.model import Device, ProcessUse, Reading, Tick, job_id

LABELS = ("ordinal", "minor_number", "uuid", "name", "GPU_I_ID", "jobid", "userid")
GRAPHICS = activity("graphics_pct")


@dataclass(frozen=True, slots=True)
class JobDevice:
    """A device, and one of the jobs that it is allocated to or that have a process on it."""

    gpu: Reading
    """The GPU itself, also for a MIG instance."""
    reading: Reading
    job: str
    """The job id; empty without a job."""
    user: str
    """The uid of the job's user; empty if it is not known."""
    shared: bool
    """Whether other jobs have the device too."""
    uses: tuple[ProcessUse, ...]
    """The processes of the job on the device."""


def _job_devices(tick: Tick) -> Iterable[JobDevice]:
    gpus = {reading.device.uuid: reading for reading in tick.readings if not reading.device.parent_uuid}
    allocated: dict[str, dict[str, None]] = {}
    for allocation in tick.owners.allocations:
        if allocation.owner.job:
            allocated.setdefault(allocation.device.uuid, {})[allocation.owner.job] = None
    uses: dict[str, dict[str, list[ProcessUse]]] = {}
    for use in tick.processes:
        if use.owner.job and use.active is not False:
            uses.setdefault(use.device.uuid, {}).setdefault(job_id(use.owner.job), []).append(use)
    for reading in tick.readings:
        device = reading.device
        gpu = gpus.get(device.gpu_uuid)
        if gpu is None:  # an instance without its GPU
            continue
        on_device = uses.get(device.uuid, {})
        jobs = allocated.get(device.uuid, {}) | dict.fromkeys(on_device)
        for job in jobs or ("",):
            processes = tuple(on_device.get(job, ()))
            # The user of an allocation must not change when the first process starts: series would be split.
            is_allocated = job in allocated.get(device.uuid, {})
            user = tick.owners.job_uids.get(job, "") if is_allocated else _uid(processes)
            yield JobDevice(gpu, reading, job, user, len(jobs) > 1, processes)


def _uid(uses: Iterable[ProcessUse]) -> str:
    return next((str(use.facts.uid) for use in uses if use.facts is not None and use.facts.uid is not None), "")


def _devices(tick: Tick) -> list[Thing]:
    return [(_labels(item.reading.device, item.gpu.device, item.job, item.user), item) for item in _job_devices(tick)]


def _labels(device: Device, gpu: Device, job: str, user: str) -> tuple[str, ...]:
    minor = "" if gpu.minor is None else str(gpu.minor)
    instance = str(device.gpu_instance_id) if device.parent_uuid else ""
    return str(gpu.index), minor, device.uuid, device.name, instance, job, user


def _own(part: Callable[[ProcessUse], Value | None], whole: str, item: JobDevice) -> Value | None:
    """The value of the job's processes if the device is shared, else of the device; None if a part is not known."""
    if not item.shared:
        return at(whole)(item.reading)
    if item.reading.residents is None:
        return None
    parts = [part(use) for use in item.uses]
    return None if None in parts else sum(value for value in parts if value is not None)


def _graphics(item: JobDevice) -> Value | None:
    return None if item.shared else GRAPHICS(item.reading)


def _number(text: str) -> Value | None:
    return int(text) if text.isascii() and text.isdigit() else None


def families(_: Choices) -> tuple[Family, ...]:
    """The families that jobstats and its dashboards read."""
    devices = Kind(LABELS, _devices)
    node = Kind((), lambda tick: [((), sum(not reading.device.parent_uuid for reading in tick.readings))])
    temperature = of("temperatures_c", "gpu")
    return (
        Family("nvidia_gpu_num_devices", G, node, "Number of GPUs.", "gpu_info", lambda count: count),
        Family("nvidia_gpu_memory_used_bytes", G, devices,
               "Used memory of the device in bytes; on a device that jobs share, memory of the job's processes.",
               "gpu_memory_used_bytes", partial(_own, at("resident.memory_bytes"), "memory_used_bytes")),
        Family("nvidia_gpu_memory_total_bytes", G, devices, "Total memory of the device in bytes.",
               "gpu_memory_total_bytes", at("reading.memory_total_bytes")),
        Family("nvidia_gpu_duty_cycle", G, devices,
               "Utilization of the GPU in percent; on a GPU that jobs share, SM time of the job's processes.",
               "gpu_utilization_ratio", partial(_own, at("sample.sm_pct"), "utilization_pct")),
        Family("nvidia_gpu_graphics_util_percent", G, devices,
               "Activity of the device from 0 to 1, which jobstats reads for MIG instances.",
               "gpu_graphics_active_ratio", _graphics),
        Family("nvidia_gpu_power_usage_milliwatts", G, devices, "Power of the whole GPU in milliwatts.",
               "gpu_power_watts", at("gpu.power_mw")),
        Family("nvidia_gpu_temperature_celsius", G, devices, "Temperature of the GPU in degrees Celsius.",
               'gpu_temperature_celsius{sensor="gpu"}', lambda item: temperature(item.gpu)),
        Family("nvidia_gpu_jobId", G, devices, "Id of a job that the device is allocated to.",
               "gpu_job_allocation_info", lambda item: _number(item.job)),
        Family("nvidia_gpu_jobUid", G, devices, "Uid of the user of that job.",
               "gpu_process_info", lambda item: _number(item.user)),
    )  # fmt: skip
