"""How values of a GPU are read, and the values that are read in every tick.

A part of a reading is a function that makes driver calls and returns some fields of a `Reading`. Most parts are one
line of a table, made by `one` or `each`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from struct import Struct
from typing import Any

from gpuledger.driver import nvml
from gpuledger.driver.call import UNSUPPORTED, Calls
from gpuledger.driver.nvml import Handle
from gpuledger.model import Device

Fields = dict[str, Any]
Part = Callable[[Calls, Handle], Fields]

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
UNSIGNED_64 = Struct("=Q")
UNSIGNED_INT = 1
VALUES = {
    0: Struct("=d"),
    UNSIGNED_INT: Struct("=I"),
    4: Struct("=q"),
    5: Struct("=i"),
}
"""By type of value; unsigned numbers of 64 bits otherwise."""
MEMINFO = re.compile(rb"^(MemTotal|MemAvailable): +(\d{1,15}) kB$", re.MULTILINE)
GPU_SENSOR = 0
MODULE, MEMORY = 1, 2
"""Scopes of the fields of power; scope 0 is the GPU."""
MEMORY_TEMPERATURE, POWER_AVERAGE, POWER_INSTANT = 82, 185, 186
MODULE_POWER = (POWER_INSTANT, MODULE)
MEMORY_POWER = (POWER_AVERAGE, MEMORY)
FIELDS = (
    MEMORY_TEMPERATURE,
    POWER_AVERAGE,
    POWER_INSTANT,
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
    if (array := calls.get(nvml.FIELD_VALUES, handle, tuple(fields))) is None:
        return {}
    values: dict[Any, int | None] = {}
    for field, (kind, code, raw) in zip(fields, array, strict=True):
        if code == nvml.SUCCESS and only in (None, kind):
            values[field] = int(VALUES.get(kind, UNSIGNED_64).unpack_from(raw)[0])
        elif code == nvml.SUCCESS or code in UNSUPPORTED:
            values[field] = None
    return values


def identity(calls: Calls, handle: Handle, index: int) -> Device:
    """The identity of the GPU. Only the uuid is mandatory."""
    get = calls.get
    pci = get(nvml.PCI_INFO, handle)
    capability = get(nvml.COMPUTE_CAPABILITY, handle)
    architecture = get(nvml.ARCHITECTURE, handle)
    return Device(
        index=index,
        uuid=calls.require(nvml.UUID, handle),
        name=get(nvml.NAME, handle) or "",
        pci_bus_id="" if pci is None else pci[-1].split(b"\0")[0].decode("utf-8", "replace"),
        minor=get(nvml.MINOR_NUMBER, handle),
        serial=get(nvml.SERIAL, handle) or "",
        vbios_version=get(nvml.VBIOS_VERSION, handle) or "",
        board_part_number=get(nvml.BOARD_PART_NUMBER, handle) or "",
        architecture=ARCHITECTURES.get(architecture, "" if architecture is None else str(architecture)),
        compute_capability="" if capability is None else "{}.{}".format(*capability),
        driver_version=calls.require(nvml.DRIVER_VERSION),
    )


def memory(calls: Calls, handle: Handle) -> Fields:
    """Memory by the v2 call; v1 counts reserved memory as used, 645 MB too much on an idle H200."""
    names: tuple[str, ...] = ("memory_total_bytes", "memory_reserved_bytes", "memory_free_bytes", "memory_used_bytes")
    info = calls.get(nvml.MEMORY, handle)
    # After a temporary failure, the v1 call would give a different number.
    if info is None and calls.is_unsupported(nvml.MEMORY):
        names = names[0], names[2], names[3]
        info = calls.get(nvml.MEMORY_V1, handle)
    is_shared = calls.has_none(nvml.MEMORY_V1) if info is None else not info[0]
    if is_shared:
        return {} if calls.about else system_memory()
    return {} if info is None else dict(zip(names, info, strict=True))


def system_memory(path: str = "/proc/meminfo") -> Fields:
    """Total and used memory of the system, which a GPU without memory of its own uses, such as a GB10."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a third of the cost of pathlib
            kib = {name: int(size) for name, size in MEMINFO.findall(file.read())}
        total, available = kib[b"MemTotal"], kib[b"MemAvailable"]
    except (OSError, KeyError):
        return {}
    return {"system_memory_total_bytes": total << 10, "system_memory_used_bytes": max(0, total - available) << 10}


class PowerAndHeat:
    """Power and temperatures, read in one call; later calls omit unsupported fields."""

    def __init__(self) -> None:
        self._supported: list[Any] = list(FIELDS)

    def __call__(self, calls: Calls, handle: Handle) -> Fields:
        """Instantaneous and average power, and the temperatures."""
        fields = field_values(calls, handle, self._supported) if self._supported else {}
        self._supported = [field for field in self._supported if fields.get(field, 0) is not None]
        power_mw = fields.get(POWER_INSTANT)
        if power_mw is None:  # older GPUs and drivers have one value; on some generations it is an average
            power_mw = calls.get(nvml.POWER_USAGE, handle)
        return {
            "power_mw": power_mw,
            "power_average_mw": fields.get(POWER_AVERAGE),
            "power_module_mw": fields.get(MODULE_POWER),
            "power_memory_mw": fields.get(MEMORY_POWER),
            "temperatures_c": () if (c := fields.get(MEMORY_TEMPERATURE)) is None else (("memory", c),),
        }


def _clock_events(calls: Calls, handle: Handle) -> Fields:
    bits = calls.get(nvml.CLOCK_EVENTS, handle)
    if bits is None:  # the call's name before R535
        bits = calls.get(nvml.CLOCK_EVENTS_OLD, handle)
    return {} if bits is None else {"clock_events": tuple((name, int(bool(bits & bit))) for name, bit in CLOCK_EVENTS)}


def utilization(calls: Calls, handle: Handle) -> Fields:
    """Utilization of the GPU and of its memory."""
    rates = calls.get(nvml.UTILIZATION, handle)
    if rates is None or max(rates) > 100:
        return {}
    return {"utilization_pct": rates[0], "memory_utilization_pct": rates[1]}


def engine_pct(result: tuple[int, int]) -> int | None:
    """The utilization of an engine; the other number is the sampling period."""
    return result[0] if result[0] <= 100 else None


SM_CLOCK = 1
CLOCKS = (("sm", SM_CLOCK), ("memory", 2))
GAUGES: tuple[Part, ...] = (
    one("performance_state", nvml.PERFORMANCE_STATE, convert=lambda state: state if state <= 15 else None),
    each("temperatures_c", nvml.TEMPERATURE, (("gpu", GPU_SENSOR),)),
    each("clocks_mhz", nvml.CLOCK, CLOCKS),
    _clock_events,
)
"""Read every few ticks."""
ENGINES: tuple[Part, ...] = (
    one("encoder_pct", nvml.ENCODER, convert=engine_pct),
    one("decoder_pct", nvml.DECODER, convert=engine_pct),
)
"""Like GAUGES, but not the first value."""
ENERGY: Part = one("energy_mj", nvml.ENERGY)
"""The hardware's counter, in millijoules since the driver was loaded."""
