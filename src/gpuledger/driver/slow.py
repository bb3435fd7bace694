"""The values of a GPU that change rarely: errors, links, health and modes every tenth tick, limits once.

Numbers of fields that the binding names only in newer versions are given here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from gpuledger.driver import nvml
from gpuledger.driver.call import Calls
from gpuledger.driver.nvml import Handle
from gpuledger.driver.values import (
    CLOCKS,
    UNSIGNED_INT,
    Fields,
    Part,
    each,
    engine_pct,
    field_values,
    one,
    read_parts,
)

OTHER_CLOCKS = (("graphics", 0), ("video", 3))
"""On all GPUs since Fermi the graphics clock equals the SM clock."""
TEMPERATURE_LIMITS = (
    ("shutdown", 0),
    ("slowdown", 1),
    ("memory_max", 2),
    ("gpu_max", 3),
)
CONSTANTS: tuple[Part, ...] = (
    one("power_default_limit_mw", nvml.POWER_DEFAULT_LIMIT),
    each("max_clocks_mhz", nvml.MAX_CLOCK, (*OTHER_CLOCKS, *CLOCKS)),
    each("temperature_limits_c", nvml.TEMPERATURE_THRESHOLD, TEMPERATURE_LIMITS),
    one("pcie_max_generation", nvml.PCIE_MAX_GENERATION),
    one("pcie_max_width", nvml.PCIE_MAX_WIDTH),
)
"""Limits of the board. Read once: the call for the highest clocks blocks up to 47 ms on an H200."""
PCIE_THROUGHPUT: tuple[Part, ...] = tuple(
    one(field, nvml.PCIE_THROUGHPUT, direction, convert=lambda kib: kib * 1024)
    for field, direction in (
        ("pcie_transmit_bytes_per_s", 0),
        ("pcie_receive_bytes_per_s", 1),
    )
)
"""Read only on request, because each call blocks 21 ms on an H200."""
IMAGES: tuple[Part, ...] = (
    one("jpeg_pct", nvml.JPEG, convert=engine_pct),
    one("optical_flow_pct", nvml.OPTICAL_FLOW, convert=engine_pct),
    each("clocks_mhz", nvml.CLOCK, OTHER_CLOCKS),
)
ECC_ENABLED = 1
ECC_ERRORS = (
    ("ecc_volatile_errors", (("corrected", 3, 0, 0), ("uncorrected", 4, 1, 0))),
    ("ecc_errors", (("corrected", 5, 0, 1), ("uncorrected", 6, 1, 1))),
)
"""Each kind with its field, and the arguments of its call: type of error, and lifetime."""
POLICIES = (
    ("power", 74, 0),
    ("thermal", 75, 1),
    ("sync_boost", 76, 2),
    ("board_limit", 77, 3),
    ("low_utilization", 78, 4),
    ("reliability", 79, 5),
)
"""Each reason for reduced clocks with its field, and the argument of its call. Both are in nanoseconds."""
PCIE_REPLAYS = 94
REMAPPED_ROWS = (142, 143, 144, 145)
NVLINK_ERRORS = (
    ("replay", 0),
    ("recovery", 1),
    ("crc_flit", 2),
    ("crc_data", 3),
)
ALL_LINKS = 0xFFFFFFFF
LINK_UP = 1
LINKS_EVERY = 6
"""Calls between two readings of the states and errors of the links, which is a minute."""
TRANSMITTED, RECEIVED = 202, 204
"""Fields of NVLink 5 (Blackwell), in bytes by link; the fields and calls of older links are not supported there."""
NVLINK5_ERRORS = (
    ("malformed_packet", 206),
    ("buffer_overrun", 207),
    ("receive", 208),
    ("receive_remote", 209),
    ("receive_general", 210),
    ("link_integrity", 211),
    ("transmit_discard", 212),
    ("recovery_failed", 214),
    ("recovery", 215),
    ("effective", 219),
    ("symbol", 221),
)
C2C_LINK_COUNT, C2C_LINK_STATUS = 170, 171
C2C_ERRORS = (("crc", 231), ("replay", 232), ("replay_b2b", 233))
MAX_C2C_LINKS = 64
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
COUNTERS = (
    ECC_ENABLED,
    *(field for _, kinds in ECC_ERRORS for _, field, *_ in kinds),
    *(field for _, field, _ in POLICIES),
    PCIE_REPLAYS,
    *REMAPPED_ROWS,
    RECOVERY_ACTION,
    C2C_LINK_COUNT,
)
"""Fields that are read in one call: 1.2 ms on an H200, where their own calls take 6.5 ms."""


class Counters:
    """Errors and the time of reduced clocks. A GPU that does not support a field may support its older call."""

    def __init__(self) -> None:
        self._supported = list(COUNTERS)

    def __call__(self, calls: Calls, handle: Handle) -> Fields:
        """Later calls omit unsupported fields."""
        known = field_values(calls, handle, self._supported) if self._supported else {}
        self._supported = [field for field in self._supported if known.get(field, 0) is not None]

        def value(field: int, function: Callable[..., Any], *arguments: int, at: int | None = None) -> Any:
            if (number := known.get(field)) is not None:
                return number
            result = calls.get(function, handle, *arguments)
            return result if at is None or result is None else result[at]

        times = [(name, value(field, nvml.VIOLATION, policy, at=1)) for name, field, policy in POLICIES]
        fields: Fields = {
            "clock_event_ns": tuple((name, ns) for name, ns in times if ns is not None),
            "pcie_replays": value(PCIE_REPLAYS, nvml.PCIE_REPLAYS),
            **_remapped_rows([known.get(field) for field in REMAPPED_ROWS], calls, handle),
            **_recovery(known.get(RECOVERY_ACTION)),
            **_c2c(known.get(C2C_LINK_COUNT), calls, handle),
        }
        if (enabled := value(ECC_ENABLED, nvml.ECC_MODE, at=0)) is not None:
            fields["ecc_enabled"] = bool(enabled)
        for name, kinds in ECC_ERRORS if enabled else ():
            errors = [(kind, value(field, nvml.ECC_ERRORS, *arguments)) for kind, field, *arguments in kinds]
            fields[name] = tuple((kind, count) for kind, count in errors if count is not None)
        return fields


def _remapped_rows(rows: Sequence[int | None], calls: Calls, handle: Handle) -> Fields:
    known: Sequence[int | None] | None = rows if None not in rows else calls.get(nvml.REMAPPED_ROWS, handle)
    if known is None:
        return {}
    correctable, uncorrectable, pending, failed = known
    return {
        "remapped_rows": (("correctable", correctable), ("uncorrectable", uncorrectable)),
        "row_remap_pending": bool(pending),
        "row_remap_failed": bool(failed),
    }


class Links:
    """NVLinks by state, with the traffic and errors of all links; empty without NVLink.

    States and errors are read in every LINKS_EVERYth call: they are 90 calls for the 18 links of an H200.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._up: list[int] = []
        self._known: Fields = {}

    def __call__(self, calls: Calls, handle: Handle) -> Fields:
        """Read the traffic, and now and then all of them."""
        is_due = self._turn % LINKS_EVERY == 0
        self._turn += 1
        if is_due:
            states = {link: calls.get(nvml.NVLINK_STATE, handle, link) for link in range(nvml.MAX_LINKS)}
            self._up = [link for link, state in states.items() if state == LINK_UP]
            down = sum(state not in (None, LINK_UP) for state in states.values())
            self._known = {"nvlinks": (("up", len(self._up)), ("down", down))} if self._up or down else {}
        if not self._up:
            return self._known
        sent = TRANSMITTED, self._up[0]
        if field_values(calls, handle, [sent]).get(sent) is not None:
            return self._known | _nvlink5(calls, handle, self._up)
        if is_due:
            errors = {
                (kind, link): calls.get(nvml.NVLINK_ERRORS, handle, link, kind)
                for _, kind in NVLINK_ERRORS
                for link in self._up
            }
            self._known["nvlink_errors"] = _link_sums(errors, NVLINK_ERRORS)
        transmit, receive = (138, ALL_LINKS), (139, ALL_LINKS)
        kib = field_values(calls, handle, [transmit, receive])
        return self._known | {
            "nvlink_transmit_bytes": None if (sent_kib := kib.get(transmit)) is None else sent_kib * 1024,
            "nvlink_receive_bytes": None if (received_kib := kib.get(receive)) is None else received_kib * 1024,
        }


