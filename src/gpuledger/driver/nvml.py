"""The calls of NVIDIA's management library (NVML) that gpuledger makes, as a table over libnvidia-ml.so.1.

A call returns what the driver wrote: a number, a text, or the fields of a record as a tuple. NvmlError otherwise.
tests/driver/test_nvml.py compares every call with NVIDIA's own binding, which needs 5 MB and four times the CPU time.
"""

from __future__ import annotations

import _ctypes
import ctypes
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p, create_string_buffer
from struct import Struct
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
Handle = Any
"""A pointer of the library to a GPU, an event set or a sample."""

SUCCESS = 0
UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
NO_DATA = 21
VGPU_ECC_NOT_SUPPORTED = 22
ARGUMENT_VERSION_MISMATCH = 25
DEPRECATED = 26
GPU_NOT_FOUND = 28
MESSAGES = {
    UNINITIALIZED: "Uninitialized",
    DRIVER_NOT_LOADED: "Driver Not Loaded",
    LIBRARY_NOT_FOUND: "NVML Shared Library Not Found",
    FUNCTION_NOT_FOUND: "Function Not Found",
    LIB_RM_VERSION_MISMATCH: "RM has detected an NVML/RM version mismatch.",
}
"""Of errors with which the library may be unable to describe itself."""
MAX_LINKS = 36
XID_CRITICAL_ERROR = 8
"""The type of an XID event."""


