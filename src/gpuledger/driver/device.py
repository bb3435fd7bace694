"""The values of a GPU that are read in every tick. Each function returns some fields of a Reading."""

from __future__ import annotations

import sys
from struct import Struct
from typing import Any

import pynvml

from gpuledger.driver.call import UNSUPPORTED, Calls, Handle
from gpuledger.model import Device, Labelled

Fields = dict[str, Any]

MEMORY_V2 = pynvml.nvmlMemory_v2

ARCHITECTURES = {
    2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere", 8: "ada", 9: "hopper",
    10: "blackwell",
}  # fmt: skip
CLOCKS = (("sm", pynvml.NVML_CLOCK_SM), ("memory", pynvml.NVML_CLOCK_MEM))
OTHER_CLOCKS = (("graphics", pynvml.NVML_CLOCK_GRAPHICS), ("video", pynvml.NVML_CLOCK_VIDEO))
"""Read rarely: on all GPUs since Fermi the graphics clock equals the SM clock."""
CLOCK_EVENTS = (
    ("gpu_idle", 0x1),
    ("applications_clocks_setting", 0x2),
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("sw_thermal_slowdown", 0x20),
    ("hw_thermal_slowdown", 0x40),
    ("hw_power_brake_slowdown", 0x80),
    ("display_clock_setting", 0x100),
)
FIELD_VALUE = Struct("=24xIi8s")  # id, scope, timestamp and latency; type of value, return code, value
UNSIGNED_64 = Struct("=Q")
VALUES = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: Struct("=d"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: Struct("=I"),
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: Struct("=q"),
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: Struct("=i"),
}
VIDEO = (
    ("encoder_pct", pynvml.nvmlDeviceGetEncoderUtilization),
    ("decoder_pct", pynvml.nvmlDeviceGetDecoderUtilization),
)
IMAGES = (("jpeg_pct", pynvml.nvmlDeviceGetJpgUtilization), ("optical_flow_pct", pynvml.nvmlDeviceGetOfaUtilization))
MODULE, MEMORY = 1, 2
"""Scopes of the fields of power; scope 0 is the GPU."""
MODULE_POWER = (pynvml.NVML_FI_DEV_POWER_INSTANT, MODULE)
MEMORY_POWER = (pynvml.NVML_FI_DEV_POWER_AVERAGE, MEMORY)
FIELDS = (
    pynvml.NVML_FI_DEV_MEMORY_TEMP,
    pynvml.NVML_FI_DEV_POWER_AVERAGE,
    pynvml.NVML_FI_DEV_POWER_INSTANT,
    MODULE_POWER,
    MEMORY_POWER,  # an H200 has no instantaneous value
)


