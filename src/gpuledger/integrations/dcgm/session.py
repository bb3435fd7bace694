"""A connection to DCGM, either inside this process (embedded) or to an nv-hostengine."""

from __future__ import annotations

import logging
from ctypes import byref, c_size_t, c_ushort

from gpuledger.errors import DcgmError
from gpuledger.integrations.dcgm.library import (
    CONNECT_VERSION,
    EMBEDDED_VERSION,
    MOST_GPUS,
    NO_DATA,
    PID_INFO_VERSION,
    VERSION_INFO_VERSION,
    ConnectParameters,
    EmbeddedParameters,
    EntityPair,
    FieldValue,
    Library,
    PidInfo,
    PidSingleInfo,
    VersionInfo,
)
from gpuledger.model import DcgmStats

log = logging.getLogger(__name__)

UNIX = "unix://"

ALL_GPUS = 0x7FFFFFFF
"""The predefined group of all GPUs."""
AUTOMATIC = 1
"""Operation mode in which the engine samples without being triggered."""
GPU = 1
UUID = 54
"""Numbers of the entity kind and of the field; the same in all versions."""
LIVE = 1
"""Read from the driver instead of the cache, because the field may not be watched."""
CONNECT_MS = 5000
KEEP_S = 3600.0
"""How long DCGM keeps samples, as in its own tools; older work of a process is not in its statistics."""

BLANK_64, BLANK_32 = 0x7FFFFFFFFFFFFFF0, 0x7FFFFFF0
"""Values from here on are DCGM's codes for missing values."""


class Session:
    """An open connection. GPU numbers are stable while it lasts."""

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
        """Make DCGM sample the fields of its process statistics, now and then every `period_s`."""
        self._library.call("dcgmWatchPidFields", self._handle, ALL_GPUS, int(period_s * 1e6), KEEP_S, 0)
        self._library.call("dcgmUpdateAllFields", self._handle, 1)

    def process(self, pid: int) -> list[tuple[str, DcgmStats]]:
        """The statistics of a process, by uuid of the GPU; empty if DCGM has none."""
        info = PidInfo(version=PID_INFO_VERSION, pid=pid)
        try:
            self._library.call("dcgmGetPidInfo", self._handle, ALL_GPUS, byref(info))
        except DcgmError as error:
            if error.kind == NO_DATA:
                return []
            raise
        statistics = ((self.uuid(gpu_id), stats) for gpu_id, stats in by_gpu(info))
        return [(uuid, stats) for uuid, stats in statistics if uuid]

    def uuid(self, gpu_id: int) -> str:
        """The uuid of the GPU with this number in DCGM, read once; empty if DCGM does not report it.

        Read as one live field value, the same in 3.x and 4.x: dcgmGetDeviceAttributes would read clocks, limits and
        twenty other values as well, into a structure whose layout has changed twice.
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
        """Close the connection. Errors are ignored: the engine may have stopped."""
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
        info = VersionInfo(version=VERSION_INFO_VERSION)
        if not self._quietly("dcgmHostengineVersionInfo", self._handle, byref(info)):
            return ""
        text: str = info.text.decode("ascii", errors="replace")
        pairs = dict(pair.partition(":")[::2] for pair in text.split(";"))
        return pairs.get("version", "")

    def _quietly(self, name: str, *arguments: object) -> bool:
        try:
            self._library.call(name, *arguments)
        except DcgmError as error:
            log.debug("%s", error)
            return False
        return True


def by_gpu(info: PidInfo) -> list[tuple[int, DcgmStats]]:
    """The statistics of a process, by DCGM's number of the GPU; missing values are None."""
    count = min(max(info.gpu_count, 0), MOST_GPUS)
    return [(int(gpu.gpu_id), _stats(gpu)) for gpu in info.gpus[:count]]


def _stats(gpu: PidSingleInfo) -> DcgmStats:
    """Not used: PCIe replays (of the GPU's whole life), XIDs (ten at most), clocks."""
    return DcgmStats(
        energy_mj=_known(gpu.energy_mj, BLANK_64),
        sm_pct=_percent(gpu.sm_pct.average),
        memory_pct=_percent(gpu.memory_pct.average),
        max_memory_bytes=_known(gpu.max_memory_bytes, BLANK_64),
        other_processes=_known(gpu.other_compute, BLANK_32),
        start_us=_known(gpu.start_us, BLANK_64) or None,
    )


def _known(number: int, blank: int) -> int | None:
    """The value; None if it is missing, or negative as after a reload of the driver."""
    return int(number) if 0 <= number < blank else None


def _percent(number: int) -> int | None:
    return int(number) if 0 <= number <= 100 else None