class NvmlError(Exception):
    """A call failed."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        return MESSAGES.get(self.code) or _message(self.code)


class Library:
    """The loaded library and the addresses of its functions."""

    def __init__(self) -> None:
        self.loaded: ctypes.CDLL | None = None
        self._functions: dict[str, Any] = {}

    def load(self) -> None:
        """Load the library, unless it is loaded."""
        if self.loaded is None:
            try:
                self.loaded = ctypes.CDLL(LIBRARY)
            except OSError:
                raise NvmlError(LIBRARY_NOT_FOUND) from None

    def unload(self) -> None:
        """Unmap the library, so that `load` finds a new file."""
        if self.loaded is not None:
            self._functions.clear()
            _ctypes.dlclose(self.loaded._handle)  # noqa: SLF001 - ctypes has no other way
            self.loaded = None

    def function(self, symbol: str) -> Any:
        """The function of this name."""
        function = self._functions.get(symbol)
        if function is None:
            if self.loaded is None:
                raise NvmlError(UNINITIALIZED)
            try:
                function = self._functions[symbol] = getattr(self.loaded, symbol)
            except AttributeError:
                raise NvmlError(FUNCTION_NOT_FOUND) from None
        return function


library = Library()
"""There is one for a process."""


def _message(code: int) -> str:
    try:
        describe = library.function("nvmlErrorString")
    except NvmlError:
        return f"NVML error {code}"
    describe.restype = c_char_p
    return str(describe(code).decode("utf-8", "replace"))


class Action:
    """A call without a result. Arguments are integers or pointers."""

    def __init__(self, symbol: str) -> None:
        self.__name__ = self._symbol = symbol

    def __call__(self, *arguments: Any) -> None:
        """Make the call."""
        code = library.function(self._symbol)(*arguments)
        if code:
            raise NvmlError(code)


class Number:
    """A call whose last parameter takes one number or pointer."""

    def __init__(self, symbol: str, kind: Any = c_uint, *, name: str = "") -> None:
        self.__name__ = name or symbol
        self._symbol = symbol
        self._kind = kind

    def __call__(self, *arguments: Any) -> Any:
        """The number."""
        result = self._kind()
        code = library.function(self._symbol)(*arguments, byref(result))
        if code:
            raise NvmlError(code)
        return result.value


class Pointer(Number):
    """A call that returns a handle."""

    def __init__(self, symbol: str, *, name: str = "") -> None:
        super().__init__(symbol, c_void_p, name=name)

    def __call__(self, *arguments: Any) -> Handle:
        """The handle."""
        return c_void_p(super().__call__(*arguments))


class Numbers:
    """A call whose last parameters take one number each."""

    def __init__(self, symbol: str, count: int) -> None:
        self.__name__ = self._symbol = symbol
        self._count = count

    def __call__(self, *arguments: Any) -> tuple[int, ...]:
        """The numbers."""
        results = [c_uint() for _ in range(self._count)]
        code = library.function(self._symbol)(*arguments, *map(byref, results))
        if code:
            raise NvmlError(code)
        return tuple([result.value for result in results])


class Text:
    """A call that writes a text."""

    SIZE = 96
    """The longest text, a name or uuid."""

    def __init__(self, symbol: str) -> None:
        self.__name__ = self._symbol = symbol

    def __call__(self, *arguments: Any) -> str:
        """The text."""
        buffer = create_string_buffer(self.SIZE)
        code = library.function(self._symbol)(*arguments, buffer, self.SIZE)
        if code:
            raise NvmlError(code)
        return buffer.value.decode("utf-8", "replace")


class Record:
    """A call that fills one record. If it has a version, its first field is the version."""

    def __init__(self, symbol: str, layout: str, *, version: int = 0, plain: bool = False) -> None:
        self.__name__ = self._symbol = symbol
        self._layout = Struct(layout)
        self._first = b"" if not version else Struct("=I").pack(version if plain else version << 24 | self._layout.size)

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """The fields, without the version."""
        buffer = create_string_buffer(self._first, self._layout.size)
        code = library.function(self._symbol)(*arguments, buffer)
        if code:
            raise NvmlError(code)
        fields = self._layout.unpack(buffer)
        return fields[1:] if self._first else fields


class FieldValues:
    """The call that reads many fields, each a number or (number, scope)."""

    __name__ = "nvmlDeviceGetFieldValues"
    RECORD = Struct("=II16xIi8s")
    """Field, scope, time stamp and latency, type of value, return code, value."""

    def __call__(self, handle: Handle, fields: Sequence[Any]) -> list[tuple[int, int, bytes]]:
        """Type, return code and value of each field."""
        pack = self.RECORD.pack
        wanted = [field if isinstance(field, tuple) else (field, 0) for field in fields]
        buffer = ctypes.create_string_buffer(b"".join([pack(*field, 0, 0, b"") for field in wanted]))
        code = library.function(self.__name__)(handle, len(wanted), buffer)
        if code:
            raise NvmlError(code)
        records = memoryview(buffer)[: len(wanted) * self.RECORD.size]
        return [record[2:] for record in self.RECORD.iter_unpack(records)]


class Pids:
    """The call that lists the processes with an account."""

    __name__ = "nvmlDeviceGetAccountingPids"
    MOST = 4096

    def __call__(self, handle: Handle) -> list[int]:
        """The pids."""
        count, pids = c_uint(self.MOST), (c_uint * self.MOST)()
        code = library.function(self.__name__)(handle, byref(count), pids)
        if code:
            raise NvmlError(code)
        return pids[: count.value]


class Licenses:
    """The call that lists the licensable features of a vGPU."""

    __name__ = "nvmlDeviceGetGridLicensableFeatures_v4"
    HEAD, FEATURE, MOST = Struct("=iI"), Struct("=4xI276x"), 3

    def __call__(self, handle: Handle) -> tuple[bool, list[bool]]:
        """Whether licenses are supported, and whether each feature is licensed."""
        buffer = create_string_buffer(self.HEAD.size + self.MOST * self.FEATURE.size)
        code = library.function(self.__name__)(handle, buffer)
        if code:
            raise NvmlError(code)
        is_supported, count = self.HEAD.unpack_from(buffer)
        features = self.FEATURE.iter_unpack(memoryview(buffer)[self.HEAD.size :])
        return bool(is_supported), [bool(state) for (state,), _ in zip(features, range(count), strict=False)]


class EventWait(Record):
    """The call that waits for an event."""

    def __init__(self) -> None:
        super().__init__("nvmlEventSetWait_v2", "=QQQII")

    def __call__(self, events: Handle, timeout_ms: int) -> tuple[int, int, int]:
        """Address of the device, type and number of the event."""
        buffer = create_string_buffer(self._layout.size)
        code = library.function(self._symbol)(events, buffer, timeout_ms)
        if code:
            raise NvmlError(code)
        device, kind, number, _, _ = self._layout.unpack(buffer)
        return device, kind, number


INIT = Action("nvmlInitWithFlags")
SHUTDOWN = Action("nvmlShutdown")
DRIVER_VERSION = Text("nvmlSystemGetDriverVersion")
NVML_VERSION = Text("nvmlSystemGetNVMLVersion")
CUDA_VERSION = Number("nvmlSystemGetCudaDriverVersion_v2")
COUNT = Number("nvmlDeviceGetCount_v2", name="nvmlDeviceGetCount")

HANDLE_BY_INDEX = Pointer("nvmlDeviceGetHandleByIndex_v2", name="nvmlDeviceGetHandleByIndex")
PCI_INFO = Record("nvmlDeviceGetPciInfo_v3", "=16s5I32s")
COMPUTE_CAPABILITY = Numbers("nvmlDeviceGetCudaComputeCapability", 2)
ARCHITECTURE = Number("nvmlDeviceGetArchitecture")
UUID = Text("nvmlDeviceGetUUID")
NAME = Text("nvmlDeviceGetName")
SERIAL = Text("nvmlDeviceGetSerial")
VBIOS_VERSION = Text("nvmlDeviceGetVbiosVersion")
BOARD_PART_NUMBER = Text("nvmlDeviceGetBoardPartNumber")
MINOR_NUMBER = Number("nvmlDeviceGetMinorNumber")

MEMORY = Record("nvmlDeviceGetMemoryInfo_v2", "=I4x4Q", version=2)
MEMORY_V1 = Record("nvmlDeviceGetMemoryInfo", "=3Q")
ENERGY = Number("nvmlDeviceGetTotalEnergyConsumption", c_ulonglong)
FIELD_VALUES = FieldValues()
POWER_USAGE = Number("nvmlDeviceGetPowerUsage")
TEMPERATURE = Number("nvmlDeviceGetTemperature")
PERFORMANCE_STATE = Number("nvmlDeviceGetPerformanceState")
CLOCK = Number("nvmlDeviceGetClockInfo")
CLOCK_EVENTS = Number("nvmlDeviceGetCurrentClocksEventReasons", c_ulonglong)
CLOCK_EVENTS_OLD = Number("nvmlDeviceGetCurrentClocksThrottleReasons", c_ulonglong)
UTILIZATION = Record("nvmlDeviceGetUtilizationRates", "=II")
ENCODER = Numbers("nvmlDeviceGetEncoderUtilization", 2)
DECODER = Numbers("nvmlDeviceGetDecoderUtilization", 2)
JPEG = Numbers("nvmlDeviceGetJpgUtilization", 2)
OPTICAL_FLOW = Numbers("nvmlDeviceGetOfaUtilization", 2)

POWER_LIMIT = Number("nvmlDeviceGetEnforcedPowerLimit")
POWER_DEFAULT_LIMIT = Number("nvmlDeviceGetPowerManagementDefaultLimit")
MAX_CLOCK = Number("nvmlDeviceGetMaxClockInfo")
TEMPERATURE_THRESHOLD = Number("nvmlDeviceGetTemperatureThreshold")
PCIE_GENERATION = Number("nvmlDeviceGetCurrPcieLinkGeneration")
PCIE_WIDTH = Number("nvmlDeviceGetCurrPcieLinkWidth")
PCIE_MAX_GENERATION = Number("nvmlDeviceGetMaxPcieLinkGeneration")
PCIE_MAX_WIDTH = Number("nvmlDeviceGetMaxPcieLinkWidth")
PCIE_REPLAYS = Number("nvmlDeviceGetPcieReplayCounter")
PCIE_THROUGHPUT = Number("nvmlDeviceGetPcieThroughput")
VIOLATION = Record("nvmlDeviceGetViolationStatus", "=QQ")
FAN_COUNT = Number("nvmlDeviceGetNumFans")
FAN_SPEED = Number("nvmlDeviceGetFanSpeed_v2")
ECC_MODE = Numbers("nvmlDeviceGetEccMode", 2)
ECC_ERRORS = Number("nvmlDeviceGetTotalEccErrors", c_ulonglong)
SRAM_ERRORS = Record("nvmlDeviceGetSramEccErrorStatus", "=I4x11QI4x", version=1)
UNREPAIRABLE_MEMORY = Record("nvmlDeviceGetUnrepairableMemoryFlag_v1", "=II", version=1)
REMAPPED_ROWS = Numbers("nvmlDeviceGetRemappedRows", 4)
NVLINK_STATE = Number("nvmlDeviceGetNvLinkState")
NVLINK_ERRORS = Number("nvmlDeviceGetNvLinkErrorCounter", c_ulonglong)
FABRIC = Record("nvmlDeviceGetGpuFabricInfoV", "=I16sIIB3xI", version=2)
LICENSES = Licenses()

ACCOUNTING_MODE = Number("nvmlDeviceGetAccountingMode")
ACCOUNTING_PIDS = Pids()
ACCOUNTING_STATS = Record("nvmlDeviceGetAccountingStats", "=II3QI20x")
"""Percent of the GPU and of its memory, peak memory, milliseconds of time, microseconds of the start, running."""

MIG_MODE = Numbers("nvmlDeviceGetMigMode", 2)
MAX_MIG_COUNT = Number("nvmlDeviceGetMaxMigDeviceCount")
MIG_HANDLE = Pointer("nvmlDeviceGetMigDeviceHandleByIndex")
ATTRIBUTES = Record("nvmlDeviceGetAttributes_v2", "=8IQ")
GPU_INSTANCE_ID = Number("nvmlDeviceGetGpuInstanceId")
COMPUTE_INSTANCE_ID = Number("nvmlDeviceGetComputeInstanceId")

GPM_SUPPORT = Record("nvmlGpmQueryDeviceSupport", "=II", version=1, plain=True)
GPM_ALLOCATE = Pointer("nvmlGpmSampleAlloc")
GPM_FREE = Action("nvmlGpmSampleFree")
GPM_SAMPLE = Action("nvmlGpmSampleGet")
GPM_MIG_SAMPLE = Action("nvmlGpmMigSampleGet")
GPM_METRICS = Action("nvmlGpmMetricsGet")

EVENT_SET = Pointer("nvmlEventSetCreate")
EVENT_FREE = Action("nvmlEventSetFree")
EVENT_WAIT = EventWait()
EVENT_REGISTER = Action("nvmlDeviceRegisterEvents")


def register_events(handle: Handle, kinds: int, events: Handle) -> None:
    """Let events of these types of a GPU come to an event set."""
    EVENT_REGISTER(handle, c_ulonglong(kinds), events)


def initialize() -> None:
    """Load the library and connect it with the driver."""
    library.load()
    INIT(c_int(0))
