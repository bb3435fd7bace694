"""`python -m bench.attribution [--json] [--window S] --solo FILE... --timeline FILE...`: error of the energy shares.

The files are recordings as in tests/data/h200; the truth is the work that each process did times its energy per unit of
work (`bench/truth.py`), which is accurate to about 10 %, because clocks differ between exclusive and shared use.

- `--timeline`: processes that come and go. Each timeline is replayed through fresh books, so nothing is known in
  advance. Windows count if at least two processes work in them and none arrives or leaves. The energy per unit comes
  from the process's time alone in the same timeline, else from the `--solo` recordings. If the logs of a timeline are
  joules (`"unit": "joule"`), they are the truth, and every window counts in which at least two processes are present.
- `--known`: the `--solo` recordings are replayed through the same books before each timeline.
- `--mig`: the same for recordings of MIG instances. The error is the part of the energy that is booked to a wrong one.
- `FILE...` without an option: every process was observed alone before. Recordings of one process are replayed first,
  through the same books; recordings of several processes are scored.
- `--booked`: energies of another exporter are scored instead of gpuledger's (`bench/external.py`).
- `--without-gpm`: the readings have no activity, as on GPUs before Hopper.

One tick per second is replayed. The error of a window is the largest error of any process's share.
- `equal`: equal shares of the processes on the GPU
- `kepler`: Kepler's formula, power above idle by utilization, at every tick (Kepler reads every 5 s). The utilization
  is the driver's mean over its whole buffer, because Kepler requests all samples
- `sm_time`: gpuledger with --energy.method=sm_time
- `ours`: gpuledger with default settings. `covered` is the part of the shares that are at most one published error
  from the truth

`bias` is the largest error of any process's share over all windows of a recording together. Standard errors of the mean
are clustered by recording, or by blocks of windows if there are fewer than five recordings.

From Python: `results(evaluate_timelines(solo, recordings, [5.0], setup=Setup(books=...))[0], 5.0)`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from math import inf
from pathlib import Path
from typing import Any

from bench import external, plot, truth
from bench.replay import ACTIVITY, WITHOUT_GPM, Player, Setup, Step
from bench.scores import (
    ESTIMATORS,
    Score,
    covered,
    figures,
    score_joules,
    score_known,
    score_timeline,
    standard_errors,
    summary,
    wrong,
)
from tests import h200

WINDOWS_S = (2.0, 5.0, 15.0, 60.0)
SHOWN_S = 5.0
"""Default window length of the summary, in seconds."""
DEFAULT = Setup()

Evaluation = tuple[list[Score], list[str]]
"""Scores, and why other recordings could not be scored."""


def evaluate(
    recordings: list[Any],
    windows_s: Iterable[float],
    every: int = 10,
    setup: Setup = DEFAULT,
    booked: external.Booked | None = None,
) -> Evaluation:
    """Replay recordings of one process, then score recordings of several; with `booked`, score these energies."""
    teachers = [recording for recording in recordings if len(truth.pids(recording)) == 1]
    alone = [recording for recording in teachers if not recording["name"].startswith("mps-")]
    mps = [recording for recording in teachers if recording["name"].startswith("mps-")]
    keys = {"": "", **ACTIVITY}
    joules = {unit: truth.joules_per_unit(alone, key) for unit, key in keys.items()}
    joules_mps = {unit: joules[unit] | truth.joules_per_unit(mps, key) for unit, key in keys.items()}
    player = Player(setup)
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
        if booked is not None:
            if recording["name"] not in booked:
                left_out.append(f"{recording['name']}: no booked energies")
                continue
            steps = external.scored(steps, booked[recording["name"]])
        found = (score_known(recording, steps, each, window_s) for window_s in windows_s)
        scores += [entry for entry in found if entry.count]
    return scores, left_out


def evaluate_timelines(
    solo: Sequence[Any],
    recordings: Sequence[Any],
    windows_s: Sequence[float],
    *,
    known: bool = False,
    setup: Setup = DEFAULT,
    booked: external.Booked | None = None,
) -> Evaluation:
    """Score timelines, each with fresh books; with `known`, the `solo` recordings are replayed first.

    With `booked`, scores these energies instead of those of the books.
    """
    joules = {unit: truth.joules_per_unit(solo, key) for unit, key in {"": "", **ACTIVITY}.items()}
    scores, left_out = [], []
    for recording in recordings:
        try:
            score = _scorer(recording, joules)
            steps = _replay(recording, solo if known else (), setup)
            if booked is not None:
                steps = external.scored(steps, booked.get(recording["name"], []))
        except ValueError as error:
            left_out.append(f"{recording['name']}: {error}")
            continue
        found = [entry for window_s in windows_s if (entry := score(steps, window_s)).count]
        scores += found
        if not found:
            left_out.append(f"{recording['name']}: at no time did two processes work and none arrive or leave")
    return scores, left_out


def _scorer(recording: Any, joules: dict[str, truth.Joules]) -> Callable[[list[Step], float], Score]:
    """Scores the steps of a recording in windows; a ValueError says why the truth is unknown."""
    if recording.get("unit") == "joule":
        return lambda steps, window_s: score_joules(recording, steps, window_s)
    timeline = truth.Timeline(recording, joules[""])
    if missing := timeline.missing():
        raise ValueError(f"energy per unit of {', '.join(missing)} is unknown or varies")
    if _is_mig(recording):
        return lambda steps, window_s: score_timeline(timeline, steps, window_s, wrong)
    activity = {unit: truth.Timeline(recording, joules[unit], key) for unit, key in ACTIVITY.items()}
    return lambda steps, window_s: score_timeline(timeline, steps, window_s, max, activity)


def _replay(recording: Any, before: Sequence[Any], setup: Setup) -> list[Step]:
    player = Player(setup)
    for teacher in before:
        player.play(teacher)
    return player.play_mig(recording) if _is_mig(recording) else player.play(recording)


def _is_mig(recording: Any) -> bool:
    return "instances" in recording["rows"][0]


def results(scores: Sequence[Score], window_s: float) -> dict[str, dict[str, Any]]:
    """Figures of each recording with windows of this length, by name, and of all of them under an empty name."""
    chosen = [entry for entry in scores if entry.window_s == window_s and entry.count]
    groups = {entry.name: [entry] for entry in chosen} | ({"": chosen} if chosen else {})
    return {name: {
        "windows": sum(entry.count for entry in group),
        "covered": covered(group, window_s),
        "standard_error": standard_errors(group, window_s),
        **summary(group, window_s),
    } for name, group in groups.items()}  # fmt: skip


def _print(scores: list[Score], windows_s: list[float]) -> None:
    for window_s in windows_s:
        chosen = [entry for entry in scores if entry.window_s == window_s]
        if not chosen:
            continue
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
        for what in ("mean", "p95", "worst", "bias"):
            print(f"{'all: ' + what:52}" + "".join(f" {totals[name][what]:8.3f}" for name in ESTIMATORS))
        errors = standard_errors(scores, window_s)
        print(f"{'all: standard error of the mean':52}" + "".join(f" {errors[n] or 0:8.3f}" for n in ESTIMATORS))
        print(f"{'all: covered':52}{'':36} {covered(scores, window_s) or 0.0:8.3f}")


def _print_shares(scores: list[Score]) -> None:
    print(f"{'recording':44} {'pid':>8} {'truth':>8} {'ours':>8} {'error':>8}   share in all windows together")
    for entry in scores:
        ours = entry.share("ours")
        for pid, true in entry.share("truth").items():
            print(f"{entry.name:44} {pid:8} {true:8.3f} {ours[pid]:8.3f} {ours[pid] - true:+8.3f}")


def _document(scores: list[Score], shown_s: float, windows_s: list[float], left_out: list[str]) -> dict[str, Any]:
    """The JSON object; `summary` and what has no window length are for windows of `shown_s`."""
    of_all = results(scores, shown_s)
    whole = of_all.pop("")
    return {
        "window_s": shown_s,
        "summary": summary(scores, shown_s),
        "covered": whole["covered"],
        "bias": whole["ours"]["bias"],
        "standard_error": whole["standard_error"],
        "count": whole["windows"],
        "windows": {f"{window_s:g}": summary(scores, window_s) for window_s in windows_s},
        "recordings": of_all,
        "unknown_windows": {
            entry.name: entry.unknown for entry in scores if entry.window_s == shown_s and entry.unknown
        },
        "left_out": left_out,
    }


def _load(path: Path) -> Any:
    try:
        recording = h200.load(path)
        truth.pids(recording)
        recording["rows"][0]["energy_mj"], recording["rows"][0]["procs"], recording["name"]
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path} is no recording: {type(error).__name__}: {error}") from None
    return recording


def _seconds(text: str) -> float:
    if not 0 < float(text) < inf:
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
    parser.add_argument("--known", action="store_true", help="replay the --solo recordings before each timeline")
    parser.add_argument("--without-gpm", action="store_true", help="replay as a GPU before Hopper, without activity")
    parser.add_argument("--booked", type=Path, metavar="FILE", help="energies of another exporter, scored as `ours`")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--window", type=_seconds, metavar="S", help="use only this window length, in seconds")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="write a plot of the error distribution")
    arguments = parser.parse_args(words)
    windows_s = [arguments.window] if arguments.window else list(WINDOWS_S)
    try:
        files, solo, timelines = (
            [_load(path) for path in dict.fromkeys(paths)]
            for paths in (arguments.files, arguments.solo, [*arguments.timeline, *(arguments.mig or ())])
        )
        booked = external.read(arguments.booked) if arguments.booked else None
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    setup = WITHOUT_GPM if arguments.without_gpm else DEFAULT
    known, known_left_out = evaluate(files, windows_s, setup=setup, booked=booked) if files else ([], [])
    unknown, unknown_left_out = evaluate_timelines(
        solo, timelines, windows_s, known=arguments.known, setup=setup, booked=booked
    )
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
        print(json.dumps(_document(scores, shown_s, windows_s, left_out)))
        return 0
    _print_shares([entry for entry in scores if entry.window_s == shown_s])
    _print(scores, windows_s)
    print(f"\nshare of windows of {shown_s:g} s with at most this error\n{plot.text(errors)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
