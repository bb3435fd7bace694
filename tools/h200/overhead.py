"""On a machine with a GPU: what the exporter costs the jobs, and what exporters cost the host.

    python tools/h200/overhead.py [PAIRS] [SECONDS] [big|vector...]
    python tools/h200/overhead.py beside [SECONDS]

The first form compares the throughput of a job with and without the exporter. One process works all the time and logs
its progress. The exporter, with one tick per second, is continued and stopped (SIGCONT, SIGSTOP) in the order
on-off-off-on, so that drift cancels out. The work of each turn is compared with that of its pair.

The second form runs exporters in turns, the others stopped, because their calls wait for each other: on an idle GPU,
with one process, and with three that share it. It prints their CPU time, memory and scrapes. The exporters are
gpuledger, an earlier one in the folder EARLIER, nvitop-exporter if it is installed, and nvidia_gpu_exporter if NGE
names the program.
"""

from __future__ import annotations

import os
import re
import select
import signal
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

sys.path.insert(1, str(Path(__file__).resolve().parents[2]))  # for bench

from bench.processes import cpu_s, memory_mb

PORT = 9480
PHASES: dict[str, tuple[str, ...]] = {
    "idle": (), "one process": ("train",), "three processes": ("train", "decode", "serve"),
}  # fmt: skip
SETTLE_S, RESUME_S = 12.0, 8.0
"""Until programs have loaded, and until a stopped exporter works as usual."""
SCRAPES = 5
DRIVER = re.compile(r"^gpuledger_driver_seconds\{.*\} (\S+)$", re.MULTILINE)
EDGE_S = 0.3
"""Seconds to ignore at the start of a turn, because a tick may still run."""


def rate(log: list[tuple[float, float]], begin: float, end: float) -> float:
    """Units per second, from the first log entry after `begin` to the last one before `end`."""
    inside = [note for note in log if begin <= note[0] <= end]
    (first, done_first), (last, done_last) = inside[0], inside[-1]
    return (done_last - done_first) / (last - first)


