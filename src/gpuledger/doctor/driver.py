"""The driver and its library: whether they answer, whether they list a GPU, and which versions there are."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from gpuledger import __version__
from gpuledger.doctor.finding import Finding, ok, problem, warning
from gpuledger.model import Driver, Health, Reading, Tick
from gpuledger.view.advice import HANGS, NO_GPU_FIX, REPORT_FIX, fix_of

OLDEST_TOLD = 510
"""The first driver that tells reserved memory apart from used memory."""


def driver(told: Driver, readings: tuple[Reading, ...]) -> list[Finding]:
    """The driver as a whole."""
    if not told.up:
        return [problem("driver", f"cannot be read: {told.reason}", fix_of(told.reason))]
    if not readings:
        return [problem("driver", f"{told.driver_version} answers, but lists no GPU", NO_GPU_FIX)]
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
    failed = [stage.name for stage in health.stages if not stage.success and stage.name != "read"]
    return found + [problem("exporter", f"its stage {name} fails", REPORT_FIX) for name in failed]
