"""The exporters under test and the fake node that they read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.processes import sleepers, started
from bench.scrape import wait_until_ready
from tests import fakedriver
from tests.waiting import free_port

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "bench" / ".work"
NVITOP = "1.7.2"
NVIDIA_GPU_EXPORTER = "1.14.0"
EARLIER = os.environ.get("EARLIER", "c5edb88")
"""The commit or tag of an earlier gpuledger to compare with; the default is the first complete exporter."""
OURS = {"PYTHONPATH": str(WORK / "src")}
"""Environment of programs that run this checkout."""


BLOCKING = {"FAKE_NVML_EVENT_POLL_MS": "10000"}
"""The fake driver waits for events as the real one does, without waking up."""
SOURCES = {"gpuledger": OURS, "earlier": {"PYTHONPATH": str(WORK / f"earlier-{EARLIER}" / "src")}}
"""Environment of a version of gpuledger, by name."""


def take_sources() -> None:
    """Copy the sources, so that all measurements use the same code even if it is edited during the run."""
    shutil.rmtree(WORK / "src", ignore_errors=True)
    shutil.copytree(ROOT / "src", WORK / "src", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-c", "import gpuledger; print(gpuledger.__file__)"]
    location = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **OURS}).stdout
    if not Path(location.strip()).is_relative_to(WORK):
        raise RuntimeError(f"gpuledger is imported from {location.strip()} and not from the copy in {WORK}")


@dataclass(frozen=True, slots=True)
class Node:
    """A fake host: its scenario file and its number of GPUs and processes."""

    scenario: Path
    gpus: int
    processes: int


@contextlib.contextmanager
def node(gpus: int, processes: int, *, latency: bool = False) -> Iterator[Node]:
    """A fake host with `processes` real pids in total, distributed over its GPUs."""
    WORK.mkdir(exist_ok=True)
    path = WORK / f"node-{gpus}-{processes}-{'h200' if latency else 'zero'}.scenario"
    with sleepers(processes) as pids:
        scenario = fakedriver.h200_node(gpus=gpus, processes=0, latency=latency)
        for number, pid in enumerate(pids):
            turn, gpu = divmod(number, gpus)
            load = 10 + 5 * (turn % 4)
            scenario.processes.append(
                fakedriver.Process(gpu=gpu, pid=pid, memory=(turn % 4 + 1) << 30, sm=load, mem=load // 3)
            )
        yield Node(scenario.write(path), gpus, processes)


@dataclass(frozen=True, slots=True)
class Running:
    """A running exporter."""

    pid: int
    port: int
    calls: Path
    """File with the call counts of the fake driver."""


@contextlib.contextmanager
def running(command: Sequence[str], name: str, on: Node) -> Iterator[Running]:
    """Run an exporter on the fake host; `PORT` in the command is replaced by a free port."""
    port = free_port()
    calls = WORK / f"{name}.calls"
    calls.unlink(missing_ok=True)
    words = [word.replace("PORT", str(port)) for word in command]
    environment = fakedriver.environment(on.scenario, calls) | BLOCKING | SOURCES.get(name, {})
    with started(words, environment, WORK / f"{name}.log") as process:
        wait_until_ready(port)
        yield Running(process.pid, port, calls)


def gpuledger(*flags: str) -> list[str]:
    """Command of gpuledger from this checkout."""
    return [sys.executable, "-m", "gpuledger", "serve", "--web.listen-address", "127.0.0.1:PORT", *flags]


def earlier() -> tuple[list[str] | None, str]:
    """Command of an earlier gpuledger from the history of this repository; or None and the reason."""
    place = WORK / f"earlier-{EARLIER}"
    if not place.exists():
        try:
            archive = ["git", "archive", EARLIER, "src"]
            packed = subprocess.run(archive, cwd=ROOT, check=True, capture_output=True, timeout=60).stdout
            place.mkdir(parents=True)
            subprocess.run(["tar", "-x", "-C", str(place)], input=packed, check=True, capture_output=True)
        except (subprocess.SubprocessError, OSError) as error:
            return None, _last_words(error)
    return gpuledger(), ""


def nvitop() -> tuple[list[str] | None, str]:
    """Command of nvitop-exporter from PyPI, with the same Python and NVML binding; or None and the reason."""
    place = WORK / f"nvitop-exporter-{NVITOP}"
    program = place / "bin" / "nvitop-exporter"
    if not program.exists():
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            for step in (
                [sys.executable, "-m", "venv", "--clear", str(place)],
                [*pip, "-c", str(ROOT / "constraints.txt"), f"nvitop-exporter=={NVITOP}"],
            ):
                subprocess.run(step, check=True, capture_output=True, text=True, timeout=180)
        except (subprocess.SubprocessError, OSError) as error:
            return None, _last_words(error)
    return [str(program), "--bind-address", "127.0.0.1", "--port", "PORT", "--interval", "1"], ""


def nvidia_gpu_exporter() -> tuple[list[str] | None, str]:
    """Command of nvidia_gpu_exporter, reading NVML every second; or None and the reason.

    The variable NGE is the path of the program; without it, it is built from Go's module proxy.
    """
    place = WORK / f"nvidia_gpu_exporter-{NVIDIA_GPU_EXPORTER}"
    program = Path(os.environ.get("NGE") or place / "nvidia_gpu_exporter")
    if not program.exists():
        module = "github.com/utkuozdemir/nvidia_gpu_exporter/cmd/nvidia_gpu_exporter"
        try:
            subprocess.run(
                ["go", "install", f"{module}@v{NVIDIA_GPU_EXPORTER}"],
                env={**os.environ, "GOBIN": str(place), "CGO_ENABLED": "1"},
                check=True, capture_output=True, text=True, timeout=300,
            )  # fmt: skip
        except (subprocess.SubprocessError, OSError) as error:
            return None, _last_words(error)
    listen = ["--web.listen-address", "127.0.0.1:PORT"]
    return [str(program), *listen, "--collect.backend=nvml", "--collect.compute-apps", "--collect.interval=1s"], ""


def _last_words(error: Exception) -> str:
    output: str | bytes = getattr(error, "stderr", None) or str(error)
    lines = (output if isinstance(output, str) else output.decode(errors="replace")).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of the fake driver until `at`, without waiting for events."""

    at: float
    count: int
    ns: int
    rounds: int
    """Utilization calls: every exporter makes one per GPU and round."""

    @classmethod
    def read(cls, path: Path) -> Calls:
        at = path.stat().st_mtime
        rows = [line.split() for line in path.read_text().splitlines()]
        rows = [row for row in rows if row[0].startswith("nvml") and not row[0].startswith("nvmlEventSetWait")]
        rounds = sum(int(row[1]) for row in rows if row[0] == "nvmlDeviceGetUtilizationRates")
        return cls(at, sum(int(row[1]) for row in rows), sum(int(row[2]) for row in rows), rounds)


def run_json(module: str, *words: object) -> dict[str, Any]:
    """JSON output of a module that runs in its own process."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, words)],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **OURS},
        start_new_session=True,
    )
    return dict(json.loads(done.stdout))
