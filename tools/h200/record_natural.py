"""On a machine with a GPU: record natural programs that come, pause and go, with the energy of their work.

    python tools/h200/record_natural.py FOLDER [--only NAME,...] [--list]
    python tools/h200/record_natural.py FOLDER --convert

First records each kind of program alone (`solo-*`), then timelines of 3 to 5 minutes (`nat-*`), in the format of
tests/data/h200/README.md, with the driver's power samples. At the end the counts of units in all logs are converted to
joules by what each unit needed alone (bench/joules.py). `--convert` does only that. Needs PyTorch, pynvml and
the PID namespace of the host. Does not change clocks, limits or modes of the GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[2]))  # for bench

from bench import joules
from bench.truth import Counter

PROGRAM = Path(__file__).with_name("natural_programs.py")
PERIOD_S = 0.1
EARLY_S = 25.0
"""How long before its work a program starts: it imports PyTorch, loads and waits."""
RESTED_S = 3.0, 0.5
"""Parked power is measured from and until so long before the first work, while the first programs wait."""
TAIL_S = 3.0
LATE_S = 30.0
"""Most time to wait for the log of a program."""
ON_TIME_S = 0.5
"""A program that begins later than this has loaded for too long."""
ALONE_S = 24.0


@dataclass(frozen=True, slots=True)
class Play:
    """A program, and when it works."""

    kind: str
    begin: float
    end: float


TIMELINES: dict[str, tuple[Play, ...]] = {
    "nat-batching-finetune": (Play("batching", 0, 240), Play("finetune", 30, 200)),
    "nat-video-rl-frames": (Play("video", 0, 220), Play("rl", 20, 240), Play("frames", 50, 240)),
    "nat-two-equal-servers": (Play("batching", 0, 240), Play("batching", 25, 210)),
    "nat-two-equal-trainings": (Play("finetune", 0, 180), Play("finetune", 0, 200)),
    "nat-begin-together": (Play("finetune", 0, 200), Play("rl", 0, 180), Play("video", 0, 200)),
    "nat-never-alone": (Play("batching", 0, 180), Play("frames", 0, 180)),
    "nat-five": (
        Play("batching", 0, 280), Play("finetune", 20, 160), Play("rl", 40, 280), Play("video", 70, 230),
        Play("frames", 100, 280),
    ),
    "nat-short-jobs": (Play("finetune", 0, 200), *(Play("frames", 10 + 18 * job, 22 + 18 * job) for job in range(10))),
}  # fmt: skip


def alone(kind: str) -> str:
    """The name of the recording of a kind of program alone."""
    return f"solo-{kind}"


class Programs:
    """Starts programs when they are due, and receives their logs."""

    def __init__(self, plays: Sequence[Play], *, steady: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._waiting = sorted(enumerate(plays), key=lambda entry: entry[1].begin)
        self._steady = steady
        self._running: list[tuple[Play, subprocess.Popen[bytes], Path]] = []

    def load(self) -> None:
        """Nothing: each program loads by itself, EARLY_S before its work."""

    def start(self, time_0: float) -> None:
        """Start the programs that work soon."""
        while self._waiting and time.time() >= time_0 + self._waiting[0][1].begin - EARLY_S:
            number, play = self._waiting.pop(0)
            out = Path(self._folder.name) / f"{number}.json"
            words = [play.kind, str(time_0 + play.begin), str(play.end - play.begin), str(out), f"--seed={number + 1}"]
            words += ["--steady"] if self._steady else []
            process = subprocess.Popen([sys.executable, str(PROGRAM), *words])
            self._running.append((play, process, out))

    def logs(self) -> Iterator[dict[str, Any]]:
        """Logs of the programs that have finished since the last call."""
        for entry in list(self._running):
            play, process, out = entry
            if process.poll() is not None:
                self._running.remove(entry)
                if process.returncode or not out.exists():
                    raise RuntimeError(f"{play.kind} failed with {process.returncode}: see the output above")
                yield json.loads(out.read_text())

    def pids(self) -> set[int]:
        """Pids of the running programs."""
        return {process.pid for _, process, _ in self._running}

    def finished(self) -> bool:
        """Whether all programs have written their logs."""
        return not self._waiting and not self._running

    def kill(self) -> None:
        """Kill all programs."""
        for _, process, _ in self._running:
            process.kill()
            process.wait()
        self._folder.cleanup()


def record(row: Callable[[], dict[str, Any]], name: str, plays: Sequence[Play]) -> dict[str, Any]:
    """Record one timeline; `row` takes one reading."""
    programs = Programs(plays, steady=name.startswith("solo-"))
    first = time.time()
    start = first + EARLY_S
    end = max(play.end for play in plays)
    rows: list[dict[str, Any]] = []
    truth: list[dict[str, Any]] = []
    try:
        while time.time() < start + end + TAIL_S or not programs.finished():
            if time.time() > start + end + LATE_S:
                raise RuntimeError(f"programs {sorted(programs.pids())} did not end")
            programs.start(start)
            truth += programs.logs()
            rows.append(row())
            time.sleep(max(0.0, first + len(rows) * PERIOD_S - time.time()))
    finally:
        programs.kill()
    listed = {pid for row in rows for pid, _ in row["procs"]}
    if missing := {line["pid"] for line in truth} - listed:
        raise RuntimeError(f"the driver does not list {missing}: run in its PID namespace")
    for line in truth:
        if (late_s := line["log"][0][0] - line["due"]) > ON_TIME_S:
            print(f"  {line['kind']} began {late_s:.1f} s late", flush=True)
    recording = {"name": name, "start": start, "dur": end, "truth": truth, "rows": rows}
    return recording | {"parked_w": parked_w(recording)}


def parked_w(recording: dict[str, Any]) -> float:
    """Power while the first programs wait for time 0, by the energy counter."""
    begin = min(line["log"][0][0] for line in recording["truth"])
    since_s, until_s = (begin - before_s for before_s in RESTED_S)
    return float(Counter.of(recording).between(since_s, until_s) / (until_s - since_s))


def convert(folder: Path) -> bool:
    """Convert the logs of all recordings in a folder to joules; returns whether all could be converted."""
    paths = sorted(folder.glob("*.json.gz"))
    recordings = {path: counted(json.loads(gzip.decompress(path.read_bytes()))) for path in paths}
    rates = joules.rates(recording for path, recording in recordings.items() if path.name.startswith("solo-"))
    for kind, units in rates.items():
        print(f"{kind}: " + ", ".join(f"{unit} {1000 * rate.joules:.3g} mJ" for unit, rate in units.items()))
    complete = True
    for path, recording in recordings.items():
        try:
            converted = joules.in_joules(recording, rates)
        except ValueError as error:
            print(error)
            complete = False
            continue
        print(f"{converted['name']}: the work explains {joules.explained(converted):.2f} of the energy")
        write(path, converted)
    return complete


def counted(recording: dict[str, Any]) -> dict[str, Any]:
    """A recording with counts in its logs, also if it was converted before."""
    truth = [{**line, "log": line.get("units", line["log"])} for line in recording["truth"]]
    return {**recording, "truth": truth}


def write(path: Path, recording: dict[str, Any]) -> None:
    """Write a recording; the same recording gives the same bytes."""
    path.write_bytes(gzip.compress(json.dumps(recording, separators=(",", ":")).encode(), 9, mtime=0))


def scenarios() -> dict[str, tuple[Play, ...]]:
    """All recordings by name; those of one program first."""
    kinds = dict.fromkeys(play.kind for plays in TIMELINES.values() for play in plays)
    return {alone(kind): (Play(kind, 0, ALONE_S),) for kind in kinds} | TIMELINES


def _record_all(folder: Path, names: Sequence[str]) -> int:
    """Record by name; returns how many failed."""
    import naturalreader
    import pynvml

    folder.mkdir(parents=True, exist_ok=True)
    reader = naturalreader.Reader()
    failed = 0
    for name in names:
        print(f"{name} ...", flush=True)
        reader.begin()
        try:
            write(folder / f"{name}.json.gz", record(reader.row, name, scenarios()[name]))
        except (RuntimeError, pynvml.NVMLError) as error:
            print(f"  failed: {error!r}", flush=True)
            failed += 1
    return failed


def main(words: list[str]) -> int:
    """Record all scenarios or the selected ones, and convert their logs."""
    parser = argparse.ArgumentParser(description="record natural programs")
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--only", default="", help="comma-separated names")
    parser.add_argument("--list", action="store_true", help="print all names and how long they take")
    parser.add_argument("--convert", action="store_true", help="only convert the logs in the folder to joules")
    asked = parser.parse_args(words)
    names = asked.only.split(",") if asked.only else list(scenarios())
    if unknown := set(names) - set(scenarios()):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; use --list")
    if asked.list or asked.folder is None:
        for name in names:
            seconds = EARLY_S + max(play.end for play in scenarios()[name]) + TAIL_S
            print(f"{name} ({seconds:.0f} s)")
        return 0
    failed = 0 if asked.convert else _record_all(asked.folder, names)
    return 0 if convert(asked.folder) and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
