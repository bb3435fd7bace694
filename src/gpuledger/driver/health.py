"""What the driver reports about the health of a GPU and its fabric; read every tenth tick.

Numbers of fields are given here: the binding has names for them only in newer versions.
"""

from __future__ import annotations

import ctypes
from struct import Struct
from typing import Any
from uuid import UUID

import pynvml

from gpuledger.driver.call import Calls, Handle
from gpuledger.driver.device import Fields, field_values

RECOVERY_ACTION = 230
RECOVERY_ACTIONS = (
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex_domain",
    "bus_reset",
    "system_reboot",
)
"""By number, from 1."""
C2C_LINK_COUNT, C2C_LINK_STATUS = 170, 171
C2C_ERRORS = (("crc", 231), ("replay", 232), ("replay_b2b", 233))
MAX_C2C_LINKS = 64
POWER_SMOOTHING_ENABLED = 251
FABRIC_STATES = {1: "not_started", 2: "in_progress", 3: "completed"}
"""A GPU without a fabric has state 0."""
FABRIC_CONDITIONS = (
    ("degraded_bandwidth", 0),
    ("route_recovery", 2),
    ("route_unhealthy", 4),
    ("access_timeout_recovery", 6),
)
"""Two bits of the health mask at this position: 0 not supported, 1 true, 2 false."""
CONFIGURATION_BITS = 8
"""Position of four bits: 0 not supported, 1 correct, else the error."""


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


FABRIC = Record("nvmlDeviceGetGpuFabricInfoV", 2, Struct("=I16sIIB3xI"))
SRAM = Record("nvmlDeviceGetSramEccErrorStatus", 1, Struct("=I4x11QI4x"))
UNREPAIRABLE = Record("nvmlDeviceGetUnrepairableMemoryFlag_v1", 1, Struct("=II"))


def fabric(calls: Calls, handle: Handle) -> Fields:
    """Registration with the NVLink fabric; empty without a fabric."""
    record = calls.get(FABRIC, handle)
    if record is None or not record[3]:
        return {}
    cluster, status, clique, state, health = record
    conditions = [
        (name, int(value == 1)) for name, position in FABRIC_CONDITIONS if (value := health >> position & 3) in (1, 2)
    ]
    if configuration := health >> CONFIGURATION_BITS & 15:
        conditions.append(("incorrect_configuration", int(configuration > 1)))
    is_completed = FABRIC_STATES.get(state) == "completed"
    return {
        "fabric_states": tuple((name, int(state == number)) for number, name in FABRIC_STATES.items()),
        "fabric_cluster": str(UUID(bytes=cluster)) if is_completed else "",
        "fabric_clique": clique if is_completed else None,
        "fabric_failed": is_completed and status != pynvml.NVML_SUCCESS,
        "fabric_conditions": tuple(conditions),
    }


def memory(calls: Calls, handle: Handle) -> Fields:
    """Errors of the on-chip memory, and memory that cannot be repaired."""
    fields: Fields = {}
    if (record := calls.get(SRAM, handle)) is not None:
        parity, secded, corrected, new_parity, new_secded, new_corrected, *units, is_exceeded = record
        names = ("corrected", "uncorrected_parity", "uncorrected_secded")
        fields["sram_errors"] = tuple(zip(names, (corrected, parity, secded), strict=True))
        fields["sram_volatile_errors"] = tuple(zip(names, (new_corrected, new_parity, new_secded), strict=True))
        fields["sram_uncorrected"] = tuple(zip(("l2", "sm", "pcie", "mcu", "other"), units, strict=True))
        fields["sram_threshold_exceeded"] = bool(is_exceeded)
    if (record := calls.get(UNREPAIRABLE, handle)) is not None:
        fields["memory_unrepairable"] = bool(record[0])
    return fields


def recovery(calls: Calls, handle: Handle) -> Fields:
    """What the driver asks for so that the GPU can be used again."""
    action = field_values(calls, handle, [RECOVERY_ACTION]).get(RECOVERY_ACTION)
    if action is None:
        return {}
    return {"recovery_actions": tuple((name, int(action == n)) for n, name in enumerate(RECOVERY_ACTIONS, start=1))}


def c2c(calls: Calls, handle: Handle) -> Fields:
    """The links between a GPU and its CPU on one module, as in GB200; empty without them."""
    count = field_values(calls, handle, [C2C_LINK_COUNT]).get(C2C_LINK_COUNT)
    if not count or count > MAX_C2C_LINKS:
        return {}
    kinds = (C2C_LINK_STATUS, *(field for _, field in C2C_ERRORS))
    values = field_values(calls, handle, [(field, link) for link in range(count) for field in kinds])
    up = sum(values.get((C2C_LINK_STATUS, link)) == 1 for link in range(count))
    return {"c2c_links": (("up", up), ("down", count - up)), "c2c_errors": link_sums(values, C2C_ERRORS)}


def link_sums(values: dict[Any, int | None], kinds: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Each kind of counter, added up over the links that report it."""
    sums = []
    for name, field in kinds:
        known = [value for (number, _), value in values.items() if number == field and value is not None]
        if known:
            sums.append((name, sum(known)))
    return tuple(sums)


def power_smoothing(calls: Calls, handle: Handle) -> Fields:
    """Whether the driver smooths changes of power.

    Driver 580.65 has a counter of nanoseconds under the same number, which is of another type; 580.159 has not.
    """
    fields = [POWER_SMOOTHING_ENABLED]
    values = field_values(calls, handle, fields, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT)
    enabled = values.get(POWER_SMOOTHING_ENABLED)
    if values and enabled is None:  # 150 us on an H200
        calls.skip(pynvml.nvmlDeviceGetFieldValues, tuple(fields))
    return {"power_smoothing_enabled": bool(enabled)} if enabled in (0, 1) else {}
