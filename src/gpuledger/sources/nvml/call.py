"""Driver calls: timed, named while they run, and their errors sorted by what they mean for us."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import pynvml

from gpuledger.errors import DriverError

Handle = Any
"""An opaque pointer of the binding."""

UNSUPPORTED = frozenset({
    pynvml.NVML_ERROR_INVALID_ARGUMENT,  # an enum value or field this driver does not know yet
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,  # rights do not change while we run
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
})  # fmt: skip
"""This GPU or driver will not answer this question however often it is asked."""

LOST = frozenset({
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
})  # fmt: skip
"""This GPU answers nothing until it is reset or comes back."""

GONE = frozenset({
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
})  # fmt: skip
"""The driver was unloaded or replaced under us: start again from nvmlInit."""

NOTHING_THERE = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NO_DATA})


class GpuLostError(DriverError):
    """One GPU fell off the bus or waits for a reset."""


class DriverGoneError(DriverError):
    """The driver as a whole cannot be used any more. `code` is NVML's."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Calls:
    """The calls to one GPU. A question the GPU does not support is asked once and never again."""

    def __init__(self, errors: Counter[tuple[str, str]]) -> None:
        self._errors = errors
        self._unsupported: set[tuple[Any, ...]] = set()
        self._supported: set[tuple[Any, ...]] = set()
        self.about = ""
        """The MIG instance that is asked; empty for the GPU. One may not support what the other does."""
        self.current = ""
        """The call in progress, for the log line when it does not return."""
        self.spent_ns = 0
        self.answered = 0
        self.last_error = ""

    def ask(self, function: Callable[..., Any], handle: Handle, *arguments: Any) -> Any:
        """The call's answer, or None when this GPU does not support it or the call failed this time."""
        question = (self.about, function, *arguments)
        if question in self._unsupported:
            return None
        try:
            answer = self.insist(function, handle, *arguments)
        except pynvml.NVMLError as error:
            if error.value in UNSUPPORTED and question not in self._supported:
                self._unsupported.add(question)
            else:
                self.failed(function.__name__, error)
            return None
        self._supported.add(question)
        return answer

    def lacks(self, function: Callable[..., Any], *arguments: Any) -> bool:
        """Whether the GPU said that it does not support this, and not only failed to answer."""
        return (self.about, function, *arguments) in self._unsupported

    def insist(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The call's answer; NVMLError for what its caller must judge, our own errors when the GPU is lost."""
        self.current = function.__name__
        started = perf_counter_ns()
        try:
            answer = function(*arguments)
        except pynvml.NVMLError as error:
            if error.value in LOST:
                raise GpuLostError(str(error)) from error  # whichever call it was
            if error.value in GONE:
                raise DriverGoneError(f"{self.current}: {error}", error.value) from error
            raise
        finally:
            self.spent_ns += perf_counter_ns() - started
        self.answered += 1
        return answer

    def failed(self, call: str, error: pynvml.NVMLError) -> None:
        """Count a failure nobody foresaw; the number it would have given is absent this time."""
        self.last_error = f"{call}: {error}"
        self._errors[(call, str(error))] += 1

    def forget(self) -> None:
        """Ask everything again: the GPU was reset, or its MIG mode changed."""
        self._unsupported.clear()
        self._supported.clear()