def compare(kind: str, pairs: int, seconds: float) -> None:
    """Run all turns with one kind of work and print the result."""
    work = subprocess.Popen([sys.executable, __file__, "work", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    words = [sys.executable, "-m", "gpuledger", "serve", f"--web.listen-address=127.0.0.1:{PORT}", "--environment=none"]
    server = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    time.sleep(4)
    turns: list[tuple[bool, float, float]] = []
    try:
        for pair in range(pairs):
            for on in (True, False) if pair % 2 == 0 else (False, True):
                os.kill(server.pid, signal.SIGCONT if on else signal.SIGSTOP)
                begin = time.time()
                time.sleep(seconds)
                turns.append((on, begin + EDGE_S, time.time()))
    finally:
        os.kill(server.pid, signal.SIGCONT)
        server.kill()
        server.wait()
        out, _ = work.communicate(b"enough\n", timeout=30)
    notes = [(float(t), float(n)) for t, n in (line.split() for line in out.decode().splitlines())]
    rates = [(on, rate(notes, begin, end)) for on, begin, end in turns]
    ratios = []
    for first, second in zip(rates[::2], rates[1::2], strict=True):
        with_it, without = (first, second) if first[0] else (second, first)
        ratios.append(with_it[1] / without[1])
    mean, spread = statistics.mean(ratios), statistics.stdev(ratios)
    print(
        f"{kind}: with over without {mean:.5f}, standard error {spread / len(ratios) ** 0.5:.5f}, "
        f"of {len(ratios)} pairs from {min(ratios):.5f} to {max(ratios):.5f}, median {statistics.median(ratios):.5f}",
        flush=True,
    )


def work(kind: str) -> None:
    """Multiply matrices until a line arrives on standard input, then print the log of progress."""
    import torch

    big = kind == "big"
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 8192 if big else 1, device="cuda", dtype=torch.bfloat16)
    notes: list[tuple[float, int]] = []
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(5 if big else 200):
            a @ b
        torch.cuda.synchronize()
        notes.append((time.time(), len(notes) + 1))
    print("\n".join(f"{t:.6f} {n}" for t, n in notes))


def exporters() -> dict[str, tuple[list[str], str]]:
    """Commands of the exporters that are there, each with its PYTHONPATH."""
    serve = [sys.executable, "-m", "gpuledger", "serve", "--environment=none"]
    here = str(Path(__file__).resolve().parents[2] / "src")
    found = {"gpuledger": ([*serve, f"--web.listen-address=127.0.0.1:{PORT}"], here)}
    if earlier := os.environ.get("EARLIER"):
        found["earlier"] = [*serve, f"--web.listen-address=127.0.0.1:{PORT + 1}"], earlier
    if find_spec("nvitop_exporter") is not None:
        found["nvitop-exporter"] = [sys.executable, "-m", "nvitop_exporter", f"--port={PORT + 2}", "--interval=1"], ""
    if program := os.environ.get("NGE"):
        words = [f"--web.listen-address=127.0.0.1:{PORT + 3}", "--collect.backend=nvml", "--collect.compute-apps"]
        found["nvidia_gpu_exporter"] = [program, *words, "--collect.interval=1s"], ""
    return found


def beside(seconds: float) -> None:
    """Measure every exporter in every phase; print a line for each."""
    ports = {"gpuledger": PORT, "earlier": PORT + 1, "nvitop-exporter": PORT + 2, "nvidia_gpu_exporter": PORT + 3}
    running = {}
    for name, (words, path) in exporters().items():
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH")]))}
        running[name] = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for phase, kinds in PHASES.items():
            script = str(Path(__file__).with_name("workloads.py"))
            life_s = str(int(SETTLE_S + 4 * (RESUME_S + seconds + 10) + 60))
            jobs = [subprocess.Popen([sys.executable, script, kind, life_s]) for kind in kinds]
            try:
                time.sleep(SETTLE_S)
                _phase(phase, {name: (process.pid, ports[name]) for name, process in running.items()}, seconds)
            finally:
                for job in jobs:
                    job.kill()
                    job.wait()
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def _phase(phase: str, pids: dict[str, tuple[int, int]], seconds: float) -> None:
    for name, (pid, port) in pids.items():
        for other, _ in pids.values():
            os.kill(other, signal.SIGCONT if other == pid else signal.SIGSTOP)
        time.sleep(RESUME_S)
        started, before = time.monotonic(), cpu_s(pid)
        time.sleep(seconds)
        share = (cpu_s(pid) - before) / (time.monotonic() - started)
        scrapes, driver_s = [], []
        for _ in range(SCRAPES):
            time.sleep(1.1)
            begin = time.perf_counter()
            body = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
            scrapes.append(time.perf_counter() - begin)
            driver_s += [float(number) for number in DRIVER.findall(body)]
        in_driver = f", in driver calls {1000 * statistics.mean(driver_s):.2f} ms per tick" if driver_s else ""
        print(
            f"{phase}: {name}: CPU {100 * share:.2f} % of a core, RSS {memory_mb(pid):.1f} MB, "
            f"scrape {1000 * statistics.median(scrapes):.2f} ms{in_driver}",
            flush=True,
        )


def main() -> None:
    """Measure work that is limited by power, and work that is limited by memory."""
    if sys.argv[1:2] == ["work"]:
        work(sys.argv[2])
        return
    if sys.argv[1:2] == ["beside"]:
        beside(float(sys.argv[2]) if len(sys.argv) > 2 else 30.0)
        return
    pairs, seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 12, float(sys.argv[2]) if len(sys.argv) > 2 else 4.0
    for kind in sys.argv[3:] or ("big", "vector"):
        compare(kind, pairs, seconds)


if __name__ == "__main__":
    main()
