"""libdcgm: loading it, its structures and calls, and fixes for its errors.

Sizes and offsets of the structures are the same in every release from 3.0.4 to 4.6.0. The first word of each has its
size and the number of its layout, so that a library with another layout refuses the call instead of writing past the
end.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint, c_ushort, sizeof
from typing import Any

from gpuledger.errors import DcgmError

MOST_GPUS = 32


def version_word(kind: type[Structure], number: int) -> int:
    """The value of the first field of a structure."""
    return sizeof(kind) | number << 24


class Summary64(Structure):
    """Minimum, maximum and mean of the samples in a window."""

    _fields_ = (("minimum", c_int64), ("maximum", c_int64), ("average", c_int64))


class Summary32(Structure):
    """Minimum, maximum and mean in 32 bits."""

    _fields_ = (("minimum", c_int), ("maximum", c_int), ("average", c_int))


class ProcessUtilization(Structure):
    """Utilization of one process. Not used: it is divided by the number of busy processes, and not always set."""

    _fields_ = (("pid", c_uint), ("sm", c_double), ("memory", c_double))


class PidSingleInfo(Structure):
    """dcgmPidSingleInfo_t: one GPU while a process was on it."""

    _fields_ = (
        ("gpu_id", c_uint),
        ("energy_mj", c_int64),
        ("pcie_receive", Summary64),
        ("pcie_transmit", Summary64),
        ("pcie_replays", c_int64),
        ("start_us", c_int64),
        ("end_us", c_int64),
        ("process_utilization", ProcessUtilization),
        ("sm_pct", Summary32),
        ("memory_pct", Summary32),
        ("ecc_single_bit", c_uint),
        ("ecc_double_bit", c_uint),
        ("memory_clock", Summary32),
        ("sm_clock", Summary32),
        ("xids", c_int),
        ("xid_times_us", c_int64 * 10),
        ("other_compute", c_int),
        ("other_compute_pids", c_uint * 16),
        ("other_graphics", c_int),
        ("other_graphics_pids", c_uint * 16),
        ("max_memory_bytes", c_int64),
        ("violations_us", c_int64 * 6),
        ("overall_health", c_uint),
        ("incidents", c_uint),
        ("systems", c_uint * 2 * 10),
    )


class PidInfo(Structure):
    """dcgmPidInfo_v2: a process and the GPUs it was on."""

    _fields_ = (
        ("version", c_uint),
        ("pid", c_uint),
        ("unused", c_uint),
        ("gpu_count", c_int),
        ("summary", PidSingleInfo),
        ("gpus", PidSingleInfo * MOST_GPUS),
    )


class EmbeddedParameters(Structure):
    """dcgmStartEmbeddedV2Params_v1, accepted by 3.x and 4.x; 4.3 adds a larger one."""

    _fields_ = (
        ("version", c_uint),
        ("mode", c_int),
        ("handle", c_size_t),
        ("log_file", c_char_p),
        ("severity", c_int),
        ("deny_count", c_uint),
        ("deny", c_uint * 10),
    )


class ConnectParameters(Structure):
    """dcgmConnectV2Params_v2."""

    _fields_ = (("version", c_uint), ("persist", c_uint), ("timeout_ms", c_uint), ("is_unix_socket", c_uint))


class VersionInfo(Structure):
    """dcgmVersionInfo_v2: `version:4.2.3;arch:x86_64;...`."""

    _fields_ = (("version", c_uint), ("text", c_char * 512))


class EntityPair(Structure):
    """dcgmGroupEntityPair_t: kind and number of an entity."""

    _fields_ = (("kind", c_uint), ("number", c_uint))


class FieldValue(Structure):
    """dcgmFieldValue_v2; only text values are read."""

    _fields_ = (
        ("version", c_uint),
        ("kind", c_uint),
        ("number", c_uint),
        ("field", c_ushort),
        ("type", c_ushort),
        ("status", c_int),
        ("unused", c_uint),
        ("time_us", c_int64),
        ("text", c_char * 4096),
    )


PID_INFO_VERSION = version_word(PidInfo, 2)
EMBEDDED_VERSION = version_word(EmbeddedParameters, 1)
CONNECT_VERSION = version_word(ConnectParameters, 2)
VERSION_INFO_VERSION = version_word(VersionInfo, 2)

NAMES = ("libdcgm.so.4", "libdcgm.so.3")
"""Library names by major version; the calls used here are the same in both."""

ACCOUNTING = "turn accounting mode on with `nvidia-smi -am 1` as root"
UNREACHABLE = "start nv-hostengine there, or give its address with --dcgm.hostengine"
INTERFACE = (
    "gpuledger supports DCGM 3 and 4: install one of them, and the same version for libdcgm and an nv-hostengine"
)
NVML = "mount the driver's libnvidia-ml.so.1 into the container"
NO_DATA, NOT_WATCHED, PERMISSION, REQUIRES_ROOT = "no_data", "not_watched", "permission", "requires_root"
"""Error kinds that other code compares."""
KINDS = {
    -11: ("timeout", UNREACHABLE),
    -12: ("version_mismatch", INTERFACE),
    -14: (NO_DATA, ""),
    -16: (NOT_WATCHED, f"{ACCOUNTING}; with MIG on any GPU the driver keeps it off"),
    -17: (PERMISSION, ACCOUNTING),
    -21: ("unreachable", UNREACHABLE),
    -25: ("library_not_found", NVML),
    -29: (REQUIRES_ROOT, f"{ACCOUNTING}, or run DCGM (nv-hostengine or gpuledger) as root"),
    -56: ("library_not_found", NVML),
}
"""Kind of error and fix, by DCGM's error code."""

