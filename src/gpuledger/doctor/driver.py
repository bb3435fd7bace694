"""The driver and its library: whether they answer, whether they list a GPU, and which versions there are."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import pynvml

from gpuledger import __version__
from gpuledger.doctor.finding import Finding, ok, problem, warning
from gpuledger.model import Driver, Health, Reading, Tick

HANGS = "does not return"
HANG_FIX = "look for the reason with `sudo dmesg | grep -i -e nvrm -e xid`; if the call never returns, reboot"
FIXES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "install the NVIDIA driver; in a container give it the GPUs: `docker run "
    "--gpus all`, on Kubernetes `runtimeClassName: nvidia`",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "`sudo modprobe nvidia`; if that fails, `sudo dmesg | grep -i nvrm` says why",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was updated while the old one runs: reboot, or end all that "
    "use GPUs and `sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia`",
    pynvml.NVML_ERROR_NO_PERMISSION: "let this user open the devices: `ls -l /dev/nvidia*`, then "
    "`sudo chmod a+rw /dev/nvidiactl /dev/nvidia[0-9]*`",
    pynvml.NVML_ERROR_GPU_IS_LOST: "`sudo nvidia-smi --gpu-reset -i {gpu}`, or reboot; `sudo dmesg | grep -i xid` "
    "says why",
    pynvml.NVML_ERROR_RESET_REQUIRED: "`sudo nvidia-smi --gpu-reset -i {gpu}`",
    pynvml.NVML_ERROR_GPU_NOT_FOUND: "`nvidia-smi -L` lists the GPUs there are; reboot if one is missing",
}
"""By NVML's code; recognised in a reason by NVML's own words."""
OLDEST_TOLD = 510
"""The first driver that tells reserved memory apart from used memory."""


def fix_of(reason: str, gpu: int | str = "ID") -> str:
    """What to do about a reason that the driver gave."""
    if HANGS in reason:
        return HANG_FIX
    for code, fix in FIXES.items():
        if str(pynvml.NVMLError(code)) in reason:
            return fix.format(gpu=gpu)
    return "see what `nvidia-smi` says; `sudo dmesg | grep -i -e nvrm -e xid` may say why"


def driver(told: Driver, readings: tuple[Reading, ...]) -> list[Finding]:
    """The driver as a whole."""
    if not told.up:
        return [problem("driver", f"cannot be read: {told.reason}", fix_of(told.reason))]
    if not readings:
        fix = "`nvidia-smi -L` lists what the driver sees; in a container give it the GPUs: `docker run --gpus all`"
        return [problem("driver", f"{told.driver_version} answers, but lists no GPU", fix)]
    count = sum(not reading.device.parent_uuid for reading in readings)
    return [ok("driver", f"{told.driver_version} answers and lists {count} GPU{'s' * (count != 1)}")]


def start(first: Tick, tick: Tick) -> list[Finding]:
    """Whether it took long to answer for the first time and is well now; nothing when it did not."""
    late = "the driver" if HANGS in first.driver.reason and tick.driver.up else ""
    down = {reading.device.index for reading in first.readings if HANGS in reading.reason}
    back = sorted(reading.device.index for reading in tick.readings if reading.up and reading.device.index in down)
    if not late and back:
        late = f"GPU {', '.join(map(str, back))}"
    if not late:
        return []
    fix = "`sudo nvidia-smi -pm 1`, or `sudo systemctl enable --now nvidia-persistenced`, keeps it awake"
    return [warning("driver start", f"{late} took seconds to answer for the first time", fix)]


def versions(told: Driver) -> list[Finding]:
    """Of all that matter."""
    shown = ", ".join(f"{name} {number}" for name, number in known_versions(told).items() if number)
    major = told.driver_version.partition(".")[0]
    if major.isdecimal() and int(major) < OLDEST_TOLD:
        text = f"{shown}: this driver counts what it keeps for itself as used memory"
        return [warning("versions", text, f"install a driver of the R{OLDEST_TOLD} branch or newer")]
    return [ok("versions", shown)]


def known_versions(told: Driver) -> dict[str, str]:
    """Names and numbers; what is not known is empty."""
    return {
        "gpuledger": __version__,
        "driver": told.driver_version,
        "NVML": told.nvml_version,
        "CUDA": told.cuda_version,
        "nvidia-ml-py": _installed("nvidia-ml-py"),
        "Python": platform.python_version(),
        "h2": _installed("h2"),
        "PyYAML": _installed("PyYAML"),
        "kernel": platform.release(),
    }


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def troubles(health: Health) -> list[Finding]:
    """Calls that failed unforeseen, and parts of the exporter that did; nothing when there are none."""
    found = []
    for (call, error), count in health.driver_errors:
        text = f"{call} failed {count} times: {error}; what it tells is missing"
        found.append(warning("driver calls", text, fix_of(error)))
    for stage in health.stages:
        if not stage.success and stage.name != "read":
            fix = "please report it, with `gpuledger doctor --bundle FILE`"
            found.append(problem("exporter", f"its stage {stage.name} fails", fix))
    return found
