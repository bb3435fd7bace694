"""One connection to DCGM: to an engine inside this process, or to an nv-hostengine."""

from __future__ import annotations

import logging
from ctypes import byref, c_size_t, c_ushort

from gpuledger.sources.dcgm.address import UNIX
from gpuledger.sources.dcgm.library import NO_DATA, DcgmError, Library
from gpuledger.sources.dcgm.structs import (
    CONNECT_VERSION,
    EMBEDDED_VERSION,
    PID_INFO_VERSION,
    VERSION_INFO_VERSION,
    ConnectParameters,
    EmbeddedParameters,
    EntityPair,
    FieldValue,
    PidInfo,
    VersionInfo,
)

log = logging.getLogger(__name__)

ALL_GPUS = 0x7FFFFFFF
"""A group that is always there."""
AUTOMATIC = 1
"""The engine samples by itself."""
GPU = 1
UUID = 54
"""Numbers of a kind of entity and of a field; they have never changed."""
LIVE = 1
"""Ask the driver, for nobody may be watching the field."""
CONNECT_MS = 5000
KEEP_S = 3600.0
"""How long DCGM keeps samples, as its own tools ask for. What a process did before is in none of its numbers."""


class Session:
    """A connection that is open. Whatever it knows of GPUs is true as long as it lasts."""

    def __init__(self, library: Library, hostengine: str = "") -> None:
        self._library = library
        self._hostengine = hostengine
        self._uuids: dict[int, str] = {}
        library.call("dcgmInit")
        try:
            self._handle = self._connect(hostengine) if hostengine else self._embed()
        except DcgmError:
            self._quietly("dcgmShutdown")
            raise
        self.version = self._version()

    def watch(self, period_s: float) -> None:
        """Have DCGM sample what its statistics of processes need, once at once and then every `period_s`."""
        self._library.call("dcgmWatchPidFields", self._handle, ALL_GPUS, int(period_s * 1e6), KEEP_S, 0)
        self._library.call("dcgmUpdateAllFields", self._handle, 1)

    def process(self, pid: int) -> PidInfo | None:
        """What DCGM says of a process; None when it knows nothing of it."""
        info = PidInfo(version=PID_INFO_VERSION, pid=pid)
        try:
            self._library.call("dcgmGetPidInfo", self._handle, ALL_GPUS, byref(info))
        except DcgmError as error:
            if error.code == NO_DATA:
                return None
            raise
        return info

    def uuid(self, gpu_id: int) -> str:
        """The GPU that DCGM calls by this number; asked once. Empty when it does not say.

        As one live field value, the same in 3.x and 4.x. dcgmGetDeviceAttributes would read clocks, limits and twenty
        other things along with it, into a structure that is already in its third layout.
        """
        if gpu_id not in self._uuids:
            value = FieldValue()
            which, field = EntityPair(GPU, gpu_id), c_ushort(UUID)
            call = "dcgmEntitiesGetLatestValues"
            self._library.call(call, self._handle, byref(which), 1, byref(field), 1, LIVE, byref(value))
            if value.status:
                return ""
            self._uuids[gpu_id] = value.text.decode("ascii", errors="replace")
        return self._uuids[gpu_id]

    def close(self) -> None:
        """End it; an engine that is gone cannot say good-bye."""
        self._quietly("dcgmDisconnect" if self._hostengine else "dcgmStopEmbedded", self._handle)
        self._quietly("dcgmShutdown")

    def _embed(self) -> int:
        parameters = EmbeddedParameters(version=EMBEDDED_VERSION, mode=AUTOMATIC)
        self._library.call("dcgmStartEmbedded_v2", byref(parameters))
        return int(parameters.handle)

    def _connect(self, hostengine: str) -> int:
        is_unix = hostengine.startswith(UNIX)
        parameters = ConnectParameters(CONNECT_VERSION, 0, CONNECT_MS, int(is_unix))
        address = hostengine.removeprefix(UNIX).encode()
        handle = c_size_t()
        self._library.call("dcgmConnect_v2", address, byref(parameters), byref(handle), about=f"to {hostengine}")
        return int(handle.value)

    def _version(self) -> str:
        """The engine's version; it is nice to know, and no reason to fail."""
        info = VersionInfo(version=VERSION_INFO_VERSION)
        if not self._quietly("dcgmHostengineVersionInfo", self._handle, byref(info)):
            return ""
        text: str = info.text.decode("ascii", errors="replace")
        known = dict(pair.partition(":")[::2] for pair in text.split(";"))
        return known.get("version", "")

    def _quietly(self, name: str, *arguments: object) -> bool:
        try:
            self._library.call(name, *arguments)
        except DcgmError as error:
            log.debug("%s", error)
            return False
        return True
