"""`python -m bench.soak [--minutes 12]`: soak test with a month of failures in minutes.

One tick a second on a node with 8 GPUs. 100,000 real processes in real cgroups start and exit, four per
container. Docker and the kubelet restart, the driver is unloaded and loaded, GPUs are lost, and clients, servers and
daemons of local users misbehave (`attackers.py`). The test checks that memory, threads and open files stay constant,
that the books balance, that no probe, scrape or tick fails, and that scrapes stay as fast as before.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from statistics import median

from bench import attackers, exporters
from bench.processes import memory_mb
from bench.scrape import PLAIN, PROMETHEUS, Scraper, quantile
from bench.table import Budget, table
from tests import fakedriver
from tests.hostile.clients import PROBE_S
from tests.owners.providers.docker_server import FakeDocker, http, listed
from tests.owners.providers.kubelet_server import KubeletServer

GPUS, ALIVE, IN_A_CONTAINER = 8, 256, 4
PROCESSES = 100_000
STEP_S = 0.05
EVERY_S = {"docker": 20.0, "kubelet": 25.0, "driver unloaded": 90.0, "GPU lost": 35.0}
"""Interval in seconds between failures of each kind."""
TROUBLE = {"driver unloaded": ["unloaded"], "GPU lost": ["lost 3", "error nvmlDeviceGetPowerUsage code=999"]}
TROUBLE_S = 2.0
CGROUPS = Path("/sys/fs/cgroup")
SCRAPER = "127.0.0.77"
"""Address of the configured scraper."""
RESULTS = Path(__file__).with_name("SOAK.md")


class Crowd:
    """Real processes in cgroups like Docker's; each new container replaces the oldest one."""

    def __init__(self, scenario: fakedriver.Scenario, path: Path) -> None:
        self._scenario, self._path = scenario, path
        hierarchy = CGROUPS if (CGROUPS / "cgroup.procs").exists() else CGROUPS / "pids"
        self._folder = hierarchy / f"gpuledger-soak-{os.getpid()}" / "docker"
        self._containers: deque[tuple[str, list[int]]] = deque()
        self.made = 0

    def containers(self) -> list[str]:
        return [name for name, _ in self._containers]

    def come(self) -> None:
        """Start one more container."""
        name = f"{self.made:064x}"
        folder = self._folder / name
        folder.mkdir(parents=True)
        pids = []
        for number in range(IN_A_CONTAINER):
            pid = os.posix_spawn("/bin/sleep", ["sleep", "900"], {}, setsid=True)
            (folder / "cgroup.procs").write_text(str(pid))
            pids.append(pid)
            gpu = (self.made + number) % GPUS
            load = fakedriver.Process(gpu=gpu, pid=pid, memory=(1 + pid % 3) << 30, sm=pid % 12, mem=pid % 5)
            self._scenario.processes.append(load)
        self._containers.append((name, pids))
        self.made += IN_A_CONTAINER

    def go(self, remaining: int) -> None:
        """Stop the oldest containers until this many processes are left. Some exit before the driver notices."""
        gone: set[int] = set()
        while len(self._containers) * IN_A_CONTAINER > remaining:
            name, pids = self._containers.popleft()
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            with contextlib.suppress(OSError):
                (self._folder / name).rmdir()
            gone |= set(pids)
        if gone:
            self._scenario.processes = [process for process in self._scenario.processes if process.pid not in gone]

    def show(self, *trouble: str) -> None:
        """Write the processes to the scenario of the driver."""
        self._scenario.extra = list(trouble)
        self._scenario.write(self._path)

    def close(self) -> None:
        self.go(0)
        for folder in (self._folder, self._folder.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()


@dataclass
class Look:
    """Resources of the exporter at one time."""

    at_s: float
    rss_mb: float
    threads: int
    fds: int


@dataclass
class Watch:
    """Scrapes and measures the exporter continuously until `ended` is set."""

    pid: int
    port: int
    looks: list[Look] = field(default_factory=list)
    scrapes: list[tuple[float, float]] = field(default_factory=list)
    refused: int = 0
    probes: tuple[int, int] = (0, 0)
    """Health checks, and those that failed."""
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        began = time.monotonic()
        scraper = Scraper(self.port, PROMETHEUS, SCRAPER)
        while not self.ended.wait(0.25):
            at = time.monotonic() - began
            try:
                self.scrapes.append((at, scraper.scrape()))
            except (OSError, RuntimeError):  # the connection was evicted or refused
                self.refused += 1
                scraper.close()
            if not self.looks or at - self.looks[-1].at_s > 2:
                self.looks.append(self.look(at))
        scraper.close()

    def probe(self) -> None:
        self.probes = attackers.probes(self.port, self.ended, PROBE_S)

    def look(self, at: float) -> Look:
        threads, fds = (len(list(Path(f"/proc/{self.pid}/{what}").iterdir())) for what in ("task", "fd"))
        return Look(at, memory_mb(self.pid), threads, fds)


def attack(port: int, ended: threading.Event) -> None:
    """A misbehaving client; the kind of attack alternates."""
    chosen = random.Random(port)
    scrape = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n"
    bad = (
        b"", b"GET", scrape[:-2], b"\0" * 5000, b"GET / HTTP/1.1\r\n" + b"X: " + b"a" * 40_000,
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", b"\x16\x03\x01\x02\x00", scrape * 40,
        b"GET /api/v1/fingerprints HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /dcgm/metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    )  # fmt: skip
    while not ended.is_set():
        held = []
        for _ in range(chosen.choice((1, 1, 5, 40))):
            with contextlib.suppress(OSError):
                sock = socket.create_connection(("127.0.0.1", port), 2, (f"127.0.2.{chosen.randint(1, 4)}", 0))
                held.append(sock)
                sock.sendall(chosen.choice(bad))
                if chosen.random() < 0.3:
                    sock.settimeout(0.2)
                    sock.recv(1000)
        ended.wait(chosen.choice((0.0, 0.2, 1.0)))
        for sock in held:
            sock.close()
        ended.wait(0.2)


@dataclass
class Result:
    minutes: float
    processes: int
    ticks: int
    missed_ticks: int
    restarts: dict[str, int]
    watch: Watch
    off_mj: list[int]
    """Difference between counter and accounts of each GPU, in millijoules."""
    joules: Decimal


def soak(minutes: float, processes: int) -> Result:
    """Run the soak test."""
    exporters.WORK.mkdir(exist_ok=True)
    exporters.take_sources()
    scenario = fakedriver.h200_node(gpus=GPUS, processes=0)
    path = exporters.WORK / "soak.scenario"
    crowd = Crowd(scenario, path)
    with tempfile.TemporaryDirectory(prefix="soak-") as text, contextlib.closing(crowd), ExitStack() as attacks:
        folder = Path(text)
        crowd.show()
        kubelet = KubeletServer(folder / "kubelet.sock")
        kubelet.give("ml", "train-0", "main", "nvidia.com/gpu", "GPU-00000000-0000-4000-8000-000000000000")
        kubelet.start()
        docker = _docker(folder, crowd)
        evil = attacks.enter_context(attackers.servers())
        flags = (
            "--environment=kubernetes", "--cri.socket=", f"--pod-resources-socket={folder}/kubelet.sock",
            f"--docker.host=unix://{folder}/d.sock", "--tick.interval=1s", "--metric-retention=5s",
            f"--journal.path={folder}/journal", *evil,
        )  # fmt: skip
        node = exporters.Node(path, GPUS, ALIVE)
        with exporters.running(exporters.gpuledger(*flags), "gpuledger", node) as exporter, _watched(exporter) as watch:
            attacks.enter_context(attackers.clients(exporter.port, watch.ended))
            began = time.monotonic()
            each_s = 60 * minutes * IN_A_CONTAINER / processes
            often = {what: _Often(every_s) for what, every_s in EVERY_S.items()}
            while crowd.made < processes:
                elapsed_s = time.monotonic() - began
                due = min(processes, int(elapsed_s / each_s) * IN_A_CONTAINER)
                while crowd.made < due:
                    crowd.come()
                crowd.go(ALIVE)
                docker.answers["/containers/json"] = _list(crowd)
                if often["docker"].is_due(elapsed_s):
                    docker.close()
                    (folder / "d.sock").unlink()
                    docker = _docker(folder, crowd)
                if often["kubelet"].is_due(elapsed_s):
                    kubelet.stop()
                    kubelet.start()
                trouble = []
                for what in ("driver unloaded", "GPU lost"):
                    often[what].is_due(elapsed_s)
                    if often[what].times and elapsed_s - often[what].last_s < TROUBLE_S:
                        trouble += TROUBLE[what]
                crowd.show(*trouble)
                print(f"\r{crowd.made:,} of {processes:,} processes", end="", file=sys.stderr, flush=True)
                time.sleep(STEP_S)
            took = (time.monotonic() - began) / 60
            crowd.show()
            attacks.close()  # the attacks have ended
            watch.ended.set()
            time.sleep(2)
            watch.looks.append(watch.look(took * 60))
            off, joules, values = _balance(exporter.port)
        docker.close()
        kubelet.stop()
    print(file=sys.stderr)
    ticks, missed = (int(values[f"gpuledger_{name}_total"]) for name in ("ticks", "ticks_missed"))
    return Result(
        took, crowd.made, ticks, missed, {what: schedule.times for what, schedule in often.items()}, watch, off, joules
    )


class _Often:
    """Schedule of an event that repeats."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self.last_s = 0.0
        self.times = 0

    def is_due(self, now_s: float) -> bool:
        if now_s - self.last_s < self._every_s:
            return False
        self.last_s = now_s
        self.times += 1
        return True


def _list(crowd: Crowd) -> bytes:
    return http([listed(name, f"work-{name[-6:]}") for name in crowd.containers()])


def _docker(folder: Path, crowd: Crowd) -> FakeDocker:
    inspected = {"Config": {"Image": "nginx:1", "Env": []}, "HostConfig": {}}
    return FakeDocker(folder, {"/version": http({"ApiVersion": "1.41"}), "/containers/json": _list(crowd),
                               "/containers/": http(inspected), "/events": http({}, 403)})  # fmt: skip


@contextlib.contextmanager
def _watched(exporter: exporters.Running) -> Iterator[Watch]:
    watch = Watch(exporter.pid, exporter.port)
    targets: list[Callable[[], None]] = [watch.run, watch.probe, *[lambda: attack(exporter.port, watch.ended)] * 4]
    threads = [threading.Thread(target=target, daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    try:
        yield watch
    finally:
        watch.ended.set()
        for thread in threads:
            thread.join(10)


def _balance(port: int) -> tuple[list[int], Decimal, dict[str, float]]:
    """Difference between the energy counter of each GPU and the sum of its accounts, in millijoules."""
    scraper = Scraper(port, PLAIN)
    scraper.scrape()
    scraper.close()
    sums: dict[str, list[Decimal]] = {}
    for line in scraper.body.decode().splitlines():
        name, _, rest = line.partition("{")
        labels, _, value = rest.rpartition("} ")
        uuid = labels.partition('uuid="')[2].partition('"')[0]
        if name == "gpu_energy_joules_total":
            sums.setdefault(uuid, [Decimal(0), Decimal(0)])[0] += Decimal(value)
        elif name in {f"gpu_{part}_energy_joules_total" for part in ("process", "idle", "retired", "unattributed")}:
            sums.setdefault(uuid, [Decimal(0), Decimal(0)])[1] += Decimal(value)
    off = [int((device - parts) * 1000) for device, parts in sums.values()]
    return off, sum((device for device, _ in sums.values()), Decimal(0)), scraper.values()


def budgets(result: Result) -> list[Budget]:
    watch = result.watch
    end = watch.looks[-1].at_s
    settled = [look for look in watch.looks if look.at_s > end / 5]
    third = (end - settled[0].at_s) / 3
    early = [look for look in settled if look.at_s < settled[0].at_s + third]
    late = [look for look in settled if look.at_s > end - third]
    p99 = [
        quantile([took for at, took in watch.scrapes if low <= at < high], 0.99)
        for low, high in ((end / 5, end / 5 + third), (end - third, end))
    ]
    return [
        Budget("RSS, last third minus first third after warm-up", 2, _rise(early, late, "rss_mb"), " MB"),
        Budget("threads, last third minus first third", 1, _rise(early, late, "threads"), ""),
        Budget("open files, last third minus first third", 8, _rise(early, late, "fds"), ""),
        Budget("largest imbalance of a GPU's ledger", 0, max(abs(mj) for mj in result.off_mj), " mJ"),
        Budget("largest RSS", 256, max(look.rss_mb for look in watch.looks), " MB"),
        Budget("refused scrapes", 0, watch.refused, ""),
        Budget("failed probes", 0, watch.probes[1], ""),
        Budget("missed ticks", 1, 100 * result.missed_ticks / (result.ticks + result.missed_ticks), " %"),
        Budget("p99 of scrapes, last third / first third", 1.5, p99[1] / p99[0], ""),
    ]


def _rise(early: list[Look], late: list[Look], what: str) -> float:
    return float(median(getattr(look, what) for look in late) - median(getattr(look, what) for look in early))


def report(result: Result, checked: list[Budget]) -> str:
    watch = result.watch
    looks = [watch.looks[len(watch.looks) * part // 10] for part in range(10)] + [watch.looks[-1]]
    rows = [[f"{look.at_s / 60:.1f}", f"{look.rss_mb:.1f}", str(look.threads), str(look.fds)] for look in looks]
    times = [took for _, took in watch.scrapes]
    containers = result.processes // IN_A_CONTAINER
    failures = ", ".join(f"{what} {count}x" for what, count in result.restarts.items())
    p50, p99 = (quantile(times, q) * 1e3 for q in (0.5, 0.99))
    return "\n".join(
        [
            "# Soak test",
            "",
            f"Written by `python -m bench.soak`: {result.processes:,} real processes in {containers:,} containers",
            f"started and exited in {result.minutes:.1f} minutes, with {result.ticks:,} ticks of 1 s",
            f"({result.missed_ticks:,} more were missed) and {result.joules:,.0f} J. Failures: {failures}.",
            f"Next to four clients that send nonsense and to `bench/attackers.py`, {len(times):,} scrapes",
            f"(p50 {p50:.0f} ms, p99 {p99:.0f} ms) and {watch.probes[0] - watch.probes[1]:,} probes succeeded.",
            "",
            table(("", "limit", "measured", "verdict"), [budget.row() for budget in checked]),
            "",
            table(("minute", "RSS MB", "threads", "open files"), rows),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak")
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    chosen = parser.parse_args()
    result = soak(chosen.minutes, chosen.processes)
    checked = budgets(result)
    text = report(result, checked)
    (RESULTS if chosen.processes >= PROCESSES else exporters.WORK / "SOAK.md").write_text(text)
    print(text)
    return 0 if all(budget.met for budget in checked) else 1


if __name__ == "__main__":
    sys.exit(main())
