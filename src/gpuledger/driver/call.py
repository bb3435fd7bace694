"""NVML calls: timed, named while they run, and with errors sorted by their consequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import pynvml

from gpuledger.errors import DriverGoneError, GpuLostError
from gpuledger.model.problem import HANG_FIX, Problem

Handle = Any
"""An opaque pointer of the binding."""
Failures = Counter[tuple[str, int]]
"""Unexpected failures, by name of the call and NVML error code."""

UNSUPPORTED = frozenset({
    pynvml.NVML_ERROR_INVALID_ARGUMENT,  # an enum value or field that is newer than the driver
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,  # permissions do not change while the exporter runs
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
})  # fmt: skip
"""The GPU or driver will never answer this call."""

LOST = frozenset({
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
})  # fmt: skip
"""The GPU answers no call until it is reset or returns."""

GONE = frozenset({
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
})  # fmt: skip
"""The driver was unloaded or replaced: nvmlInit has to be called again."""

NO_ROWS = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NO_DATA})
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
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: ("library_not_found", f"install the NVIDIA driver; {CONTAINER}"),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "not_loaded", "`sudo modprobe nvidia`; if that fails, look for the reason with `sudo dmesg | grep -i nvrm`",
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        VERSION_MISMATCH, f"the driver was updated while the old one is loaded: reboot, or {RELOAD}",
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "permission", f"let this user open the devices: `ls -l /dev/nvidia*`, then {CHMOD}",
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: (
        "lost", f"{RESET}, or reboot; look for the reason with `sudo dmesg | grep -i xid`",
    ),
    pynvml.NVML_ERROR_RESET_REQUIRED: ("reset_required", RESET),
    pynvml.NVML_ERROR_GPU_NOT_FOUND: ("gpu_not_found", MISSING),
    pynvml.NVML_ERROR_UNINITIALIZED: ("not_initialized", ""),
    pynvml.NVML_ERROR_TIMEOUT: ("timeout", ""),
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
        self._unsupported: set[tuple[Any, ...]] = set()
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
        except pynvml.NVMLError as error:
            if error.value in UNSUPPORTED and call not in self._supported:
                self._unsupported.add(call)
            else:
                self.failed(function.__name__, error)
            return None
        self._supported.add(call)
        return result

    def is_unsupported(self, function: Callable[..., Any], *arguments: Any) -> bool:
        """Whether the GPU does not support this call; False if the call only failed."""
        return (self.about, function, *arguments) in self._unsupported

    def skip(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Do not make this call again: its answer is that the GPU does not support what was asked for."""
        self._unsupported.add((self.about, function, *arguments))

    def require(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a call. GpuLostError or DriverGoneError if nothing can be read; NVMLError otherwise."""
        self.current = function.__name__
        started = perf_counter_ns()
        try:
            result = function(*arguments)
        except pynvml.NVMLError as error:
            if error.value in LOST:  # every call fails alike, so the message does not name one
                lost = problem_of(str(error), error.value, self._gpu)
                raise GpuLostError(lost.what, lost.fix, lost.kind) from error
            if error.value in GONE:
                gone = problem_of(f"{self.current}: {error}", error.value)
                raise DriverGoneError(gone.what, gone.fix, gone.kind) from error
            raise
        finally:
            self.spent_ns += perf_counter_ns() - started
        self.answered += 1
        return result

    def failed(self, call: str, error: pynvml.NVMLError) -> None:
        """Count an unexpected failure; the reading lacks the value of the call."""
        self.last_problem = problem_of(f"{call}: {error}", error.value, self._gpu)
        self._failures[call, error.value] += 1

    def forget(self) -> None:
        """Make all calls again: the GPU was reset, or its MIG mode changed."""
        self._unsupported.clear()
        self._supported.clear()
