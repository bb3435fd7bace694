"""A live run: the exporter, next to workload processes that come and go. Needs PyTorch; run by truth.py."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol
from urllib.request import urlopen

PORT = 9481
GPU = "0"
LINE = re.compile(r"^(gpu\w*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
ACCOUNTS = ("process", "idle", "retired", "unattributed")

LEAD_S, TAIL_S = 9.0, 3.0
"""Seconds from the exporter's first answer to time 0, and from the end of all work to the last scrape."""
EARLY_S, STAY_S = 5.0, 0.5
"""Seconds from the start of a process to its work, and from the end of its work to its exit."""
LISTED_S = 5.0
"""When the exporter must have listed the first process."""
LATE_S = 30.0
"""Maximum time to wait for the logs after the end of all work."""
LOAD_S = 180.0
"""Maximum time to load the libraries of all workloads."""
PR_SET_NAME = 15


@dataclass(frozen=True, slots=True)
class Workload:
    """A process: kind of work, and the spans of time in which it works. `fft@0.3` works 0.3 s of each second."""

    kind: str
    spans: tuple[tuple[float, float], ...]

    @property
    def name(self) -> str:
        """Kind without the duty cycle; also the command name of the process."""
        return self.kind.partition("@")[0]

    def scaled(self, scale: float) -> Workload:
        """The same workload on another time scale."""
        return Workload(self.kind, tuple((begin * scale, end * scale) for begin, end in self.spans))


WORKLOADS = (
    Workload("conv", ((0, 45), (57, 77))),
    Workload("infer", ((15, 77),)),
    Workload("sort", ((82, 112),)),
    Workload("attention", ((82, 102),)),
    Workload("embed", ((116, 148),)),
    Workload("fft@0.3", ((128, 158),)),
)


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one scrape says about the GPU, its processes and the exporter."""

    time_s: float
    """When /metrics was read."""
    tick_s: float
    """When the exporter read the driver."""
    device_mj: int
    booked_mj: int
    """Sum of all accounts."""
    parked_w: float | None
    active: list[int]
    """Pids on the GPU."""
    energy_mj: dict[int, dict[str, int]]
    """By pid and method."""
    share_errors: dict[int, float]
    busy_s: dict[int, float]
    tick_duration_s: float
    driver_s: float
    cpu_s: float
    resident_bytes: float
    missed_ticks: float

    def above_parked_j(self, pid: int) -> float:
        """Energy of a process above parked power, while it shared the GPU."""
        return sum(mj for method, mj in self.energy_mj.get(pid, {}).items() if method != "parked") / 1000


def parse(body: str, time_s: float) -> Scrape:
    """Read one answer of /metrics."""
    families: defaultdict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for name, text, value in LINE.findall(body):
        labels = dict(LABEL.findall(text))
        if labels.get("gpu", GPU) == GPU:
            families[name].append((labels, float(value)))

    def single(name: str) -> float:
        return families[name][0][1] if families[name] else 0.0

    def by_pid(name: str) -> dict[int, float]:
        return {int(labels["pid"]): number for labels, number in families[name]}

    energy_mj: dict[int, dict[str, int]] = {}
    for labels, joules in families["gpu_process_energy_joules_total"]:
        energy_mj.setdefault(int(labels["pid"]), {})[labels["method"]] = round(joules * 1000)
    return Scrape(
        time_s=time_s,
        tick_s=single("gpuledger_tick_timestamp_seconds"),
        device_mj=round(single("gpu_energy_joules_total") * 1000),
        booked_mj=sum(
            round(j * 1000) for account in ACCOUNTS for _, j in families[f"gpu_{account}_energy_joules_total"]
        ),
        parked_w=single("gpu_parked_power_watts") or None,
        active=[pid for pid, active in by_pid("gpu_process_active").items() if active],
        energy_mj=energy_mj,
        share_errors=by_pid("gpu_process_energy_share_error_ratio"),
        busy_s=by_pid("gpu_process_busy_seconds_total"),
        tick_duration_s=single("gpuledger_tick_duration_seconds"),
        driver_s=single("gpuledger_driver_seconds"),
        cpu_s=single("process_cpu_seconds_total"),
        resident_bytes=single("process_resident_memory_bytes"),
        missed_ticks=single("gpuledger_ticks_missed_total"),
    )


@dataclass(slots=True)
class Run:
    """All readings of one run."""

    scale: float = 1.0
    name: str = ""
    """Name of a timeline of natural programs; empty for the kernels of this module."""
    start: float = 0.0
    """Unix time of time 0."""
    scrapes: list[Scrape] = field(default_factory=list)
    work: list[dict[str, Any]] = field(default_factory=list)
    """For each process: kind, pid, when it arrived and was ready, and its log of time and units done."""

    @classmethod
    def read(cls, path: Path) -> Run:
        """A run that was written with `--json`."""
        stored = json.loads(path.read_text())
        for scrape in stored["scrapes"]:
            for name in ("energy_mj", "share_errors", "busy_s"):  # the keys of JSON objects are strings
                scrape[name] = {int(pid): number for pid, number in scrape[name].items()}
        return cls(**stored | {"scrapes": [Scrape(**scrape) for scrape in stored["scrapes"]]})

    def write(self, path: Path) -> None:
        """Write all readings as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), separators=(",", ":")))


