"""`python -m bench.attribution [--json] [--window S] --solo FILE... --timeline FILE...`: error of the energy shares.

The files are recordings as in tests/data/h200; the truth is the work that each process did times its energy per unit of
work (`bench/truth.py`), which is accurate to about 10 %, because clocks differ between exclusive and shared use.

- `--timeline`: processes that come and go. Each timeline is replayed through fresh books, so nothing is known in
  advance. Windows count if at least two processes work in them and none arrives or leaves. The energy per unit comes
  from the process's time alone in the same timeline, else from the `--solo` recordings.
- `--mig`: the same for recordings of MIG instances. The error is the part of the energy that is booked to a wrong one.
- `FILE...` without an option: every process was observed alone before. Recordings of one process are replayed first,
  through the same books; recordings of several processes are scored.

One tick per second is replayed. The error of a window is the largest error of any process's share.
- `equal`: equal shares of the working processes
- `kepler`: Kepler's formula, power above idle by utilization, at every tick (Kepler reads every 5 s). The utilization
  is the driver's mean over its whole buffer, because Kepler requests all samples
- `sm_time`: gpuledger with --energy.method=sm_time
- `ours`: gpuledger with default settings. `covered` is the part of the shares that are at most one published error
  from the truth
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench import plot, truth
from tests import h200

from gpuledger.books import Books
from gpuledger.driver.rounds import Plan, Rounds
from gpuledger.ledger.split import Policy
from gpuledger.model import DIVIDED, Activity, Tick

ESTIMATED = ("sm_time", "mps", "mig", "fingerprint", "edge")
"""Methods for energy above parked power."""
ESTIMATORS = ("equal", "kepler", "sm_time", "ours")
WINDOWS_S = (2.0, 5.0, 15.0, 60.0)
WHOLE_S = 1e9
"""Window length that covers a whole recording."""
SHOWN_S = 5.0
"""Default window length of the summary, in seconds."""
BETWEEN_S = 30.0
MIG_SAMPLE_S = 0.015
"""Time of a GPM sample with two MIG instances."""
BUFFER_S = 10.0
ROUNDING_S = 0.001
"""Times in seconds and in nanoseconds differ by less."""
IDLE_MW = 80_000
"""Idle power of the recorded GPU in watts. All estimators use it, so it hardly affects the shares."""

Shares = dict[int, float]
ACTIVITY = {"sm": "2", "tensor": "5", "dram": "10"}
"""The scored activities, and their metrics of GPM."""
DEVICE = -1


@dataclass(frozen=True, slots=True)
class Step:
    """The books after one tick."""

    time_s: float
    """In the time of the recording."""
    joules: dict[str, Shares]
    """Energy above parked power so far, by estimator and pid."""
    errors: Shares
    """Published errors of the shares, by pid."""
    active_s: dict[str, Shares] = field(default_factory=dict)
    """Activity x time so far, by unit and pid; that of the whole device under the pid DEVICE."""


@dataclass
class Player:
    """Replays recordings one after another through the same books."""

    now_s: float = 0.0
    counter_mj: int = 0
    """Where the counter of the next recording continues; it would jump otherwise."""
    ours: Books = field(default_factory=Books)
    by_time: Books = field(default_factory=lambda: Books(policy=Policy(method="sm_time")))

    def play(self, recording: Any, every: int = 10) -> list[Step]:
        """Replay a recording of a whole GPU."""
        later_s = self.now_s + BETWEEN_S - recording["rows"][0]["t"] if self.now_s else 0.0
        ticks = h200.ticks(recording, every, later_s=later_s)
        return self._steps(recording, ticks, later_s, lambda now: _kepler(recording, now))

    def play_mig(self, recording: Any) -> list[Step]:
        """Replay a recording of MIG instances. Kepler splits equally there: the driver has no samples."""
        pids = truth.pids(recording)
        ticks = _in_rounds(h200.mig_ticks(recording))
        return self._steps(recording, ticks, 0.0, lambda _: dict.fromkeys(pids, 1.0))

    def _steps(
        self, recording: Any, ticks: Iterable[Tick], later_s: float, kepler_mj: Callable[[float], Shares]
    ) -> list[Step]:
        pids = truth.pids(recording)
        steps: list[Step] = []
        kepler = dict.fromkeys(pids, 0.0)
        active_s: dict[str, Shares] = {unit: dict.fromkeys((*pids, DEVICE), 0.0) for unit in ACTIVITY}
        earlier_mj = self.counter_mj - recording["rows"][0]["energy_mj"]
        for original in ticks:
            gpu, *instances = original.readings
            self.counter_mj = (gpu.energy_mj or 0) + earlier_mj
            tick = replace(original, readings=(replace(gpu, energy_mj=self.counter_mj), *instances))
            seconds = tick.time_ns / 1e9 - self.now_s if steps else 0.0
            self.now_s = tick.time_ns / 1e9
            now = self.now_s - later_s
            for pid, mj in kepler_mj(now).items():
                kepler[pid] = kepler.get(pid, 0.0) + mj
            ours, by_time = self.ours.book(tick), self.by_time.book(tick)
            joules = {
                "equal": dict.fromkeys(pids, now),
                "kepler": {pid: kepler[pid] for pid in pids},
                "sm_time": _booked(by_time, pids),
                "ours": _booked(ours, pids),
            }
            errors = {
                use.resident.pid: use.energy_share_error for use in ours.processes if use.energy_share_error is not None
            }
            active_s = {unit: _active_s(unit, ours, before, seconds) for unit, before in active_s.items()}
            steps.append(Step(now, joules, errors, active_s))
        return steps


def _in_rounds(ticks: Iterable[Tick]) -> Iterator[Tick]:
    """Ticks with the activity of MIG instances as the exporter measures it; the recording has it for every second."""
    rounds, plan = Rounds(), Plan(at_once=True, late=False, outdated=False)
    since: dict[str, list[Activity]] = {}
    measured: dict[str, Activity | None] = {}
    for tick in ticks:
        gpu, *instances = tick.readings
        since = {} if plan.at_once else since
        for reading in instances:
            uuid = reading.device.uuid
            since.setdefault(uuid, []).extend([reading.activity] if reading.activity else [])
            if plan.late:
                measured[uuid], since[uuid] = _mean(since[uuid]), []
        is_held = not plan.late
        processes = {r.device.uuid: frozenset(resident.pid for resident in r.residents or ()) for r in instances}
        plan = rounds.plan(processes, gpu.power_mw, len(instances) * MIG_SAMPLE_S, tick.time_ns / 1e9)
        yield replace(tick, readings=(gpu, *(
            replace(r, activity=measured.get(r.device.uuid), activity_held=is_held, activity_outdated=plan.outdated)
            for r in instances
        )))  # fmt: skip


def _mean(activities: list[Activity]) -> Activity | None:
    """The activity over several seconds."""
    if not activities:
        return None
    names = [unit.name for unit in fields(Activity) if getattr(activities[0], unit.name) is not None]
    return Activity(**{name: sum(getattr(a, name) for a in activities) / len(activities) for name in names})


def _booked(tick: Tick, pids: list[int]) -> Shares:
    """Energy above parked power in the books, by pid."""
    account = tick.accounts.get(tick.readings[0].device.uuid)
    assert account is not None
    assert account.residual_mj == 0
    rows = {use.resident.pid: dict(use.energy_mj) for use in tick.processes}
    return {pid: float(sum(rows.get(pid, {}).get(method, 0) for method in ESTIMATED)) for pid in pids}


def _active_s(unit: str, tick: Tick, before: Shares, seconds: float) -> Shares:
    """The activity of one unit x time, with that of this tick."""
    number = DIVIDED.index(f"{unit}_pct")
    pct = {use.resident.pid: use.activity.pct[number] for use in tick.processes if use.activity}
    whole = tick.readings[0].activity
    pct[DEVICE] = getattr(whole, f"{unit}_pct") if whole is not None else 0.0
    return {pid: total + (pct.get(pid) or 0.0) / 100 * seconds for pid, total in before.items()}


def _kepler(recording: Any, now: float) -> Shares:
    """Power above idle, split by utilization at one instant; equal if the driver reports none."""
    rows = [row for row in recording["rows"] if now - BUFFER_S < row["t"] <= now + ROUNDING_S]
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
    ratios: list[float] = field(default_factory=list)
    """Error of a share over its published error, for each process and window."""
    activity: dict[str, list[float]] = field(default_factory=lambda: {unit: [] for unit in ACTIVITY})
    """Error of the activity of each window, by unit: the largest of any process."""
    copied: dict[str, list[float]] = field(default_factory=lambda: {unit: [] for unit in ACTIVITY})
    """The same if every process gets the activity of the device, as dcgm-exporter does."""
    activity_ratios: list[float] = field(default_factory=list)
    """Error of a share of the SM activity over its published error, for each process and window."""
    unknown: int = 0
    """Windows in which the work does not explain the energy, so that the truth is unknown."""

    def add(self, steps: list[Step], used: Mapping[int, float], measure: Callable[[list[float]], float] = max) -> None:
        """Add one window; `used` is the true energy, `measure` combines the errors of all shares."""
        true = _shares(used)
        if true is None:
            return
        before, after = steps[0].joules, steps[-1].joules
        self.shares = {"truth": true}
        for name in ESTIMATORS:
            shares = _shares({pid: after[name][pid] - before[name][pid] for pid in true}) or dict.fromkeys(true, 0.0)
            self.shares[name] = shares
            self.errors[name].append(measure([abs(shares[pid] - true[pid]) for pid in true]))
        for pid in true:
            published = [step.errors[pid] for step in steps[1:] if pid in step.errors]
            if published:
                mean = sum(published) / len(published)
                self.ratios.append(abs(self.shares["ours"][pid] - true[pid]) / max(mean, 1e-9))

    def add_activity(self, steps: list[Step], active: Mapping[str, Mapping[int, float]]) -> None:
        """Add the activity of one window; `active` is the true activity, of which only the proportions are used."""
        first, last = steps[0], steps[-1]
        seconds = last.time_s - first.time_s
        for unit, of_unit in active.items():
            whole = (last.active_s[unit][DEVICE] - first.active_s[unit][DEVICE]) / seconds
            true = _shares(of_unit)
            if true is None or not whole:
                continue
            ours = {pid: (last.active_s[unit][pid] - first.active_s[unit][pid]) / seconds for pid in true}
            self.activity[unit].append(max(abs(ours[pid] - true[pid] * whole) for pid in true))
            self.copied[unit].append(max(abs(whole - true[pid] * whole) for pid in true))
            for pid in true if unit == "sm" else ():
                published = [step.errors[pid] for step in steps[1:] if pid in step.errors]
                if published:
                    error = abs(ours[pid] / whole - true[pid])
                    self.activity_ratios.append(error / max(sum(published) / len(published), 1e-9))


def score(recording: Any, steps: list[Step], joules: Mapping[str, truth.Joules], window_s: float) -> Score:
    """Split the working time into windows of about this length, at ticks."""
    begin = min(work["log"][0][0] for work in recording["truth"])
    end = max(work["log"][-1][0] for work in recording["truth"])
    result = Score(recording["name"], window_s)
    for window in windows([step for step in steps if begin <= step.time_s <= end], window_s):
        span = window[0].time_s, window[-1].time_s
        result.add(window, truth.used(recording, joules[""], *span))
        result.add_activity(window, {unit: truth.used(recording, joules[unit], *span) for unit in ACTIVITY})
    return result


def score_timeline(
    timeline: truth.Timeline,
    steps: list[Step],
    window_s: float,
    measure: Callable[[list[float]], float] = max,
    activity: Mapping[str, truth.Timeline] | None = None,
) -> Score:
    """Windows in which at least two processes work and none arrives or leaves; `activity` has the truth by unit."""
    result = Score(timeline.name, window_s)
    for phase in timeline.phases:
        inside = [step for step in steps if phase.begin <= step.time_s <= phase.end]
        if len(phase.working) < 2 or len(inside) < 2 or inside[-1].time_s - inside[0].time_s < window_s / 2:
            continue
        for window in windows(inside, window_s):
            span = window[0].time_s, window[-1].time_s
            used = timeline.used(*span)
            if not timeline.adds_up(used, *span):
                result.unknown += 1
                continue
            result.add(window, {pid: used[pid] for pid in phase.working}, measure)
            active = {unit: of_unit.used(*span) for unit, of_unit in (activity or {}).items()}
            working = {unit: {pid: of[pid] for pid in phase.working} for unit, of in active.items()}
            result.add_activity(window, working)
    return result


def windows(steps: list[Step], window_s: float) -> list[list[Step]]:
    """Consecutive windows of about this length; both ends are included. A short remainder extends the last one."""
    if len(steps) < 2:
        return []
    length = max(1, round(window_s / ((steps[-1].time_s - steps[0].time_s) / (len(steps) - 1))))
    edges = list(range(0, len(steps), length))
    if len(edges) == 1 or (len(steps) - 1) % length >= length / 2:
        edges.append(len(steps) - 1)
    else:
        edges[-1] = len(steps) - 1
    return [steps[first : last + 1] for first, last in pairwise(edges)]


def _shares(parts: Mapping[int, float]) -> Shares | None:
    whole = sum(parts.values())
    return {pid: part / whole for pid, part in parts.items()} if whole > 0 else None


def wrong(errors: list[float]) -> float:
    """The part of the energy that is booked to a wrong process: half of the sum of all errors."""
    return sum(errors) / 2


def figures(errors: Iterable[float]) -> dict[str, float]:
    """Mean, 95th percentile (nearest rank) and maximum."""
    ordered = sorted(errors)
    at = -(-95 * len(ordered) // 100) - 1
    return {"mean": sum(ordered) / len(ordered), "p95": ordered[at], "worst": ordered[-1]}


Evaluation = tuple[list[Score], list[str]]
"""Scores, and why other recordings could not be scored."""


def evaluate(recordings: list[Any], windows_s: Iterable[float], every: int = 10) -> Evaluation:
    """Replay recordings of one process, then score recordings of several."""
    teachers = [recording for recording in recordings if len(truth.pids(recording)) == 1]
    alone = [recording for recording in teachers if not recording["name"].startswith("mps-")]
    mps = [recording for recording in teachers if recording["name"].startswith("mps-")]
    keys = {"": "", **ACTIVITY}
    joules = {unit: truth.joules_per_unit(alone, key) for unit, key in keys.items()}
    joules_mps = {unit: joules[unit] | truth.joules_per_unit(mps, key) for unit, key in keys.items()}
    player = Player()
    for recording in teachers:
        player.play(recording, every)
    scores, left_out = [], []
    for recording in recordings:
        if len(truth.pids(recording)) < 2:
            continue
        each = joules_mps if recording["name"].startswith("mps-") else joules
        missing = {truth.kind(work) for work in recording["truth"]} - {*each[""], "hold"}
        if missing:
            left_out.append(f"{recording['name']}: no recording of {', '.join(sorted(missing))} alone")
            continue
        steps = player.play(recording, every)
        scores += [score(recording, steps, each, window_s) for window_s in windows_s]
    return scores, left_out


def evaluate_timelines(solo: list[Any], recordings: list[Any], windows_s: Iterable[float]) -> Evaluation:
    """Score timelines, each with fresh books. MIG recordings have no utilization of the GPU in their rows."""
    joules = truth.joules_per_unit(solo)
    of_unit = {unit: truth.joules_per_unit(solo, key) for unit, key in ACTIVITY.items()}
    scores, left_out = [], []
    for recording in recordings:
        timeline = truth.Timeline(recording, joules)
        if missing := timeline.missing():
            left_out.append(f"{timeline.name}: energy per unit of {', '.join(missing)} is unknown or varies")
            continue
        is_mig = "instances" in recording["rows"][0]
        steps = Player().play_mig(recording) if is_mig else Player().play(recording)
        measure = wrong if is_mig else max
        activity = {} if is_mig else {
            unit: truth.Timeline(recording, of_unit[unit], key) for unit, key in ACTIVITY.items()
        }  # fmt: skip
        found = [score_timeline(timeline, steps, window_s, measure, activity) for window_s in windows_s]
        scores += [entry for entry in found if entry.errors["ours"]]
        if not any(entry.errors["ours"] for entry in found):
            left_out.append(f"{timeline.name}: at no time did two processes work and none arrive or leave")
    return scores, left_out


def summary(scores: list[Score], window_s: float) -> dict[str, dict[str, float]]:
    """Errors by estimator, over all windows of this length."""
    chosen = [entry for entry in scores if entry.window_s == window_s]
    return {name: figures(e for entry in chosen for e in entry.errors[name]) for name in ESTIMATORS}


def covered(scores: list[Score], window_s: float) -> float | None:
    """The part of the shares that are at most one published error from the truth."""
    ratios = [ratio for entry in scores if entry.window_s == window_s for ratio in entry.ratios]
    return sum(ratio <= 1 for ratio in ratios) / len(ratios) if ratios else None


def _print(scores: list[Score], windows_s: list[float]) -> None:
    for window_s in windows_s:
        chosen = [entry for entry in scores if entry.window_s == window_s]
        print(f"\nwindows of {window_s:g} s: mean error of a share; worst and covered of gpuledger")
        titles = (*ESTIMATORS, "worst", "covered")
        print(f"{'recording':44} {'windows':>7}" + "".join(f" {name:>8}" for name in titles))
        for entry in chosen:
            numbers = [figures(entry.errors[name])["mean"] for name in ESTIMATORS]
            numbers += [figures(entry.errors["ours"])["worst"], covered([entry], window_s) or 0.0]
            note = f"  {entry.unknown} windows without truth" if entry.unknown else ""
            line = f"{entry.name:44} {len(entry.errors['ours']):7}" + "".join(f" {number:8.3f}" for number in numbers)
            print(line + note)
        totals = summary(scores, window_s)
        for what in ("mean", "p95", "worst"):
            print(f"{'all: ' + what:52}" + "".join(f" {totals[name][what]:8.3f}" for name in ESTIMATORS))
        print(f"{'all: covered':52}{'':36} {covered(scores, window_s) or 0.0:8.3f}")


def _print_shares(scores: list[Score]) -> None:
    print(f"{'recording':44} {'pid':>8} {'truth':>8} {'ours':>8} {'error':>8}   share of the last long window")
    for entry in scores:
        for pid, true in entry.shares.get("truth", {}).items():
            ours = entry.shares["ours"][pid]
            print(f"{entry.name:44} {pid:8} {true:8.3f} {ours:8.3f} {ours - true:+8.3f}")


def _load(path: Path) -> Any:
    try:
        recording = h200.load(path)
        truth.pids(recording)
        recording["rows"][0]["energy_mj"], recording["rows"][0]["procs"], recording["name"]
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
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="recordings; all processes are known")
    parser.add_argument("--solo", nargs="+", type=Path, default=[], metavar="FILE", help="one process alone")
    parser.add_argument("--timeline", nargs="+", type=Path, default=[], metavar="FILE", help="processes come and go")
    parser.add_argument("--mig", nargs="*", type=Path, metavar="FILE", help="recordings of MIG instances")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--window", type=_seconds, metavar="S", help="use only this window length, in seconds")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="write a plot of the error distribution")
    arguments = parser.parse_args(words)
    windows_s = [arguments.window] if arguments.window else list(WINDOWS_S)
    asked_s = [*windows_s, WHOLE_S]
    try:
        files, solo, timelines = (
            [_load(path) for path in dict.fromkeys(paths)]
            for paths in (arguments.files, arguments.solo, [*arguments.timeline, *(arguments.mig or ())])
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    known, known_left_out = evaluate(files, asked_s) if files else ([], [])
    unknown, unknown_left_out = evaluate_timelines(solo, timelines, asked_s)
    scores, left_out = known + unknown, known_left_out + unknown_left_out
    for line in left_out:
        print(f"skipped: {line}", file=sys.stderr)
    if not scores:
        print("no recording can be scored; pass --timeline, or recordings alone and together", file=sys.stderr)
        return 1
    shown_s = arguments.window or SHOWN_S
    errors = {
        name: [e for entry in scores if entry.window_s == shown_s for e in entry.errors[name]] for name in ESTIMATORS
    }
    if arguments.plot:
        arguments.plot.write_text(plot.svg(errors, f"Error of a process's share of energy, windows of {shown_s:g} s"))
    if arguments.json:
        print(json.dumps({
            "window_s": shown_s,
            "summary": summary(scores, shown_s),
            "covered": covered(scores, shown_s),
            "windows": {f"{window_s:g}": summary(scores, window_s) for window_s in windows_s},
            "recordings": {
                entry.name: {name: figures(entry.errors[name]) for name in ESTIMATORS}
                for entry in scores if entry.window_s == shown_s
            },
            "unknown_windows": {
                entry.name: entry.unknown for entry in scores if entry.window_s == shown_s and entry.unknown
            },
            "left_out": left_out,
        }))  # fmt: skip
        return 0
    _print_shares([entry for entry in scores if entry.window_s == WHOLE_S])
    _print(scores, windows_s)
    print(f"\nshare of windows of {shown_s:g} s with at most this error\n{plot.text(errors)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
