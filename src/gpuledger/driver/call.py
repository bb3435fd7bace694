"""NVML calls: timed, named while they run, and with errors sorted by their consequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from gpuledger.driver import nvml
from gpuledger.driver.nvml import Handle, NvmlError
from gpuledger.errors import DriverGoneError, GpuLostError
from gpuledger.model.problem import HANG_FIX, Problem

Failures = Counter[tuple[str, int]]
"""Unexpected failures, by name of the call and NVML error code."""

UNSUPPORTED = frozenset({
    nvml.INVALID_ARGUMENT,  # an enum value or field that is newer than the driver
    nvml.NOT_SUPPORTED,
    nvml.NO_PERMISSION,  # permissions do not change while the exporter runs
    nvml.FUNCTION_NOT_FOUND,
    nvml.VGPU_ECC_NOT_SUPPORTED,
    nvml.ARGUMENT_VERSION_MISMATCH,
    nvml.DEPRECATED,
})  # fmt: skip
"""The GPU or driver will never answer this call."""

LOST = frozenset({
    nvml.GPU_IS_LOST,
    nvml.RESET_REQUIRED,
    nvml.GPU_NOT_FOUND,
})  # fmt: skip
"""The GPU answers no call until it is reset or returns."""

GONE = frozenset({
    nvml.UNINITIALIZED,
    nvml.DRIVER_NOT_LOADED,
    nvml.LIB_RM_VERSION_MISMATCH,
    nvml.LIBRARY_NOT_FOUND,
})  # fmt: skip
"""The driver was unloaded or replaced: nvmlInit has to be called again."""

NO_ROWS = frozenset({nvml.NOT_FOUND, nvml.NO_DATA})
"""A list is empty."""

HANG, VERSION_MISMATCH, NO_ANSWER = "hang", "version_mismatch", "no_answer"
"""Problem kinds that other code compares."""
RESET = "`sudo nvidia-smi --gpu-reset -i {gpu}`"
MISSING = "`nvidia-smi -L` lists the GPUs of the host; reboot if one is missing"
CONTAINER = "in a container, pass the GPUs to it: `docker run --gpus all`, on Kubernetes `runtimeClassName: nvidia`"
MODULES = "nvidia_uvm nvidia_drm nvidia_modeset nvidia"
RELOAD = f"stop all programs that use GPUs and `sudo rmmod {MODULES} && sudo modprobe nvidia`"
CHMOD = "`sudo chmod a+rw /dev/nvidiactl /dev/nvidia[0-9]*`"
KINDS = {
    nvml.LIBRARY_NOT_FOUND: ("library_not_found", f"install the NVIDIA driver; {CONTAINER}"),
    nvml.DRIVER_NOT_LOADED: (
        "not_loaded", "`sudo modprobe nvidia`; if that fails, look for the reason with `sudo dmesg | grep -i nvrm`",
    ),
    nvml.LIB_RM_VERSION_MISMATCH: (
        VERSION_MISMATCH, f"the driver was updated while the old one is loaded: reboot, or {RELOAD}",
    ),
    nvml.NO_PERMISSION: (
        "permission", f"let this user open the devices: `ls -l /dev/nvidia*`, then {CHMOD}",
    ),
    nvml.GPU_IS_LOST: (
        "lost", f"{RESET}, or reboot; look for the reason with `sudo dmesg | grep -i xid`",
    ),
    nvml.RESET_REQUIRED: ("reset_required", RESET),
    nvml.GPU_NOT_FOUND: ("gpu_not_found", MISSING),
    nvml.UNINITIALIZED: ("not_initialized", ""),
    nvml.TIMEOUT: ("timeout", ""),
}  # fmt: skip
"""Kind of problem and fix, by NVML error code."""
LOOK = "check `nvidia-smi`, and look for the reason with `sudo dmesg | grep -i -e nvrm -e xid`"
"""Default fix, for error codes without one in KINDS."""
NO_GPU = Problem(
    what="the driver lists no GPU",
    fix=f"`nvidia-smi -L` lists the GPUs that the driver finds; {CONTAINER}",
    kind="no_gpu",
)


def problem_of(what: str, code: int, gpu: int | None = None) -> Problem:
    """The problem behind an NVML error code."""
    kind, fix = KINDS.get(code, ("", ""))
    return Problem(what=what, fix=(fix or LOOK).format(gpu="ID" if gpu is None else gpu), kind=kind or "nvml")


def hang(call: str) -> Problem:
    """The problem of a call that does not return."""
    return Problem(what=f"{call} does not return", fix=HANG_FIX, kind=HANG)


class Calls:
    """The calls to one GPU. A call that the GPU does not support is made once and not repeated."""

    def __init__(self, failures: Failures, gpu: int) -> None:
        self._failures = failures
        self._gpu = gpu
        self._unsupported: dict[tuple[Any, ...], int] = {}
        """Calls that the GPU does not support, with the error."""
        self._supported: set[tuple[Any, ...]] = set()
        self.about = ""
        """uuid of the MIG instance being read, empty for the GPU: they support different calls."""
        self.current = ""
        """The call in progress; named in the log if it does not return."""
        self.spent_ns = 0
        self.answered = 0
        self.last_problem: Problem | None = None

    def get(self, function: Callable[..., Any], handle: Handle, *arguments: Any) -> Any:
        """The result of a call; None if the GPU does not support it or it failed this time."""
        call = (self.about, function, *arguments)
        if call in self._unsupported:
            return None
        try:
            result = self.require(function, handle, *arguments)
        except NvmlError as error:
            if error.code in UNSUPPORTED and call not in self._supported:
                self._unsupported[call] = error.code
            else:
                self.failed(function.__name__, error)
            return None
        self._supported.add(call)
        return result

    def is_unsupported(self, function: Callable[..., Any], *arguments: Any) -> bool:
        """Whether the GPU does not support this call; False if the call only failed."""
        return (self.about, function, *arguments) in self._unsupported

    def has_none(self, function: Callable[..., Any]) -> bool:
        """Whether the GPU itself, not a missing permission or an old driver, is the reason."""
        return self._unsupported.get((self.about, function)) == nvml.NOT_SUPPORTED

    def skip(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Do not make this call again: its answer is that the GPU does not support what was asked for."""
        call = (self.about, function, *arguments)
        self._unsupported[call] = nvml.NOT_SUPPORTED

    def require(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a call. GpuLostError or DriverGoneError if nothing can be read; NVMLError otherwise."""
        self.current = function.__name__
        started = perf_counter_ns()
        try:
            result = function(*arguments)
        except NvmlError as error:
            if error.code in LOST:  # every call fails alike, so the message does not name one
                lost = problem_of(str(error), error.code, self._gpu)
                raise GpuLostError(lost.what, lost.fix, lost.kind) from error
            if error.code in GONE:
                gone = problem_of(f"{self.current}: {error}", error.code)
                raise DriverGoneError(gone.what, gone.fix, gone.kind) from error
            raise
        finally:
            self.spent_ns += perf_counter_ns() - started
        self.answered += 1
        return result

    def failed(self, call: str, error: NvmlError) -> None:
        """Count an unexpected failure; the reading lacks the value of the call."""
        self.last_problem = problem_of(f"{call}: {error}", error.code, self._gpu)
        self._failures[call, error.code] += 1

    def forget(self) -> None:
        """Make all calls again: the GPU was reset, or its MIG mode changed."""
        self._unsupported.clear()
        self._supported.clear()
