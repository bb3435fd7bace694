"""On a machine with a GPU: record processes alone and together, with the ground truth of their work.

    python tools/h200/record_shared.py FOLDER [--only NAME,...] [--list] [--within SECONDS]

Writes one file per scenario in the format of tests/data/h200/README.md, with the clock (`sm_mhz`) in each row: first
every kind of work alone, then two to four together. `conv@0.4` works 0.4 s of each second. `sort>conv` does each kind
for half of the time and has two lines of ground truth. Scenarios that do not fit into the time are skipped and
listed. Needs PyTorch, pynvml and the PID namespace of the host.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pynvml
import workloads  # imports PyTorch once; processes are forked before any of them uses the GPU

ALONE = (
    "conv", "attention", "fft", "sort", "elementwise", "embed", "transformer", "infer", "transformer>infer",
)  # fmt: skip
TOGETHER = (
    ("conv", "attention"),
    ("transformer", "infer"),
    ("conv", "fft"),
    ("attention", "sort"),
    ("transformer", "elementwise"),
    ("infer", "sort"),
    ("sort", "embed"),
    ("conv@0.4", "transformer"),
    ("fft@0.5", "embed@0.3"),
    ("conv", "conv"),
    ("transformer", "transformer@0.4"),
    ("transformer>infer", "attention"),
    ("sort>conv", "elementwise"),
    ("conv", "sort", "infer"),
    ("attention", "embed", "elementwise@0.5"),
    ("transformer", "fft", "hold"),
    ("conv", "attention", "sort", "embed"),
    ("transformer", "infer", "infer@0.4", "elementwise@0.3"),
)
ALONE_S, TOGETHER_S = 9.0, 14.0
SETTLE_S, BEFORE_S, AFTER_S = 0.7, 1.2, 0.6
"""Seconds after the last process is ready, from the first row to the start of work, from its end to the last row."""
PERIOD_S = 0.1
GPM = (1, 2, 3, 5, 10, 11, 12, 13)
SPARE_S = 7.0
"""Approximate overhead of a scenario, in seconds."""


def name_of(kinds: tuple[str, ...]) -> str:
    """Name of a scenario, such as `x-conv40-transformer` or `solo-transformer+infer`."""
    words = [kind.replace(">", "+").replace("@0.", "") + ("0" if "@" in kind else "") for kind in kinds]
    return "-".join(["solo" if len(kinds) == 1 else "x", *words])


def work(pipe: Connection, kind: str, offset_s: float) -> None:
    """Process body: build, report ready, wait for the start, work, send the log, wait for the end."""
    names, _, duty = kind.partition("@")
    phases = names.split(">")
    steps = [workloads.KINDS[name]() for name in phases]
    for step in steps:
        for _ in range(3):
            step(0.0)
    pipe.send("ready")
    begin, seconds = pipe.recv()
    time.sleep(max(0.0, begin - time.time()))
    logs = []
    for number, step in enumerate(steps):
        until = begin + seconds * (number + 1) / len(steps)
        counts = phases[number] != "hold"
        logs.append(worked(step, until, float(duty or 1), time.time() - begin + offset_s, counts=counts))
    pipe.send([{"kind": kind, "pid": os.getpid(), "log": log} for kind, log in zip(_names(kind), logs, strict=True)])
    pipe.recv()
    os._exit(0)


def _names(kind: str) -> list[str]:
    """Kinds of work of each phase, with the duty cycle."""
    names, at, duty = kind.partition("@")
    return [name + at + duty for name in names.split(">")]


def worked(
    step: Callable[[float], None], until: float, duty: float, offset_s: float, *, counts: bool
) -> list[list[float]]:
    """Run steps until a deadline; returns the log of time and steps, including the start and end of pauses."""
    begin = time.time()
    log: list[list[float]] = [[begin, 0]]
    done = 0
    while (now := time.time()) < until:
        part = (now - begin + offset_s) % 1.0
        if part >= duty:
            log.append([now, done])
            time.sleep(max(0.0, min(1.0 - part, until - now)))
            log.append([time.time(), done])
            continue
        step(now - begin)
        done += counts
        if (now := time.time()) - log[-1][0] >= PERIOD_S:
            log.append([now, done])
    log.append([time.time(), done])
    return log


class Reader:
    """Raw readings of the first GPU as rows."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
        self.begin()

    def begin(self) -> None:
        """Start a new recording without earlier samples."""
        self._newest_us = int((time.time() - 0.2) * 1e6)
        self._rows = 0
        pynvml.nvmlGpmSampleGet(self._gpu, self._samples[0])

    def pids(self) -> set[int]:
        """Pids on the GPU."""
        return {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(self._gpu)}

    def row(self) -> dict[str, Any]:
        """Read one row; every fifth has activity."""
        gpu = self._gpu
        found: dict[str, Any] = {"t": time.time(), "energy_mj": pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)}
        found["t_energy"] = time.time()
        (power,) = pynvml.nvmlDeviceGetFieldValues(gpu, [pynvml.NVML_FI_DEV_POWER_INSTANT])
        found["power_mw"] = int(power.value.uiVal)
        memory = pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
        found["mem"] = [memory.total, memory.reserved, memory.free, memory.used]
        listed = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
        found["procs"] = [[process.pid, process.usedGpuMemory] for process in listed]
        rates = pynvml.nvmlDeviceGetUtilizationRates(gpu)
        found["util"] = [rates.gpu, rates.memory]
        found["sm_mhz"] = pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(gpu, self._newest_us)
        except pynvml.NVMLError as error:
            found["proc_util_err"] = int(error.value)
        else:
            found["proc_util"] = [[s.pid, s.timeStamp, s.smUtil, s.memUtil] for s in samples]
            self._newest_us = max([self._newest_us, *(s.timeStamp for s in samples)])
        self._rows += 1
        if self._has_activity():
            found["gpm"] = self._activity()
            found["t_gpm"] = time.time()
        return found

    def _has_activity(self) -> bool:
        return self._rows % 5 == 0

    def _activity(self) -> dict[str, float]:
        before, now = self._samples
        pynvml.nvmlGpmSampleGet(self._gpu, now)
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(GPM)
        request.sample1, request.sample2 = before, now
        for place, metric in enumerate(GPM):
            request.metrics[place].metricId = metric
        pynvml.nvmlGpmMetricsGet(request)
        self._samples = [now, before]
        told = [request.metrics[place] for place in range(len(GPM))]
        return {str(m.metricId): round(float(m.value), 3) for m in told if m.nvmlReturn == pynvml.NVML_SUCCESS}


