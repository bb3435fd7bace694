"""What to do about what is wrong."""

from __future__ import annotations

import pynvml
import pytest

from gpuledger.view.advice import DRIVER_FIXES, HANG_FIX, explained, fix_of

CODES = (
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
)


def test_the_words_are_the_drivers() -> None:
    """Reasons are recognised by what NVIDIA's binding says, or the library where the binding has no words."""
    assert [str(pynvml.NVMLError(code)) for code in CODES] == list(DRIVER_FIXES)[: len(CODES)]
    assert str(pynvml.NVMLError(pynvml.NVML_ERROR_GPU_NOT_FOUND)) in DRIVER_FIXES


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("nvmlInit: Driver Not Loaded", "sudo modprobe nvidia"),
        ("GPU is lost", "--gpu-reset -i 3"),
        ("nvmlDeviceGetName does not return", HANG_FIX),
        ("something new", "see what `nvidia-smi` says"),
    ],
)
def test_each_reason_has_its_remedy(reason: str, fix: str) -> None:
    """A command, with the GPU in it; for the unforeseen, where to look."""
    assert fix in fix_of(reason, 3)


def test_our_own_messages_bring_their_remedy() -> None:
    """After the last semicolon; one without says where to look."""
    assert explained("cannot open a; b: denied; run as root") == ("cannot open a; b: denied", "run as root")
    assert explained("odd")[0] == "odd"
    assert "debug" in explained("odd")[1]