def work(pipe: Connection, workload: Workload, start: float) -> None:
    """Process body: load, warm up, wait, work, send the log, leave."""
    import record_shared
    import workloads

    ctypes.CDLL(None).prctl(PR_SET_NAME, workload.name.encode(), 0, 0, 0)
    arrived = time.time()
    step = workloads.KINDS[workload.name]()
    for _ in range(3):
        step(0.0)
    ready = time.time()
    duty = float(workload.kind.partition("@")[2] or 1)
    log: list[list[float]] = []
    done = 0
    for begin, end in workload.spans:
        time.sleep(max(0.0, start + begin - time.time()))
        span = record_shared.worked(step, start + end, duty, 0.0, counts=True)
        log += [[at, units + done] for at, units in span]
        done = int(log[-1][1])
    time.sleep(STAY_S)
    pipe.send({"kind": workload.kind, "pid": os.getpid(), "arrived": arrived, "ready": ready, "log": log})
    os._exit(0)


def load(names: Iterable[str]) -> None:
    """Process body: load the libraries of all workloads into the page cache, so that processes start in time."""
    import workloads

    for name in names:
        workloads.KINDS[name]()(0.0)
    os._exit(0)


class Workers(Protocol):
    """Processes that come and go."""

    def load(self) -> None:
        """Prepare all of them."""

    def start(self, time_0: float, /) -> None:
        """Start those that work soon."""

    def logs(self) -> Iterator[dict[str, Any]]:
        """Logs of those that have finished since the last call."""

    def pids(self) -> set[int]:
        """Pids of those that run."""

    def finished(self) -> bool:
        """Whether all logs were received."""

    def kill(self) -> None:
        """Kill all of them."""


