"""`python -m bench.accuracy [--write]`: the tables of docs/accuracy.md, from the recordings in tests/data/h200.

With `--write`, replaces the tables in the page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import attribution
from bench.attribution import Score
from tests import h200

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
MARKS = "<!-- {} -->", "<!-- end of {} -->"
"""Around each table in the page."""
WINDOW_S = 5.0
OTHER_PROGRAMS = ("tl-at-once", "tl-burst-decode", "tl-fft-train", "tl-infer-infer-sort")
"""Their kinds of work have the names of other programs in work/, so those give no energy per unit."""


@dataclass(frozen=True, slots=True)
class Regime:
    """A line of the table."""

    title: str
    scores: list[Score]


def _load(pattern: str) -> list[Any]:
    return [h200.load(path) for path in sorted(h200.FOLDER.glob(pattern))]


def _timelines(pattern: str) -> list[Score]:
    recordings = _load(pattern)
    ours = [recording for recording in recordings if recording["name"] not in OTHER_PROGRAMS]
    theirs = [recording for recording in recordings if recording["name"] in OTHER_PROGRAMS]
    scores: list[Score] = []
    for solo, group in (("work/solo-*.gz", ours), ("solo-decode.json.gz", theirs)):
        found, left_out = attribution.evaluate_timelines(_load(solo), group, [WINDOW_S])
        if left_out:
            raise ValueError(f"recordings without truth: {left_out}")
        scores += found
    return scores


def measure() -> list[Regime]:
    """All regimes."""
    known = [attribution.evaluate(_load(pattern), [WINDOW_S])[0] for pattern in ("*.gz", "work/*.gz")]
    first, unseen = _timelines("timelines/tl-*.gz"), _timelines("unseen/tl-*.gz")
    bursts = [score for score in first + unseen if any(mark in score.name for mark in ("burst", "30", "40", "50"))]
    mps = _timelines("timelines/mps-*.gz")
    mig, _ = attribution.evaluate_timelines([], _load("mig/*.gz"), [WINDOW_S])
    return [
        Regime("every process was observed alone before", known[0] + known[1]),
        Regime("**normal use**: processes come and go, nothing known before", first + unseen),
        Regime(f"of these, the {len(unseen)} recordings made last", unseen),
        Regime("of these, processes that work in bursts", bursts),
        Regime("clients of MPS, nothing known before", mps),
        Regime("two MIG instances", mig),
    ]


def table(regimes: Sequence[Regime]) -> str:
    """The table in Markdown."""
    lines = [
        "| in windows of 5 s | windows | equal split | Kepler's formula | SM time | gpuledger | 95th pct. | covered |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for regime in regimes:
        totals = attribution.summary(regime.scores, WINDOW_S)
        means = " | ".join(f"{totals[name]['mean']:.3f}" for name in ("equal", "kepler", "sm_time"))
        count = sum(len(score.errors["ours"]) for score in regime.scores)
        covered = attribution.covered(regime.scores, WINDOW_S)
        ours = f"**{totals['ours']['mean']:.3f}** | {totals['ours']['p95']:.2f}"
        lines.append(f"| {regime.title} | {count} | {means} | {ours} | {100 * (covered or 0):.0f} % |")
    return "\n".join(lines)


def activity_table(regimes: Sequence[Regime]) -> str:
    """The error of the activity of a process, in Markdown. MIG instances are left out: their activity is measured."""
    lines = [
        "| in windows of 5 s | SMs | tensor cores | memory | SMs, copied | covered |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for regime in regimes:
        if not any(score.activity["sm"] for score in regime.scores):
            continue
        errors = [_mean(e for score in regime.scores for e in score.activity[unit]) for unit in attribution.ACTIVITY]
        copied = _mean(e for score in regime.scores for e in score.copied["sm"])
        covered = _mean(float(ratio <= 1) for score in regime.scores for ratio in score.activity_ratios)
        ours = " | ".join(f"**{error:.3f}**" for error in errors)
        lines.append(f"| {regime.title} | {ours} | {copied:.3f} | {100 * covered:.0f} % |")
    return "\n".join(lines)


def _mean(numbers: Iterable[float]) -> float:
    values = list(numbers)
    return sum(values) / len(values)


def tables(regimes: Sequence[Regime]) -> dict[str, str]:
    """Each table of the page, by the name in its marks, with the marks."""
    found = {"accuracy": table(regimes), "activity": activity_table(regimes)}
    return {name: f"{MARKS[0].format(name)}\n{text}\n{MARKS[1].format(name)}" for name, text in found.items()}


def main(words: list[str]) -> int:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description="Measure the accuracy of shares.")
    parser.add_argument("--write", action="store_true", help=f"replace the tables in {PAGE.name}")
    arguments = parser.parse_args(words)
    for name, text in tables(measure()).items():
        print(text)
        if arguments.write:
            before, _, rest = PAGE.read_text().partition(MARKS[0].format(name))
            _, _, after = rest.partition(MARKS[1].format(name))
            PAGE.write_text(f"{before}{text}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
