"""How values of a GPU are read, and the values that are read in every tick.

A part of a reading is a function that makes driver calls and returns some fields of a `Reading`. Most parts are one
line of a table, made by `one` or `each`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from struct import Struct
from typing import Any

import pynvml

from gpuledger.driver.call import UNSUPPORTED, Calls, Handle
from gpuledger.model import Device

Fields = dict[str, Any]
Part = Callable[[Calls, Handle], Fields]

MEMORY_V2 = pynvml.nvmlMemory_v2
ARCHITECTURES = {
    2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere", 8: "ada", 9: "hopper",
    10: "blackwell",
}  # fmt: skip
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


def _same(result: Any) -> Any:
    return result


def one(field: str, function: Callable[..., Any], *arguments: Any, convert: Callable[[Any], Any] = _same) -> Part:
    """The result of one call; None if the GPU does not support it."""

    def read(calls: Calls, handle: Handle) -> Fields:
        result = calls.get(function, handle, *arguments)
        return {field: None if result is None else convert(result)}

    return read


def each(
    field: str, function: Callable[..., Any], kinds: tuple[tuple[Any, ...], ...], convert: Callable[[Any], Any] = _same
) -> Part:
    """The results of one call for several kinds, each a name and arguments; unsupported ones are left out."""

    def read(calls: Calls, handle: Handle) -> Fields:
        results = [(sys.intern(name), calls.get(function, handle, *arguments)) for name, *arguments in kinds]
        return {field: tuple((name, convert(result)) for name, result in results if result is not None)}

    return read


def read_parts(parts: tuple[Part, ...], calls: Calls, handle: Handle) -> Fields:
    """The fields of all parts, read in this order."""
    fields: Fields = {}
    for part in parts:
        fields.update(part(calls, handle))
    return fields


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


class Record:
    """A driver call that fills one C record, which begins with its size and version."""

    def __init__(self, symbol: str, version: int, layout: Struct) -> None:
        self.__name__ = symbol
        self._version = version << 24 | layout.size
        self._layout = layout

    def __call__(self, handle: Handle) -> tuple[Any, ...]:
        """The fields of the record, without the version."""
        function = pynvml._nvmlGetFunctionPointer(self.__name__)  # noqa: SLF001 - raises NVMLError when missing
        buffer = ctypes.create_string_buffer(self._layout.size)
        ctypes.c_uint.from_buffer(buffer).value = self._version
        code = function(handle, buffer)
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code)
        return self._layout.unpack(buffer)[1:]


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
    names: tuple[str, ...] = ("total", "used", "free", "reserved")
    info = calls.get(pynvml.nvmlDeviceGetMemoryInfo, handle, MEMORY_V2)
    # After a temporary failure, the v1 call would give a different number.
    if info is None and calls.is_unsupported(pynvml.nvmlDeviceGetMemoryInfo, MEMORY_V2):
        names = names[:3]
        info = calls.get(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return {} if info is None else {f"memory_{name}_bytes": getattr(info, name) for name in names}


class PowerAndHeat:
    """Power and temperatures, read in one call; later calls omit unsupported fields."""

    def __init__(self) -> None:
        self._supported: list[Any] = list(FIELDS)

    def __call__(self, calls: Calls, handle: Handle) -> Fields:
        """Instantaneous and average power, and the temperatures."""
        fields = field_values(calls, handle, self._supported) if self._supported else {}
        self._supported = [field for field in self._supported if fields.get(field, 0) is not None]
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


def _clock_events(calls: Calls, handle: Handle) -> Fields:
    bits = calls.get(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if bits is None:  # the call's name before R535
        bits = calls.get(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return {} if bits is None else {"clock_events": tuple((name, int(bool(bits & bit))) for name, bit in CLOCK_EVENTS)}


def _utilization(calls: Calls, handle: Handle) -> Fields:
    rates = calls.get(pynvml.nvmlDeviceGetUtilizationRates, handle)
    if rates is None or rates.gpu > 100 or rates.memory > 100:
        return {}
    return {"utilization_pct": rates.gpu, "memory_utilization_pct": rates.memory}


def engine_pct(result: tuple[int, int]) -> int | None:
    """The utilization of an engine; the other number is the sampling period."""
    return result[0] if result[0] <= 100 else None


CLOCKS = (("sm", pynvml.NVML_CLOCK_SM), ("memory", pynvml.NVML_CLOCK_MEM))
FAST: tuple[Part, ...] = (
    one(
        "performance_state", pynvml.nvmlDeviceGetPerformanceState, convert=lambda state: state if state <= 15 else None
    ),
    each("clocks_mhz", pynvml.nvmlDeviceGetClockInfo, CLOCKS),
    _clock_events,
)
"""Read after energy, power and temperatures."""
ENERGY: Part = one("energy_mj", pynvml.nvmlDeviceGetTotalEnergyConsumption)
"""The hardware's counter, in millijoules since the driver was loaded."""
UTILIZATION: tuple[Part, ...] = (
    one("encoder_pct", pynvml.nvmlDeviceGetEncoderUtilization, convert=engine_pct),
    one("decoder_pct", pynvml.nvmlDeviceGetDecoderUtilization, convert=engine_pct),
    _utilization,
)