class Processes:
    """Starts workload processes when they are due, and receives their logs."""

    def __init__(self, workloads: Iterable[Workload]) -> None:
        self._forks = multiprocessing.get_context("fork")
        self._waiting = sorted(workloads, key=lambda workload: workload.spans[0][0])
        self._running: list[tuple[Workload, Any, Connection]] = []
        self._all: list[Any] = []

    def load(self) -> None:
        """Load all libraries once, in a process that exits."""
        names = [workload.name for workload in self._waiting]
        process = self._forks.Process(target=load, args=(names,), daemon=True)
        self._all.append(process)
        process.start()
        process.join(LOAD_S)
        if process.exitcode != 0:
            raise RuntimeError(f"loading the workloads failed with {process.exitcode}: see the output above")

    def start(self, time_0: float) -> None:
        """Start the processes that work soon."""
        while self._waiting and time.time() >= time_0 + self._waiting[0].spans[0][0] - EARLY_S:
            workload = self._waiting.pop(0)
            ours, theirs = self._forks.Pipe()
            process = self._forks.Process(target=work, args=(theirs, workload, time_0), daemon=True)
            self._all.append(process)
            process.start()
            theirs.close()
            self._running.append((workload, process, ours))

    def logs(self) -> Iterator[dict[str, Any]]:
        """Logs of the processes that have finished since the last call."""
        for entry in list(self._running):
            workload, process, pipe = entry
            if pipe.poll():
                self._running.remove(entry)
                try:
                    yield pipe.recv()
                except EOFError:
                    process.join(5)
                    raise RuntimeError(
                        f"{workload.kind} failed with {process.exitcode}: see the output above"
                    ) from None

    def pids(self) -> set[int]:
        """Pids of the running processes."""
        return {process.pid for _, process, _ in self._running}

    def finished(self) -> bool:
        """Whether all processes have sent their logs."""
        return not self._waiting and not self._running

    def kill(self) -> None:
        """Kill all processes."""
        for process in self._all:
            if process.pid is not None:
                process.kill()
                process.join()


@contextmanager
def exporter(journal: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The exporter with default settings and a journal; yields when it reports the energy of the GPU."""
    words = ["serve", f"--web.listen-address=127.0.0.1:{PORT}", "--environment=none", f"--journal.path={journal}"]
    process = subprocess.Popen([sys.executable, "-m", "gpuledger", *words])
    try:
        for _ in range(100):
            time.sleep(0.2)
            answer = scrape(process)
            if answer and answer.device_mj:
                yield process
                return
        raise RuntimeError(f"the exporter reports no energy of GPU {GPU} on port {PORT}: see the output above")
    finally:
        process.kill()
        process.wait()


def scrape(server: subprocess.Popen[bytes]) -> Scrape | None:
    """Read /metrics; None if the exporter does not answer in time."""
    if server.poll() is not None:
        raise RuntimeError(f"the exporter exited with {server.returncode}: see the output above")
    try:
        with urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=5) as answer:
            return parse(answer.read().decode(), time.time())
    except OSError:
        return None


def record_kernels(run: Run) -> None:
    """Run the workloads of this module next to the exporter."""
    import workloads  # noqa: F401 - imports PyTorch once; processes are forked before any of them uses the GPU

    end_s = max(end for workload in WORKLOADS for _, end in workload.spans) * run.scale
    record(run, Processes([workload.scaled(run.scale) for workload in WORKLOADS]), end_s)


def record(run: Run, workers: Workers, end_s: float, lead_s: float = LEAD_S) -> None:
    """Run processes next to the exporter; `run` has the readings so far even if this fails."""
    try:
        print("loading libraries ...", flush=True)
        workers.load()
        with tempfile.TemporaryDirectory() as folder, exporter(Path(folder) / "journal") as server:
            run.start = time.time() + lead_s
            print(f"working for {lead_s + end_s:.0f} s ...", flush=True)
            _observe(run, workers, server, run.start + end_s)
    finally:
        workers.kill()


def _observe(run: Run, workers: Workers, server: subprocess.Popen[bytes], end: float) -> None:
    """Start processes and scrape once a second, until all work is done."""
    listed = False
    due = time.time()
    while time.time() < end + TAIL_S or not workers.finished():
        workers.start(run.start)
        run.work += workers.logs()
        if time.time() >= due:
            due += 1.0
            if (answer := scrape(server)) is None:
                print("a scrape failed", flush=True)
                continue
            run.scrapes.append(answer)
            listed = listed or bool(workers.pids() & set(answer.active))
        if not listed and time.time() > run.start + LISTED_S:
            raise RuntimeError("the driver does not list the processes: run in its PID namespace")
        if time.time() > end + LATE_S:
            raise RuntimeError(f"processes {sorted(workers.pids())} did not end")
        time.sleep(0.02)
