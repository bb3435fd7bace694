"""On a machine with a GPU: compare the exporter's energy shares with the work that each process did.

    python tools/h200/truth.py [--json FILE] [--seconds-scale X]
    python tools/h200/truth.py --natural NAME --solo FOLDER [--json FILE]
    python tools/h200/truth.py --read FILE

Starts the exporter and processes that come and go (`live.py`), for about three minutes, and scrapes /metrics every
second. The truth is the work of each process times its energy above parked power per unit of work, measured while the
process worked alone in the same run (`bench/truth.py`). It is accurate to about 10 %. `attention` never works alone:
its energy per unit is the energy that `sort` did not use. The error of a window of 5 s is the largest error of a share.

With `--natural`, runs a timeline of natural programs (`record_natural.py --list`), which are all called python3. The
truth is the joules of their units of work, measured by `record_natural.py` with each program alone; FOLDER has these
recordings. Every window of 5, 15 and 60 s counts in which at least two programs are present.

Exits with 1 if the books do not balance, or if the mean error of a regime exceeds its limit. `--json` writes all
readings, `--read` evaluates them again without a GPU. Needs PyTorch and the PID namespace of the host.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

import live
import record_natural

sys.path.insert(1, str(Path(__file__).resolve().parents[2]))  # for bench

from bench import joules, truth
from bench.replay import Step
from bench.scores import covered, figures, score_joules, summary, windows

WINDOW_S = 5.0
LIMIT = 0.04 * 1.5
"""Maximum mean error of a share: the mean of the recordings in docs/accuracy.md, and a margin."""


NATURAL_LIMIT = 0.09
"""Maximum mean error of a share of natural programs, in windows of 5 s."""
NATURAL_WINDOWS_S = (5.0, 15.0, 60.0)
NATURAL_LEAD_S = record_natural.EARLY_S + 3.0


@dataclass(frozen=True, slots=True)
class Regime:
    """A span of time in which two processes work, and what is known of them."""

    name: str
    kinds: frozenset[str]
    begin: float
    end: float
    limit: float | None = None
    """Maximum mean error; None if any error is accepted."""


REGIMES = (
    Regime("a new process next to a known one", frozenset({"conv", "infer"}), 15, 45, LIMIT),
    Regime("the same process later", frozenset({"conv", "infer"}), 57, 77, LIMIT),
    Regime("two that were never alone", frozenset({"sort", "attention"}), 82, 102),
    Regime("bursts next to a known process", frozenset({"embed", "fft"}), 128, 148),
)


@dataclass(slots=True)
class Score:
    """Errors of the windows of one regime."""

    ours: list[float] = field(default_factory=list)
    sm_time: list[float] = field(default_factory=list)
    covered: list[bool] = field(default_factory=list)
    """For each share: whether it is at most one published error from the truth."""

    def add(self, steps: list[Step], used: dict[int, float]) -> None:
        """Add one window; `used` is the true energy of each process."""
        true = _shares(used)
        rose = {
            name: _shares({pid: steps[-1].joules[name][pid] - steps[0].joules[name][pid] for pid in used})
            for name in ("ours", "sm_time")
        }
        errors = {name: {pid: abs(shares[pid] - true[pid]) for pid in true} for name, shares in rose.items()}
        self.ours.append(max(errors["ours"].values()))
        self.sm_time.append(max(errors["sm_time"].values()))
        for pid in true:
            published = [step.errors[pid] for step in steps[1:] if pid in step.errors]
            if published:
                self.covered.append(errors["ours"][pid] <= mean(published))


def _shares(parts: dict[int, float]) -> dict[int, float]:
    whole = sum(parts.values())
    return {pid: part / whole if whole > 0 else 0.0 for pid, part in parts.items()}


def ticks(run: live.Run) -> list[live.Scrape]:
    """One scrape for each tick; two scrapes may show the same tick."""
    return list({scrape.tick_s: scrape for scrape in run.scrapes}.values())


def parked_w(run: live.Run) -> float:
    """Median of the published parked power; the usual one if none was published."""
    published = [scrape.parked_w for scrape in run.scrapes if scrape.parked_w is not None]
    return median(published) if published else truth.PARKED_W


class Timeline(truth.Timeline):
    """Measures energy per unit from tick to tick: with bursts of work, the counter is not linear between two ticks."""

    def _alone_spans(self, pid: int) -> list[tuple[float, float]]:
        inside = [
            [time_s for time_s in self._counter.times if first <= time_s <= last]
            for first, last in super()._alone_spans(pid)
        ]
        return [(times[0], times[-1]) for times in inside if times]

    def _find_cycles(self) -> dict[str, list[float]]:
        """None: the units of each process have one size."""
        return {}


def timeline(run: live.Run) -> Timeline:
    """The energy that each process used.

    Loading counts as the work of another process, -pid, so that no other process counts as alone in the meantime.
    """
    loading = [
        {"kind": "hold", "pid": -line["pid"], "log": [[line["arrived"], 0], [line["ready"], 1]]} for line in run.work
    ]
    rows = [
        {"t": tick.tick_s, "energy_mj": tick.device_mj, "procs": [[pid] for pid in tick.active]} for tick in ticks(run)
    ]
    recording = {"name": "live", "truth": [*run.work, *loading], "rows": rows, "parked_w": parked_w(run)}
    return Timeline(recording, {})


def steps(run: live.Run) -> list[Step]:
    """Energy above parked power, SM time and published errors at each tick."""
    pids = [line["pid"] for line in run.work]
    return [
        Step(
            tick.tick_s,
            {
                "ours": {pid: tick.above_parked_j(pid) for pid in pids},
                "sm_time": {pid: tick.busy_s.get(pid, 0.0) for pid in pids},
            },
            tick.share_errors,
        )
        for tick in ticks(run)
    ]


def score(run: live.Run, actual: Timeline, regime: Regime) -> Score:
    """Windows in which both processes of a regime work and none arrives or leaves; none if the truth is unknown."""
    result = Score()
    if regime.kinds & set(actual.missing()):
        return result
    begin, end = (run.start + time_s * run.scale for time_s in (regime.begin, regime.end))
    for phase in actual.phases:
        kinds = {actual.kinds[pid] for pid in phase.working}
        inside = [step for step in steps(run) if phase.begin <= step.time_s <= phase.end]
        if kinds != regime.kinds or not begin <= (phase.begin + phase.end) / 2 <= end:
            continue
        if len(inside) < 2 or inside[-1].time_s - inside[0].time_s < WINDOW_S / 2:
            continue
        for window in windows(inside, WINDOW_S):
            used = actual.used(window[0].time_s, window[-1].time_s)
            result.add(window, {pid: used[pid] for pid in phase.working})
    return result


def _print_score(regime: Regime, result: Score) -> bool:
    """Print one line of the table; returns whether the regime is within its limit."""
    if not result.ours:
        print(f"{regime.name:36} {0:7}  NOT MEASURED")
        return regime.limit is None
    ours, by_time = figures(result.ours), figures(result.sm_time)
    right = regime.limit is None or ours["mean"] <= regime.limit
    print(
        f"{regime.name:36} {len(result.ours):7} {ours['mean']:8.3f} {ours['worst']:8.3f} {by_time['mean']:8.3f} "
        f"{by_time['worst']:8.3f} {f'{sum(result.covered)}/{len(result.covered)}':>8}"
        + ("" if right else f"  EXCEEDS {regime.limit:.3f}")
    )
    return right


def _print_work(run: live.Run, actual: Timeline) -> None:
    """Print the values from which the truth is computed."""
    published = [scrape.parked_w for scrape in run.scrapes if scrape.parked_w is not None]
    extent = f"published: {min(published):.1f} to {max(published):.1f} W" if published else "NOT PUBLISHED"
    print(f"\nparked power {actual.parked_w:.1f} W ({extent})")
    for line in run.work:
        (begin, _), (end, units) = line["log"][0], line["log"][-1]
        joules = actual.used(begin, end)[line["pid"]]
        late_s = begin - run.start - run.scale * _begin(line["kind"])
        print(
            f"  {line['kind']:10} pid {line['pid']:7}: {units:6.0f} units, {joules / max(units, 1):8.3f} J each, "
            f"loaded in {line['ready'] - line['arrived']:.1f} s" + (f", LATE by {late_s:.1f} s" if late_s > 0.5 else "")
        )


def _begin(kind: str) -> float:
    return next(workload.spans[0][0] for workload in live.WORKLOADS if workload.kind == kind)


def _print_cost(run: live.Run) -> None:
    """Print what the exporter cost."""
    seen = ticks(run)
    first, last = seen[0], seen[-1]
    cpu = (last.cpu_s - first.cpu_s) / max(last.tick_s - first.tick_s, 1e-9)
    print(
        f"\nexporter: {len(seen)} ticks, {last.missed_ticks:.0f} missed; "
        f"tick {_ms(tick.tick_duration_s for tick in seen)}, driver {_ms(tick.driver_s for tick in seen)}, "
        f"CPU {100 * cpu:.2f} %, memory {last.resident_bytes / 2**20:.1f} MiB"
    )


def _ms(durations_s: Iterable[float]) -> str:
    durations_ms = [1000 * duration_s for duration_s in durations_s]
    return f"{mean(durations_ms):.1f} ms (longest {max(durations_ms):.1f})"


def _print_balance(run: live.Run) -> bool:
    """Print and return whether the books balance in every scrape."""
    residuals = [scrape.device_mj - scrape.booked_mj for scrape in run.scrapes]
    wrong = [abs(residual) for residual in residuals if residual]
    print(f"balance: {len(residuals)} scrapes, {len(wrong)} WRONG, largest residual {max(wrong, default=0)} mJ")
    return bool(residuals) and not wrong


def natural(run: live.Run, folder: Path) -> None:
    """Run natural programs next to the exporter. `folder` has recordings of each of them alone."""
    plays = record_natural.TIMELINES[run.name]
    needed = {record_natural.alone(play.kind) for play in plays}
    paths = [folder / f"{name}.json.gz" for name in sorted(needed)]
    if missing := [path.name for path in paths if not path.exists()]:
        raise RuntimeError(f"{folder} has no {', '.join(missing)}; run record_natural.py {folder} --only NAME,...")
    solo = [record_natural.counted(json.loads(gzip.decompress(path.read_bytes()))) for path in paths]
    rates = joules.rates(solo)
    end_s = max(play.end for play in plays)
    live.record(run, record_natural.Programs(plays), end_s, NATURAL_LEAD_S)
    run.work = joules.in_joules({"name": run.name, "truth": run.work}, rates)["truth"]


def evaluate_natural(run: live.Run) -> bool:
    """Print the errors of a run of natural programs; returns whether the run passes."""
    recording = {"name": run.name, "truth": run.work}
    scores = [score_joules(recording, steps(run), window_s) for window_s in NATURAL_WINDOWS_S]
    print(
        f"\n{run.name:24} {'windows':>7} {'mean':>8} {'p95':>8} {'bias':>8} {'SM time':>8} {'bias':>8} {'covered':>8}"
    )
    for window_s in NATURAL_WINDOWS_S:
        if not (found := summary(scores, window_s)):
            continue
        count = sum(score.count for score in scores if score.window_s == window_s)
        ours, by_time = found["ours"], found["sm_time"]
        print(
            f"{f'windows of {window_s:g} s':24} {count:7} {ours['mean']:8.3f} {ours['p95']:8.3f} {ours['bias']:8.3f} "
            f"{by_time['mean']:8.3f} {by_time['bias']:8.3f} {covered(scores, window_s) or 0:8.2f}"
        )
    for line in run.work:
        print(f"  {line['kind']:10} pid {line['pid']:7}: {line['log'][-1][1]:8.0f} J")
    _print_cost(run)
    first = summary(scores, NATURAL_WINDOWS_S[0])
    right = bool(first) and first["ours"]["mean"] <= NATURAL_LIMIT
    print("natural: " + ("within" if right else "EXCEEDS") + f" {NATURAL_LIMIT:.3f}")
    return _print_balance(run) and right


def evaluate(run: live.Run) -> bool:
    """Print all results; returns whether the run passes."""
    if run.name:
        return evaluate_natural(run)
    actual = timeline(run)
    if missing := actual.missing():
        print(f"the energy per unit of {', '.join(missing)} is unknown: they were not alone for long enough")
    print(f"\n{'5 s windows':36} {'':7} {'gpuledger':>17} {'SM time':>17}")
    print(f"{'regime':36} {'windows':>7} {'mean':>8} {'worst':>8} {'mean':>8} {'worst':>8} {'covered':>8}")
    right = [_print_score(regime, score(run, actual, regime)) for regime in REGIMES]
    _print_work(run, actual)
    _print_cost(run)
    return _print_balance(run) and all(right)


def main() -> int:
    """Make or read a run, and evaluate it."""
    parser = argparse.ArgumentParser(description="compare energy shares with the work done")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all readings")
    parser.add_argument("--read", type=Path, metavar="FILE", help="evaluate the readings of an earlier run")
    parser.add_argument("--seconds-scale", type=float, default=1.0, metavar="X", help="multiply all times (default 1)")
    parser.add_argument("--natural", choices=record_natural.TIMELINES, metavar="NAME", help="run natural programs")
    parser.add_argument("--solo", type=Path, metavar="FOLDER", help="recordings of each natural program alone")
    arguments = parser.parse_args()
    if arguments.natural and not arguments.solo:
        parser.error("--natural needs --solo FOLDER")
    if arguments.read:
        run = live.Run.read(arguments.read)
    else:
        run = live.Run(scale=arguments.seconds_scale, name=arguments.natural or "")
        try:
            if arguments.natural:
                natural(run, arguments.solo)
            else:
                live.record_kernels(run)
        finally:
            if arguments.json:
                run.write(arguments.json)
    return 0 if evaluate(run) else 1


if __name__ == "__main__":
    sys.exit(main())