def identity(calls: Calls, handle: Handle, index: int) -> Device:
    """The identity of the GPU. Only the uuid is mandatory."""
    get = calls.get
    pci = get(pynvml.nvmlDeviceGetPciInfo, handle)
    capability = get(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    architecture = get(pynvml.nvmlDeviceGetArchitecture, handle)
    return Device(
        index=index,
        uuid=str(calls.require(pynvml.nvmlDeviceGetUUID, handle)),
        name=str(get(pynvml.nvmlDeviceGetName, handle) or ""),
        pci_bus_id=_text(pci.busId) if pci is not None else "",
        minor=get(pynvml.nvmlDeviceGetMinorNumber, handle),
        serial=str(get(pynvml.nvmlDeviceGetSerial, handle) or ""),
        vbios_version=str(get(pynvml.nvmlDeviceGetVbiosVersion, handle) or ""),
        board_part_number=str(get(pynvml.nvmlDeviceGetBoardPartNumber, handle) or ""),
        architecture=ARCHITECTURES.get(architecture, "" if architecture is None else str(architecture)),
        compute_capability="" if capability is None else "{}.{}".format(*capability),
        driver_version=str(calls.require(pynvml.nvmlSystemGetDriverVersion)),
    )


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def memory(calls: Calls, handle: Handle) -> Fields:
    """Memory by the v2 call; v1 counts reserved memory as used, 645 MB too much on an idle H200."""
    info = calls.get(pynvml.nvmlDeviceGetMemoryInfo, handle, MEMORY_V2)
    if info is not None:
        return {
            "memory_total_bytes": info.total,
            "memory_used_bytes": info.used,
            "memory_free_bytes": info.free,
            "memory_reserved_bytes": info.reserved,
        }
    if not calls.is_unsupported(pynvml.nvmlDeviceGetMemoryInfo, MEMORY_V2):
        return {}  # a temporary failure; the v1 call would give a different number
    info = calls.get(pynvml.nvmlDeviceGetMemoryInfo, handle)
    if info is None:
        return {}
    return {"memory_total_bytes": info.total, "memory_used_bytes": info.used, "memory_free_bytes": info.free}


def utilization(calls: Calls, handle: Handle) -> Fields:
    """Utilization of the whole GPU, and of its video engines."""
    fields = engines(calls, handle, VIDEO)
    rates = calls.get(pynvml.nvmlDeviceGetUtilizationRates, handle)
    if rates is not None and rates.gpu <= 100 and rates.memory <= 100:
        fields["utilization_pct"], fields["memory_utilization_pct"] = rates.gpu, rates.memory
    return fields


def engines(calls: Calls, handle: Handle, functions: tuple[tuple[str, Any], ...]) -> Fields:
    """Utilization of some engines."""
    results = ((name, calls.get(function, handle)) for name, function in functions)
    return {name: result[0] for name, result in results if result is not None and result[0] <= 100}


class PowerAndHeat:
    """Power and temperatures, read in one call; later calls omit unsupported fields."""

    def __init__(self) -> None:
        self._supported: list[Any] = list(FIELDS)

    def __call__(self, calls: Calls, handle: Handle) -> Fields:
        """Instantaneous and average power, and the temperatures."""
        fields = self._fields(calls, handle)
        power_mw = fields.get(pynvml.NVML_FI_DEV_POWER_INSTANT)
        if power_mw is None:  # older GPUs and drivers have one value; on some generations it is an average
            power_mw = calls.get(pynvml.nvmlDeviceGetPowerUsage, handle)
        temperatures = (
            ("gpu", calls.get(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)),
            ("memory", fields.get(pynvml.NVML_FI_DEV_MEMORY_TEMP)),
        )
        return {
            "power_mw": power_mw,
            "power_average_mw": fields.get(pynvml.NVML_FI_DEV_POWER_AVERAGE),
            "power_module_mw": fields.get(MODULE_POWER),
            "power_memory_mw": fields.get(MEMORY_POWER),
            "temperatures_c": tuple((name, c) for name, c in temperatures if c is not None),
        }

    def _fields(self, calls: Calls, handle: Handle) -> dict[Any, int]:
        if not self._supported:
            return {}
        values = field_values(calls, handle, self._supported)
        for field, value in values.items():
            if value is None:
                self._supported.remove(field)
        return {field: value for field, value in values.items() if value is not None}


def field_values(calls: Calls, handle: Handle, fields: list[Any], only: int | None = None) -> dict[Any, int | None]:
    """Values of fields, each given as id or (id, scope): None if not supported; absent if reading it failed.

    A value of another type than `only` is not supported, either: the number had another meaning in that driver.
    """
    if (array := calls.get(pynvml.nvmlDeviceGetFieldValues, handle, tuple(fields))) is None:
        return {}
    values: dict[Any, int | None] = {}
    records = FIELD_VALUE.iter_unpack(memoryview(array).cast("B"))
    for field, (kind, code, raw) in zip(fields, records, strict=True):
        if code == pynvml.NVML_SUCCESS and only in (None, kind):
            values[field] = int(VALUES.get(kind, UNSIGNED_64).unpack_from(raw)[0])
        elif code == pynvml.NVML_SUCCESS or code in UNSUPPORTED:
            values[field] = None
    return values


def energy(calls: Calls, handle: Handle) -> Fields:
    """The hardware's energy counter, in millijoules since the driver was loaded."""
    return {"energy_mj": calls.get(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)}


def clocks(calls: Calls, handle: Handle) -> Fields:
    """Clocks, performance state, and the reasons for reduced clocks."""
    state = calls.get(pynvml.nvmlDeviceGetPerformanceState, handle)
    return {
        "clocks_mhz": labelled(calls, pynvml.nvmlDeviceGetClockInfo, handle, CLOCKS),
        "performance_state": state if state is not None and state <= 15 else None,
        "clock_events": _clock_events(calls, handle),
    }


def _clock_events(calls: Calls, handle: Handle) -> Labelled:
    bits = calls.get(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if bits is None:  # the call's name before R535
        bits = calls.get(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    if bits is None:
        return ()
    return tuple((name, 1 if bits & bit else 0) for name, bit in CLOCK_EVENTS)


def labelled(calls: Calls, function: Any, handle: Handle, names: tuple[tuple[str, int], ...]) -> Labelled:
    """The results of one call for several named arguments; unsupported ones are left out."""
    values = ((sys.intern(name), calls.get(function, handle, kind)) for name, kind in names)
    return tuple((name, value) for name, value in values if value is not None)
