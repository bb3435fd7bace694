"""libdcgm: found, loaded and called; an error says what is missing and what to do about it."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint, c_ushort
from typing import Any

from gpuledger.errors import DriverError
from gpuledger.sources.dcgm.structs import (
    ConnectParameters,
    EmbeddedParameters,
    EntityPair,
    FieldValue,
    PidInfo,
    VersionInfo,
)

NAMES = ("libdcgm.so.4", "libdcgm.so.3")
"""The number is DCGM's; what is called here is the same in both."""

TIMEOUT, VERSION_MISMATCH, NO_DATA, NOT_WATCHED, NO_PERMISSION = -11, -12, -14, -16, -17
CONNECTION_NOT_VALID, LIBRARY_NOT_FOUND, REQUIRES_ROOT, NVML_NOT_LOADED = -21, -25, -29, -56

ACCOUNTING = "turn accounting mode on with `nvidia-smi -am 1` as root"
UNREACHABLE = "start nv-hostengine there, or give its address with --dcgm.hostengine"
DIFFERENT = (
    "gpuledger speaks the interface of DCGM 3 and 4; install one of them, "
    "and on both sides the same one where there is an nv-hostengine"
)
REMEDIES = {
    TIMEOUT: UNREACHABLE,
    VERSION_MISMATCH: DIFFERENT,
    NOT_WATCHED: f"{ACCOUNTING}; with MIG on any GPU the driver keeps it off",
    NO_PERMISSION: ACCOUNTING,
    CONNECTION_NOT_VALID: UNREACHABLE,
    LIBRARY_NOT_FOUND: "mount the driver's libnvidia-ml.so.1 into the container",
    REQUIRES_ROOT: f"{ACCOUNTING}, or run as root what DCGM runs in",
    NVML_NOT_LOADED: "mount the driver's libnvidia-ml.so.1 into the container",
}
"""What to do about an error, by its code."""

HANDLE = GROUP = c_size_t
"""uintptr_t; a plain int would be cut to 32 bits."""

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


class DcgmError(DriverError):
    """DCGM cannot be used, or does not answer. `code` is DCGM's; 0 when there is no library to give one."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class Library:
    """libdcgm, loaded. All calls come from one thread."""

    def __init__(self, path: str = "") -> None:
        self.name, self._library = _load(path)
        self._functions = {}
        self.current = ""
        """The call in progress, for the log line when it does not return."""
        for name, arguments in SIGNATURES.items():
            try:
                function = self._library[name]
            except AttributeError:
                raise DcgmError(f"{self.name} has no {name}: it is not DCGM, or too old; {DIFFERENT}") from None
            function.argtypes, function.restype = arguments, c_int
            self._functions[name] = function

    def call(self, name: str, *arguments: Any, about: str = "") -> None:
        """Make a call. DcgmError names it, what it was about, why it failed and what to do."""
        self.current = name
        try:
            code = self._functions[name](*arguments)
        finally:
            self.current = ""
        if code:
            remedy = REMEDIES.get(code)
            on = f" {about}" if about else ""
            raise DcgmError(f"{name}{on}: {self._words(code)} ({code}){'; ' + remedy if remedy else ''}", code)

    def _words(self, code: int) -> str:
        """DCGM's own words for an error."""
        try:
            function = self._library["errorString"]
        except AttributeError:
            return "error"
        function.argtypes, function.restype = (c_int,), c_char_p
        words: bytes | None = function(code)
        return words.decode(errors="replace") if words else "unknown error"


def _load(path: str) -> tuple[str, ctypes.CDLL]:
    reasons = []
    for name in (path,) if path else NAMES:
        try:
            return name, ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
    advice = (
        "name libdcgm.so.4 or libdcgm.so.3 with --dcgm.library"
        if path
        else "install datacenter-gpu-manager-4-core, or mount it into the container and name it with --dcgm.library"
    )
    raise DcgmError(f"no library: {'; '.join(reasons)}; {advice}")
