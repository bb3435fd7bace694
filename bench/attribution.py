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

    def play(self, one: Any, every: int) -> list[tuple[float, dict[str, Shares]]]:
        """For each tick: its time in the recording, and the energy so far by estimator and pid."""
        later_s = self.now_s + BETWEEN_S - one["rows"][0]["t"] if self.now_s else 0.0
        who = truth.pids(one)
        seen = []
        kepler = dict.fromkeys(who, 0.0)
        for tick in h200.ticks(one, every, later_s=later_s):
            self.now_s = tick.time_ns / 1e9
            now = self.now_s - later_s
            for pid, mj in _kepler(one, now).items():
                kepler[pid] = kepler.get(pid, 0.0) + mj
            ours, by_time = self.ours.book(tick), self.by_time.book(tick)
            seen.append((now, {
                "equal": dict.fromkeys(who, now),
                "kepler": {pid: kepler[pid] for pid in who},
                "sm_time": _booked(by_time, who),
                "ours": _booked(ours, who),
            }))  # fmt: skip
        return seen


def _booked(tick: Tick, who: list[int]) -> Shares:
    """Energy above parked power in the books, by pid."""
    account = tick.accounts.get(tick.readings[0].device.uuid)
    assert account is not None
    assert account.residual_mj == 0
    rows = {use.resident.pid: dict(use.energy_mj) for use in tick.processes}
    return {pid: float(sum(rows.get(pid, {}).get(method, 0) for method in ESTIMATED)) for pid in who}


def _kepler(one: Any, now: float) -> Shares:
    """Power above idle, split by utilization at one instant; equal if the driver reports none."""
    rows = [row for row in one["rows"] if now - BUFFER_S < row["t"] <= now]
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


def score(one: Any, seen: list[tuple[float, dict[str, Shares]]], joules: truth.Joules, window_s: float) -> Score:
    """Split the working time into windows of about this length, at ticks."""
    begin = min(work["log"][0][0] for work in one["truth"])
    end = max(work["log"][-1][0] for work in one["truth"])
    inside = [step for step in seen if begin <= step[0] <= end]
    length = max(1, round(window_s / ((inside[-1][0] - inside[0][0]) / (len(inside) - 1))))
    edges = [inside[i] for i in range(0, len(inside), length)]
    if len(edges) == 1 or (len(inside) - 1) % length >= length / 2:
        edges.append(inside[-1])
    else:
        edges[-1] = inside[-1]  # a short remainder belongs to the previous window
    result = Score(one["name"], window_s)
    for (start, before), (stop, after) in pairwise(edges):
        true = _shares(truth.used(one, joules, start, stop))
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
    found = sorted(errors)
    at = -(-95 * len(found) // 100) - 1
    return {"mean": sum(found) / len(found), "p95": found[at], "worst": found[-1]}


def evaluate(recordings: list[Any], windows_s: Iterable[float], every: int = 10) -> tuple[list[Score], list[str]]:
    """Train, then score. Returns the scores and the recordings that could not be scored."""
    teachers = [one for one in recordings if len(truth.pids(one)) == 1]
    alone = [one for one in teachers if not one["name"].startswith("mps-")]
    joules = truth.joules_per_unit(alone)
    joules_mps = joules | truth.joules_per_unit([one for one in teachers if one["name"].startswith("mps-")])
    player = Player()
    for one in teachers:
        player.play(one, every)
    scores, left_out = [], []
    for one in recordings:
        if len(truth.pids(one)) < 2:
            continue
        each = joules_mps if one["name"].startswith("mps-") else joules
        missing = {truth.kind(work) for work in one["truth"]} - {*each, "hold"}
        if missing:
            left_out.append(f"{one['name']}: no recording of {', '.join(sorted(missing))} alone")
            continue
        seen = player.play(one, every)
        scores += [score(one, seen, each, window_s) for window_s in windows_s]
    return scores, left_out


def summary(scores: list[Score], window_s: float) -> dict[str, dict[str, float]]:
    """Errors by estimator, over all windows of this length."""
    chosen = [one for one in scores if one.window_s == window_s]
    return {name: figures(e for one in chosen for e in one.errors[name]) for name in ESTIMATORS}


def _tell(scores: list[Score], windows_s: list[float]) -> None:
    for window_s in windows_s:
        print(f"\nwindows of {window_s:g} s: mean error of a share, and the worst of ours")
        print(f"{'recording':44} {'windows':>7}" + "".join(f" {name:>8}" for name in ESTIMATORS) + f" {'worst':>8}")
        for one in scores:
            if one.window_s == window_s:
                means = "".join(f" {figures(one.errors[name])['mean']:8.3f}" for name in ESTIMATORS)
                worst = figures(one.errors["ours"])["worst"]
                print(f"{one.name:44} {len(one.errors['ours']):7}{means} {worst:8.3f}")
        for what in ("mean", "p95", "worst"):
            found = summary(scores, window_s)
            print(f"{'all: ' + what:52}" + "".join(f" {found[name][what]:8.3f}" for name in ESTIMATORS))


def _tell_shares(scores: list[Score]) -> None:
    print(f"{'recording':44} {'pid':>8} {'truth':>8} {'ours':>8} {'error':>8}   share of a whole recording")
    for one in scores:
        for pid, true in one.shares.get("truth", {}).items():
            ours = one.shares["ours"][pid]
            print(f"{one.name:44} {pid:8} {true:8.3f} {ours:8.3f} {ours - true:+8.3f}")


def _load(path: Path) -> Any:
    try:
        one = h200.load(path)
        truth.pids(one)
        one["rows"][0]["t_energy"], one["name"]
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path} is no recording: {type(error).__name__}: {error}") from None
    return one


def _seconds(text: str) -> float:
    if not 0 < float(text) < WHOLE_S:
        raise ValueError
    return float(text)


def main(words: list[str]) -> int:
    """Returns 1 if no recording could be scored."""
    asked = argparse.ArgumentParser(prog="python -m bench.attribution", description="error of energy shares")
    asked.add_argument("files", nargs="+", type=Path, metavar="FILE")
    asked.add_argument("--json", action="store_true", help="one JSON object as the last line")
    asked.add_argument("--window", type=_seconds, metavar="S", help="only this length, in seconds")
    asked.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw how many windows have at most which error")
    said = asked.parse_args(words)
    windows_s = [said.window] if said.window else list(WINDOWS_S)
    try:
        recordings = [_load(path) for path in dict.fromkeys(said.files)]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    scores, left_out = evaluate(recordings, [*windows_s, WHOLE_S])
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    if not scores:
        print("nothing to compare: name recordings of processes together, and of each alone", file=sys.stderr)
        return 1
    shown_s = said.window or SHOWN_S
    _tell_shares([one for one in scores if one.window_s == WHOLE_S])
    _tell(scores, windows_s)
    errors = {name: [e for one in scores if one.window_s == shown_s for e in one.errors[name]] for name in ESTIMATORS}
    print(f"\nhow many windows of {shown_s:g} s have at most which error\n{plot.text(errors)}")
    if said.plot:
        said.plot.write_text(plot.svg(errors, f"Error of a process's share of energy, windows of {shown_s:g} s"))
    if said.json:
        print(json.dumps({
            "window_s": shown_s,
            "summary": summary(scores, shown_s),
            "windows": {f"{window_s:g}": summary(scores, window_s) for window_s in windows_s},
            "recordings": {
                one.name: {name: figures(one.errors[name]) for name in ESTIMATORS}
                for one in scores if one.window_s == shown_s
            },
            "left_out": left_out,
        }))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
