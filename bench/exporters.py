"""The exporters and the node they look at."""

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

from bench.processes import free_port, sleepers, started
from bench.scrape import wait_until_ready
from tests import fakedriver

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "bench" / ".work"
NVITOP = "1.7.2"
NVIDIA_GPU_EXPORTER = "1.14.0"
OURS = {"PYTHONPATH": str(WORK / "src")}
"""In the environment of whatever runs our code."""


def take_sources() -> None:
    """Copy our sources as they are now: all figures are of the same code, also when somebody edits it meanwhile."""
    shutil.rmtree(WORK / "src", ignore_errors=True)
    shutil.copytree(ROOT / "src", WORK / "src", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-c", "import gpuledger; print(gpuledger.__file__)"]
    found = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **OURS}).stdout
    if not Path(found.strip()).is_relative_to(WORK):
        raise RuntimeError(f"gpuledger is imported from {found.strip()} and not from the copy in {WORK}")


@dataclass(frozen=True, slots=True)
class Node:
    """A fake host: its scenario file and how many GPUs and processes are in it."""

    scenario: Path
    gpus: int
    processes: int


@contextlib.contextmanager
def node(gpus: int, processes: int, *, latency: bool = False) -> Iterator[Node]:
    """A fake host with `processes` real pids in all, dealt out to its GPUs one by one."""
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
    """An exporter that answers."""

    pid: int
    port: int
    calls: Path
    """Where the fake driver counts its calls."""


@contextlib.contextmanager
def running(command: Sequence[str], name: str, on: Node) -> Iterator[Running]:
    """An exporter on the fake host; `PORT` in the command is replaced by a free one."""
    port = free_port()
    calls = WORK / f"{name}.calls"
    calls.unlink(missing_ok=True)
    words = [word.replace("PORT", str(port)) for word in command]
    environment = fakedriver.environment(on.scenario, calls) | (OURS if name == "gpuledger" else {})
    with started(words, environment, WORK / f"{name}.log") as process:
        wait_until_ready(port)
        yield Running(process.pid, port, calls)


def gpuledger(*flags: str) -> list[str]:
    """Ours, from this checkout."""
    return [sys.executable, "-m", "gpuledger", "serve", "--web.listen-address", "127.0.0.1:PORT", *flags]


def nvitop() -> tuple[list[str] | None, str]:
    """Theirs from PyPI, with the same Python, binding and prometheus_client as ours; or None and why not."""
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
    """Theirs in Go, from the module proxy, reading NVML every second as we do; or None and why not."""
    place = WORK / f"nvidia_gpu_exporter-{NVIDIA_GPU_EXPORTER}"
    program = place / "nvidia_gpu_exporter"
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
    said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
    return said[-1] if said else type(error).__name__


@dataclass(frozen=True, slots=True)
class Calls:
    """What the fake driver counted until `at`; waiting for events is not in it."""

    at: float
    count: int
    ns: int
    rounds: int
    """Calls for utilization, which every exporter makes once for each GPU in each round."""

    @classmethod
    def read(cls, path: Path) -> Calls:
        at = path.stat().st_mtime
        rows = [line.split() for line in path.read_text().splitlines()]
        rows = [row for row in rows if not row[0].startswith("nvmlEventSetWait")]
        rounds = sum(int(row[1]) for row in rows if row[0] == "nvmlDeviceGetUtilizationRates")
        return cls(at, sum(int(row[1]) for row in rows), sum(int(row[2]) for row in rows), rounds)


def told(module: str, *words: object) -> dict[str, Any]:
    """What a module of ours says in JSON, run in a process of its own."""
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
