"""`python -m bench.attribution [--json] [--window S] [--plot FILE.svg] FILE...`: error of the energy shares.

The files are recordings as in tests/data/h200. Recordings of one process are replayed first, as training data; they
also give the energy above parked power per unit of work, e_k. Recordings of several processes are scored. The true
share of process i, which did n_i units of work of kind k(i), is n_i e_k(i) / sum_j n_j e_k(j). It is accurate to about
10 %, because clocks differ between exclusive and shared use.

All recordings are replayed one after another through the same books, one tick per second, so that fingerprints use
only earlier data. The kind of work identifies a workload; `big@0.3` is `big` with another load, like the same image.

Each recording is split into windows. The error of a window is the largest error of any process's share.
- `equal`: equal shares
- `kepler`: Kepler's formula, power above idle by utilization, at every tick (Kepler reads every 5 s). The utilization
  is the driver's mean over its whole buffer, because Kepler requests all samples
- `sm_time`: gpuledger with --energy.method=sm_time
- `ours`: gpuledger with default settings
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench import plot, truth
from tests import h200

from gpuledger.books.book import Books
from gpuledger.books.interval import Policy
from gpuledger.model import Tick

ESTIMATED = ("sm_time", "mps", "mig", "fingerprint", "edge")
"""Methods for energy above parked power."""
ESTIMATORS = ("equal", "kepler", "sm_time", "ours")
WINDOWS_S = (2.0, 5.0, 15.0, 60.0)
WHOLE_S = 1e9
"""Window length that covers a whole recording."""
SHOWN_S = 5.0
"""Default window length of the summary, in seconds."""
BETWEEN_S = 30.0
BUFFER_S = 10.0
IDLE_MW = 80_000
"""Idle power of the recorded GPU in watts. All estimators use it, so it hardly affects the shares."""

Shares = dict[int, float]


@dataclass
class Player:
    """Replays recordings one after another through the same books."""

    now_s: float = 0.0
    ours: Books = field(default_factory=Books)
    by_time: Books = field(default_factory=lambda: Books(policy=Policy(method="sm_time")))

    def play(self, recording: Any, every: int) -> list[tuple[float, dict[str, Shares]]]:
        """For each tick: its time in the recording, and the energy so far by estimator and pid."""
        later_s = self.now_s + BETWEEN_S - recording["rows"][0]["t"] if self.now_s else 0.0
        pids = truth.pids(recording)
        steps = []
        kepler = dict.fromkeys(pids, 0.0)
        for tick in h200.ticks(recording, every, later_s=later_s):
            self.now_s = tick.time_ns / 1e9
            now = self.now_s - later_s
            for pid, mj in _kepler(recording, now).items():
                kepler[pid] = kepler.get(pid, 0.0) + mj
            ours, by_time = self.ours.book(tick), self.by_time.book(tick)
            steps.append((now, {
                "equal": dict.fromkeys(pids, now),
                "kepler": {pid: kepler[pid] for pid in pids},
                "sm_time": _booked(by_time, pids),
                "ours": _booked(ours, pids),
            }))  # fmt: skip
        return steps


def _booked(tick: Tick, pids: list[int]) -> Shares:
    """Energy above parked power in the books, by pid."""
    account = tick.accounts.get(tick.readings[0].device.uuid)
    assert account is not None
    assert account.residual_mj == 0
    rows = {use.resident.pid: dict(use.energy_mj) for use in tick.processes}
    return {pid: float(sum(rows.get(pid, {}).get(method, 0) for method in ESTIMATED)) for pid in pids}


def _kepler(recording: Any, now: float) -> Shares:
    """Power above idle, split by utilization at one instant; equal if the driver reports none."""
    rows = [row for row in recording["rows"] if now - BUFFER_S < row["t"] <= now]
    pct: Shares = {}
    for pid, _, sm_pct, _ in (sample for row in rows for sample in row.get("proc_util") or ()):
        pct[pid] = pct.get(pid, 0.0) + sm_pct
    if not any(pct.values()):
        pct = {pid: 1.0 for pid, _ in rows[-1]["procs"]}
    active_mw = max(0, rows[-1]["power_mw"] - IDLE_MW)
    return {pid: active_mw * part / (sum(pct.values()) or 1.0) for pid, part in pct.items()}


@dataclass
class Score:
    """Error of each window by estimator, for one recording and window length."""

    name: str
    window_s: float
    errors: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in ESTIMATORS})
    shares: dict[str, Shares] = field(default_factory=dict)
    """Shares in the last window, by estimator and `truth`."""


def score(recording: Any, steps: list[tuple[float, dict[str, Shares]]], joules: truth.Joules, window_s: float) -> Score:
    """Split the working time into windows of about this length, at ticks."""
    begin = min(work["log"][0][0] for work in recording["truth"])
    end = max(work["log"][-1][0] for work in recording["truth"])
    inside = [step for step in steps if begin <= step[0] <= end]
    length = max(1, round(window_s / ((inside[-1][0] - inside[0][0]) / (len(inside) - 1))))
    edges = [inside[i] for i in range(0, len(inside), length)]
    if len(edges) == 1 or (len(inside) - 1) % length >= length / 2:
        edges.append(inside[-1])
    else:
        edges[-1] = inside[-1]  # a short remainder belongs to the previous window
    result = Score(recording["name"], window_s)
    for (start, before), (stop, after) in pairwise(edges):
        true = _shares(truth.used(recording, joules, start, stop))
        if true is None:
            continue
        result.shares = {"truth": true}
        for name in ESTIMATORS:
            got = _shares({pid: after[name][pid] - before[name][pid] for pid in true}) or dict.fromkeys(true, 0.0)
            result.shares[name] = got
            result.errors[name].append(max(abs(got[pid] - true[pid]) for pid in true))
    return result


def _shares(parts: Mapping[int, float]) -> Shares | None:
    whole = sum(parts.values())
    return {pid: part / whole for pid, part in parts.items()} if whole > 0 else None


def figures(errors: Iterable[float]) -> dict[str, float]:
    """Mean, 95th percentile (nearest rank) and maximum."""
    ordered = sorted(errors)
    at = -(-95 * len(ordered) // 100) - 1
    return {"mean": sum(ordered) / len(ordered), "p95": ordered[at], "worst": ordered[-1]}


def evaluate(recordings: list[Any], windows_s: Iterable[float], every: int = 10) -> tuple[list[Score], list[str]]:
    """Train, then score. Returns the scores and the recordings that could not be scored."""
    teachers = [recording for recording in recordings if len(truth.pids(recording)) == 1]
    alone = [recording for recording in teachers if not recording["name"].startswith("mps-")]
    joules = truth.joules_per_unit(alone)
    joules_mps = joules | truth.joules_per_unit(
        [recording for recording in teachers if recording["name"].startswith("mps-")]
    )
    player = Player()
    for recording in teachers:
        player.play(recording, every)
    scores, left_out = [], []
    for recording in recordings:
        if len(truth.pids(recording)) < 2:
            continue
        each = joules_mps if recording["name"].startswith("mps-") else joules
        missing = {truth.kind(work) for work in recording["truth"]} - {*each, "hold"}
        if missing:
            left_out.append(f"{recording['name']}: no recording of {', '.join(sorted(missing))} alone")
            continue
        steps = player.play(recording, every)
        scores += [score(recording, steps, each, window_s) for window_s in windows_s]
    return scores, left_out


def summary(scores: list[Score], window_s: float) -> dict[str, dict[str, float]]:
    """Errors by estimator, over all windows of this length."""
    chosen = [entry for entry in scores if entry.window_s == window_s]
    return {name: figures(e for entry in chosen for e in entry.errors[name]) for name in ESTIMATORS}


def _tell(scores: list[Score], windows_s: list[float]) -> None:
    for window_s in windows_s:
        print(f"\nwindows of {window_s:g} s: mean error of a share, and the largest error of gpuledger")
        print(f"{'recording':44} {'windows':>7}" + "".join(f" {name:>8}" for name in ESTIMATORS) + f" {'worst':>8}")
        for entry in scores:
            if entry.window_s == window_s:
                means = "".join(f" {figures(entry.errors[name])['mean']:8.3f}" for name in ESTIMATORS)
                worst = figures(entry.errors["ours"])["worst"]
                print(f"{entry.name:44} {len(entry.errors['ours']):7}{means} {worst:8.3f}")
        for what in ("mean", "p95", "worst"):
            totals = summary(scores, window_s)
            print(f"{'all: ' + what:52}" + "".join(f" {totals[name][what]:8.3f}" for name in ESTIMATORS))


def _tell_shares(scores: list[Score]) -> None:
    print(f"{'recording':44} {'pid':>8} {'truth':>8} {'ours':>8} {'error':>8}   share of a whole recording")
    for entry in scores:
        for pid, true in entry.shares.get("truth", {}).items():
            ours = entry.shares["ours"][pid]
            print(f"{entry.name:44} {pid:8} {true:8.3f} {ours:8.3f} {ours - true:+8.3f}")


def _load(path: Path) -> Any:
    try:
        recording = h200.load(path)
        truth.pids(recording)
        recording["rows"][0]["t_energy"], recording["name"]
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path} is no recording: {type(error).__name__}: {error}") from None
    return recording


def _seconds(text: str) -> float:
    if not 0 < float(text) < WHOLE_S:
        raise ValueError
    return float(text)


def main(words: list[str]) -> int:
    """Returns 1 if no recording could be scored."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.attribution", description="Measure the error of energy shares."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--window", type=_seconds, metavar="S", help="use only this window length, in seconds")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="write a plot of the error distribution")
    arguments = parser.parse_args(words)
    windows_s = [arguments.window] if arguments.window else list(WINDOWS_S)
    try:
        recordings = [_load(path) for path in dict.fromkeys(arguments.files)]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    scores, left_out = evaluate(recordings, [*windows_s, WHOLE_S])
    for line in left_out:
        print(f"skipped: {line}", file=sys.stderr)
    if not scores:
        print(
            "no recording can be scored; pass recordings of several processes, and of each process alone",
            file=sys.stderr,
        )
        return 1
    shown_s = arguments.window or SHOWN_S
    _tell_shares([entry for entry in scores if entry.window_s == WHOLE_S])
    _tell(scores, windows_s)
    errors = {
        name: [e for entry in scores if entry.window_s == shown_s for e in entry.errors[name]] for name in ESTIMATORS
    }
    print(f"\nshare of windows of {shown_s:g} s with at most this error\n{plot.text(errors)}")
    if arguments.plot:
        arguments.plot.write_text(plot.svg(errors, f"Error of a process's share of energy, windows of {shown_s:g} s"))
    if arguments.json:
        print(json.dumps({
            "window_s": shown_s,
            "summary": summary(scores, shown_s),
            "windows": {f"{window_s:g}": summary(scores, window_s) for window_s in windows_s},
            "recordings": {
                entry.name: {name: figures(entry.errors[name]) for name in ESTIMATORS}
                for entry in scores if entry.window_s == shown_s
            },
            "left_out": left_out,
        }))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