HANDLE = GROUP = c_size_t
"""uintptr_t; ctypes would truncate a plain int to 32 bits."""

SIGNATURES: dict[str, tuple[Any, ...]] = {
    "dcgmInit": (),
    "dcgmShutdown": (),
    "dcgmStartEmbedded_v2": (POINTER(EmbeddedParameters),),
    "dcgmStopEmbedded": (HANDLE,),
    "dcgmConnect_v2": (c_char_p, POINTER(ConnectParameters), POINTER(HANDLE)),
    "dcgmDisconnect": (HANDLE,),
    "dcgmHostengineVersionInfo": (HANDLE, POINTER(VersionInfo)),
    "dcgmEntitiesGetLatestValues": (
        HANDLE, POINTER(EntityPair), c_uint, POINTER(c_ushort), c_uint, c_uint, POINTER(FieldValue),
    ),
    "dcgmWatchPidFields": (HANDLE, GROUP, c_int64, c_double, c_int),
    "dcgmUpdateAllFields": (HANDLE, c_int),
    "dcgmGetPidInfo": (HANDLE, GROUP, POINTER(PidInfo)),
}  # fmt: skip


class Library:
    """libdcgm, loaded. All calls come from one thread."""

    def __init__(self, path: str = "") -> None:
        self.name, self._library = _load(path)
        self._functions = {}
        self.current = ""
        """The call in progress; named in the log if it does not return."""
        for name, arguments in SIGNATURES.items():
            try:
                function = self._library[name]
            except AttributeError:
                what = f"{self.name} has no {name}: it is not DCGM, or too old"
                raise DcgmError(what, INTERFACE, "version_mismatch") from None
            function.argtypes, function.restype = arguments, c_int
            self._functions[name] = function

    def call(self, name: str, *arguments: Any, about: str = "") -> None:
        """Make a call; DcgmError if it fails."""
        self.current = name
        try:
            code = self._functions[name](*arguments)
        finally:
            self.current = ""
        if code:
            kind, fix = KINDS.get(code, ("dcgm", ""))
            raise DcgmError(f"{name}{about and f' {about}'}: {self._text(code)} ({code})", fix, kind)

    def _text(self, code: int) -> str:
        try:
            function = self._library["errorString"]
        except AttributeError:
            return "error"
        function.argtypes, function.restype = (c_int,), c_char_p
        text: bytes | None = function(code)
        return text.decode(errors="replace") if text else "unknown error"


def _load(path: str) -> tuple[str, ctypes.CDLL]:
    reasons = []
    for name in (path,) if path else NAMES:
        try:
            return name, ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
    fix = (
        "name libdcgm.so.4 or libdcgm.so.3 with --dcgm.library"
        if path
        else "install datacenter-gpu-manager-4-core, or mount it into the container and name it with --dcgm.library"
    )
    raise DcgmError(f"cannot load libdcgm: {'; '.join(reasons)}", fix, "library_not_found")
