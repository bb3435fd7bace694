"""A node of a scripted world: samples of its exporter, as functions of the minute."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Any

from tests.cli.running import gpuledger
from tests.real.history import History
from tests.real.prometheus import Prometheus

GIB = 1 << 30
BEGAN = int(time.time()) // 600 * 600 - 3 * 3600
"""Minute 0. The report is on minutes 0 to 60 in cells of 10; scrapes are at half past every minute."""
WATCHED = (-30.0, 90.0)
Minutes = tuple[float, float]


def scrapes(*whiles: Minutes) -> list[float]:
    """Minutes of the scrapes within these times."""
    return [n + 0.5 for n in range(-30, 90) if any(first <= n + 0.5 <= last for first, last in whiles)]


class Node:
    """An exporter with one GPU; its energy is always the sum of what it says of others."""

    def __init__(
        self,
        history: History,
        name: str,
        *whiles: Minutes,
        job: str = "gpuledger",
        clock: Callable[[float], float] = lambda minute: BEGAN + 60 * minute,
    ) -> None:
        self.history, self.name, self.minutes = history, name, scrapes(*(whiles or (WATCHED,)))
        self.target = {"instance": f"{name}:9400", "job": job}
        self.gpu = {**self.target, "gpu": "0", "uuid": f"GPU-{name}"}
        for family in ("gpu_up", "gpu_in_use"):
            self.add(family, lambda _: 1)
        self.add("gpuledger_tick_timestamp_seconds", clock, self.target)
        self.add("gpu_info", lambda _: 1, {**self.gpu, "name": "H200" if name < "c" else "L4"})

    def add(
        self,
        family: str,
        value: Callable[[float], float],
        labels: dict[str, str] | None = None,
        within: Minutes = WATCHED,
    ) -> None:
        """A series of it, by a function of the minute."""
        samples = [(BEGAN + 60 * m, value(m)) for m in self.minutes if within[0] <= m <= within[1]]
        self.history.add(family, self.gpu if labels is None else labels, samples)

    def container(self, pod: str, joules: Callable[[float], float], within: Minutes = WATCHED, uuid: str = "") -> None:
        """A pod of the namespace of the same name, with 8 GiB and the GPU, or a MIG instance of it."""
        labels = {
            **self.gpu,
            "uuid": uuid or self.gpu["uuid"],
            "namespace": pod,
            "pod": f"{pod}-0",
            "container": "main",
        }
        held = {**labels, "container_id": f"id-{pod}"}
        self.add("container_gpu_energy_joules_total", joules, {**held, "method": "exclusive"}, within)
        self.add("container_gpu_busy_seconds_total", lambda minute: joules(minute) / 1000, held, within)
        self.add("container_gpu_memory_bytes", lambda _: 8 * GIB, {**held, "method": "nvml"}, within)
        self.add("container_gpu_detected", lambda _: 1, {**held, "evidence": "process"}, within)
        self.add("gpu_pod_allocation_info", lambda _: 1, {**labels, "resource": "nvidia.com/gpu"}, within)

    def books(self, before: float, idle: Callable[[float], float], gpu: Callable[[float], float]) -> None:
        """The accounts of the GPU."""
        self.add("gpu_unattributed_energy_joules_total", lambda _: before, {**self.gpu, "reason": "before"})
        self.add("gpu_idle_energy_joules_total", idle)
        self.add("gpu_energy_joules_total", gpu)


def report(server: Prometheus, *flags: str) -> dict[str, Any]:
    """On the hour; as JSON."""
    begin, end = (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(BEGAN + 60 * minute)) for minute in (0, 60))
    done = run_report(server, "--format=json", f"--from={begin}", f"--to={end}", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


def run_report(server: Prometheus, *flags: str) -> CompletedProcess[str]:
    """The command, with cells of ten minutes."""
    return gpuledger("report", f"--prometheus.url={server.url}", "--step=10m", *flags)


def column(found: dict[str, Any], key: str, factor: float = 1) -> dict[str, float | None]:
    """By the name of the group, with the namespace of a language model, or by the kind of line."""
    lines, name = [*found["rows"], found["total"]], found["by"].replace("-", "_")
    names = [f"{line['namespace']}/{line[name]}" if name == "model" and name in line else line.get(name, line["kind"])
             for line in lines]  # fmt: skip
    return {n: None if line[key] is None else line[key] * factor for n, line in zip(names, lines, strict=True)}