def _nvlink5(calls: Calls, handle: Handle, up: list[int]) -> Fields:
    """Traffic and errors of NVLink 5, which has them only by link."""
    kinds = (("sent", TRANSMITTED), ("received", RECEIVED), *NVLINK5_ERRORS)
    sums = dict(_link_sums(field_values(calls, handle, [(n, link) for _, n in kinds for link in up]), kinds))
    return {
        "nvlink_transmit_bytes": sums.pop("sent", None),
        "nvlink_receive_bytes": sums.pop("received", None),
        "nvlink_errors": tuple(sums.items()),
    }


def _link_sums(values: dict[Any, int | None], kinds: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Each kind of counter, added up over the links that report it."""
    sums = []
    for name, field in kinds:
        known = [value for (number, _), value in values.items() if number == field and value is not None]
        if known:
            sums.append((name, sum(known)))
    return tuple(sums)


def _licenses(calls: Calls, handle: Handle) -> Fields:
    """Whether a vGPU feature is licensed; False if the GPU or driver does not support licenses."""
    answer = calls.get(nvml.LICENSES, handle)
    if answer is None:
        return {"vgpu_licensed": False if calls.is_unsupported(nvml.LICENSES) else None}
    is_supported, features = answer
    return {"vgpu_licensed": is_supported and any(features)}


def _images_and_fans(calls: Calls, handle: Handle) -> Fields:
    """Image engines, other clocks, and fans; passively cooled boards have no fans."""
    count = calls.get(nvml.FAN_COUNT, handle) or 0
    fans = each("fans_pct", nvml.FAN_SPEED, tuple((str(fan), fan) for fan in range(count)))
    return read_parts((*IMAGES, fans), calls, handle)


def _fabric(calls: Calls, handle: Handle) -> Fields:
    """Registration with the NVLink fabric; empty without a fabric."""
    record = calls.get(nvml.FABRIC, handle)
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
        "fabric_failed": is_completed and status != nvml.SUCCESS,
        "fabric_conditions": tuple(conditions),
    }


def _sram(calls: Calls, handle: Handle) -> Fields:
    """Errors of the on-chip memory."""
    if (record := calls.get(nvml.SRAM_ERRORS, handle)) is None:
        return {}
    parity, secded, corrected, new_parity, new_secded, new_corrected, *units, is_exceeded = record
    names = ("corrected", "uncorrected_parity", "uncorrected_secded")
    return {
        "sram_errors": tuple(zip(names, (corrected, parity, secded), strict=True)),
        "sram_volatile_errors": tuple(zip(names, (new_corrected, new_parity, new_secded), strict=True)),
        "sram_uncorrected": tuple(zip(("l2", "sm", "pcie", "mcu", "other"), units, strict=True)),
        "sram_threshold_exceeded": bool(is_exceeded),
    }


def _recovery(action: int | None) -> Fields:
    """What the driver asks for so that the GPU can be used again."""
    if action is None:
        return {}
    return {"recovery_actions": tuple((name, int(action == n)) for n, name in enumerate(RECOVERY_ACTIONS, start=1))}


def _c2c(count: int | None, calls: Calls, handle: Handle) -> Fields:
    """The links between a GPU and its CPU on one module, as in GB200; empty without them."""
    if not count or count > MAX_C2C_LINKS:
        return {}
    kinds = (C2C_LINK_STATUS, *(field for _, field in C2C_ERRORS))
    values = field_values(calls, handle, [(field, link) for link in range(count) for field in kinds])
    up = sum(values.get((C2C_LINK_STATUS, link)) == 1 for link in range(count))
    return {"c2c_links": (("up", up), ("down", count - up)), "c2c_errors": _link_sums(values, C2C_ERRORS)}


def _power_smoothing(calls: Calls, handle: Handle) -> Fields:
    """Whether the driver smooths changes of power.

    Driver 580.65 has a counter of nanoseconds under the same number, which is of another type; 580.159 has not.
    """
    fields = [POWER_SMOOTHING_ENABLED]
    values = field_values(calls, handle, fields, UNSIGNED_INT)
    enabled = values.get(POWER_SMOOTHING_ENABLED)
    if values and enabled is None:  # 150 us on an H200
        calls.skip(nvml.FIELD_VALUES, tuple(fields))
    return {"power_smoothing_enabled": bool(enabled)} if enabled in (0, 1) else {}


SLOW: tuple[Part, ...] = (
    one("power_limit_mw", nvml.POWER_LIMIT),
    one("pcie_generation", nvml.PCIE_GENERATION),
    one("pcie_width", nvml.PCIE_WIDTH),
    one("mig_enabled", nvml.MIG_MODE, convert=lambda modes: bool(modes[0])),
    one("accounting_enabled", nvml.ACCOUNTING_MODE, convert=bool),
    _licenses,
    _images_and_fans,
    _fabric,
    _sram,
    one("memory_unrepairable", nvml.UNREPAIRABLE_MEMORY, convert=lambda record: bool(record[0])),
    _power_smoothing,
)