def record(reader: Reader, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Record one scenario."""
    seconds = ALONE_S if len(kinds) == 1 else TOGETHER_S
    forks = multiprocessing.get_context("fork")
    pipes: list[Connection] = []
    processes = []
    try:
        for number, kind in enumerate(kinds):
            ours, theirs = forks.Pipe()
            processes.append(forks.Process(target=work, args=(theirs, kind, 0.37 * number), daemon=True))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        for pipe in pipes:
            pipe.recv()
        time.sleep(SETTLE_S)
        missing = {process.pid for process in processes} - reader.pids()
        if missing:
            raise RuntimeError(f"the driver does not list {missing} but {reader.pids()}: run in its PID namespace")
        reader.begin()
        first = time.time()
        start = first + BEFORE_S
        for pipe in pipes:
            pipe.send((start, seconds))
        rows = []
        while (now := time.time()) < start + seconds + AFTER_S:
            rows.append(reader.row())
            time.sleep(max(0.0, first + len(rows) * PERIOD_S - time.time()))
        truth = [line for pipe in pipes for line in pipe.recv()]
    finally:
        for process in processes:
            process.kill()
            process.join()
    while (pids := reader.pids()) and time.time() < now + 5:
        time.sleep(0.05)
    print(f"  {len(rows)} rows; left behind: {sorted(pids) or 'nobody'}")
    return {"name": name_of(kinds), "start": start, "dur": seconds, "truth": truth, "rows": rows}


def main() -> int:
    """Record all scenarios or the selected ones."""
    asked = argparse.ArgumentParser(description="record processes alone and together")
    asked.add_argument("folder", nargs="?", type=Path)
    asked.add_argument("--only", default="", help="names, with commas between")
    asked.add_argument("--list", action="store_true", help="say the names and how long they take, about")
    asked.add_argument("--within", type=float, default=540.0, metavar="SECONDS")
    said = asked.parse_args()
    scenarios = {name_of(kinds): kinds for kinds in (*((kind,) for kind in ALONE), *TOGETHER)}
    if said.only:
        scenarios = {name: scenarios[name] for name in said.only.split(",")}
    times = {name: SPARE_S + (ALONE_S if len(kinds) == 1 else TOGETHER_S) for name, kinds in scenarios.items()}
    if said.list or said.folder is None:
        print(*scenarios, f"{len(scenarios)} recordings, about {sum(times.values()):.0f} s", sep="\n")
        return 0
    said.folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    reader = Reader()
    wrong = 0
    for name, kinds in scenarios.items():
        if time.monotonic() - began + times[name] > said.within:
            print(f"{name}: left out, no time")
            wrong += 1
            continue
        before = time.monotonic()
        print(f"{name} ...", flush=True)
        try:
            found = record(reader, kinds)
        except (EOFError, RuntimeError, pynvml.NVMLError) as error:
            print(f"  failed: {error!r}")
            wrong += 1
            continue
        text = json.dumps(found, separators=(",", ":")).encode()
        (said.folder / f"{name}.json.gz").write_bytes(gzip.compress(text, 9, mtime=0))
        print(f"  {time.monotonic() - before:.1f} s", flush=True)
    print(f"{len(scenarios) - wrong} of {len(scenarios)} recordings in {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
