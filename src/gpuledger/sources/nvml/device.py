"""The values of a GPU that are read in every tick. Each function returns some fields of a Reading."""

from __future__ import annotations

import sys
from struct import Struct
from typing import Any

import pynvml

from gpuledger.model import Device, Labelled
from gpuledger.sources.nvml.call import UNSUPPORTED, Calls, Handle

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
FIELD_VALUE = Struct("=I4x16xIi8s")  # id, scope, timestamp, latency, type of value, return code, value
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
FIELDS = (pynvml.NVML_FI_DEV_MEMORY_TEMP, pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_INSTANT)


def identity(calls: Calls, handle: Handle, index: int) -> Device:
    """The identity of the GPU. Only the uuid is mandatory."""
    ask = calls.ask
    pci = ask(pynvml.nvmlDeviceGetPciInfo, handle)
    capability = ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    architecture = ask(pynvml.nvmlDeviceGetArchitecture, handle)
    return Device(
        index=index,
        uuid=str(calls.insist(pynvml.nvmlDeviceGetUUID, handle)),
        name=str(ask(pynvml.nvmlDeviceGetName, handle) or ""),
        pci_bus_id=_text(pci.busId) if pci is not None else "",
        minor=ask(pynvml.nvmlDeviceGetMinorNumber, handle),
        serial=str(ask(pynvml.nvmlDeviceGetSerial, handle) or ""),
        vbios_version=str(ask(pynvml.nvmlDeviceGetVbiosVersion, handle) or ""),
        board_part_number=str(ask(pynvml.nvmlDeviceGetBoardPartNumber, handle) or ""),
        architecture=ARCHITECTURES.get(architecture, "" if architecture is None else str(architecture)),
        compute_capability="" if capability is None else "{}.{}".format(*capability),
        driver_version=str(calls.insist(pynvml.nvmlSystemGetDriverVersion)),
    )


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def memory(calls: Calls, handle: Handle) -> Fields:
    """Memory by the v2 call; v1 counts reserved memory as used, 645 MB too much on an idle H200."""
    info = calls.ask(pynvml.nvmlDeviceGetMemoryInfo, handle, MEMORY_V2)
    if info is not None:
        return {
            "memory_total_bytes": info.total,
            "memory_used_bytes": info.used,
            "memory_free_bytes": info.free,
            "memory_reserved_bytes": info.reserved,
        }
    if not calls.lacks(pynvml.nvmlDeviceGetMemoryInfo, MEMORY_V2):
        return {}  # it failed this time; the v1 call would give a different number
    info = calls.ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    if info is None:
        return {}
    return {"memory_total_bytes": info.total, "memory_used_bytes": info.used, "memory_free_bytes": info.free}


def utilization(calls: Calls, handle: Handle) -> Fields:
    """Utilization of the whole GPU, and of its video engines."""
    fields = engines(calls, handle, VIDEO)
    rates = calls.ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    if rates is not None and rates.gpu <= 100 and rates.memory <= 100:
        fields["utilization_pct"], fields["memory_utilization_pct"] = rates.gpu, rates.memory
    return fields


def engines(calls: Calls, handle: Handle, wanted: tuple[tuple[str, Any], ...]) -> Fields:
    """Utilization of some engines."""
    answers = ((name, calls.ask(function, handle)) for name, function in wanted)
    return {name: answer[0] for name, answer in answers if answer is not None and answer[0] <= 100}


class PowerAndHeat:
    """Power and temperatures. Fields come in one call; those that a GPU lacks are left out of the next one."""

    def __init__(self) -> None:
        self._wanted = list(FIELDS)

    def __call__(self, calls: Calls, handle: Handle) -> Fields:
        """Instantaneous and average power, and the temperatures."""
        fields = self._fields(calls, handle)
        power_mw = fields.get(pynvml.NVML_FI_DEV_POWER_INSTANT)
        if power_mw is None:  # older GPUs and drivers have one value, averaged or not by generation
            power_mw = calls.ask(pynvml.nvmlDeviceGetPowerUsage, handle)
        temperatures = (
            ("gpu", calls.ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)),
            ("memory", fields.get(pynvml.NVML_FI_DEV_MEMORY_TEMP)),
        )
        return {
            "power_mw": power_mw,
            "power_average_mw": fields.get(pynvml.NVML_FI_DEV_POWER_AVERAGE),
            "temperatures_c": tuple((name, c) for name, c in temperatures if c is not None),
        }

    def _fields(self, calls: Calls, handle: Handle) -> dict[int, int]:
        if not self._wanted:
            return {}
        values = field_values(calls, handle, self._wanted)
        for field, value in values.items():
            if value is None:
                self._wanted.remove(field)
        return {field: value for field, value in values.items() if value is not None}


def field_values(calls: Calls, handle: Handle, wanted: list[Any]) -> dict[int, int | None]:
    """Field values by id: None if a field is not supported; absent if it failed this time."""
    if (values := calls.ask(pynvml.nvmlDeviceGetFieldValues, handle, tuple(wanted))) is None:
        return {}
    known: dict[int, int | None] = {}
    for field, kind, code, raw in FIELD_VALUE.iter_unpack(memoryview(values).cast("B")):
        if code == pynvml.NVML_SUCCESS:
            known[field] = int(VALUES.get(kind, UNSIGNED_64).unpack_from(raw)[0])
        elif code in UNSUPPORTED:
            known[field] = None
    return known


def energy(calls: Calls, handle: Handle) -> Fields:
    """The hardware's energy counter, in millijoules since the driver was loaded."""
    return {"energy_mj": calls.ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)}


def clocks(calls: Calls, handle: Handle) -> Fields:
    """Clocks, performance state, and the reasons for reduced clocks."""
    state = calls.ask(pynvml.nvmlDeviceGetPerformanceState, handle)
    return {
        "clocks_mhz": labelled(calls, pynvml.nvmlDeviceGetClockInfo, handle, CLOCKS),
        "performance_state": state if state is not None and state <= 15 else None,
        "clock_events": _clock_events(calls, handle),
    }


def _clock_events(calls: Calls, handle: Handle) -> Labelled:
    bits = calls.ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if bits is None:  # the call's name before R535
        bits = calls.ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    if bits is None:
        return ()
    return tuple((name, 1 if bits & bit else 0) for name, bit in CLOCK_EVENTS)


def labelled(calls: Calls, function: Any, handle: Handle, names: tuple[tuple[str, int], ...]) -> Labelled:
    """The results of one call for several named arguments; unsupported ones are left out."""
    answers = ((sys.intern(name), calls.ask(function, handle, kind)) for name, kind in names)
    return tuple((name, value) for name, value in answers if value is not None)
