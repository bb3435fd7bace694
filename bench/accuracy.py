"""`python -m bench.accuracy [--write]`: the tables of docs/accuracy.md, from the recordings in tests/data/h200.

With `--write`, replaces the tables in the page, and the results in tests/data/h200/README.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench import attribution
from bench.replay import ACTIVITY, WITHOUT_GPM, Setup
from bench.scores import Score, covered, standard_errors, summary
from tests import h200

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
BENCHMARK = h200.FOLDER / "README.md"
MARKS = "<!-- {} -->", "<!-- end of {} -->"
"""Around each table in the pages."""
WINDOWS_S = (5.0, 15.0, 60.0)
SHOWN_S = (5.0, 60.0)
"""In the page."""
HELD_OUT = "natural/heldout"
"""Recordings that were never tuned on."""
OTHER_PROGRAMS = ("tl-at-once", "tl-burst-decode", "tl-fft-train", "tl-infer-infer-sort")
"""Their kinds of work have the names of other programs in work/, so those give no energy per unit."""
BURSTS = ("burst", "30", "40", "50")
"""Parts of the names of recordings in which a process works in bursts."""
WITH_GPM = Setup()
TITLES = {
    "natural": "**natural programs**, nothing known before",
    "natural known": "natural programs, all observed alone before",
    "held out": "**natural programs, held out**, nothing known before",
    "held out known": "natural programs, held out, all observed alone before",
    "steady": "**steady kernels** that come and go, nothing known before",
    "unseen": "of these, the recordings made last",
    "known": "steady kernels, all observed alone before",
    "bursts": "kernels that work in bursts, nothing known before",
    "mps": "clients of MPS, nothing known before",
    "mig": "two MIG instances",
    "natural without GPM": "natural programs without GPM, nothing known before",
    "steady without GPM": "steady kernels without GPM, nothing known before",
}
"""The regimes, in the order of the table; those without recordings are left out."""
METHODS = {"equal": "equal split", "kepler": "Kepler's formula", "sm_time": "SM time", "ours": "gpuledger"}
COLUMNS = ("", "window", "number", "equal split", "Kepler's formula", "SM time", "gpuledger", "95th pct.", "bias",
           "bias, SM time", "covered")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Regime:
    """Recordings of one kind of use."""

    title: str
    scores: list[Score]


@cache
def load(pattern: str) -> list[Any]:
    """Recordings in tests/data/h200."""
    return [h200.load(path) for path in sorted(h200.FOLDER.glob(pattern))]


def natural(setup: Setup, windows_s: Sequence[float], *, known: bool = False, folder: str = "natural") -> list[Score]:
    """Natural programs that come and go; with `known`, after each of them was alone."""
    solo, recordings = (load(f"{folder}/{kind}-*.gz") for kind in ("solo", "nat"))
    return _complete(attribution.evaluate_timelines(solo, recordings, windows_s, known=known, setup=setup))


def timelines(pattern: str, setup: Setup, windows_s: Sequence[float]) -> list[Score]:
    """Steady kernels that come and go."""
    recordings = load(pattern)
    ours = [recording for recording in recordings if recording["name"] not in OTHER_PROGRAMS]
    theirs = [recording for recording in recordings if recording["name"] in OTHER_PROGRAMS]
    return [
        score
        for solo, group in (("work/solo-*.gz", ours), ("solo-decode.json.gz", theirs))
        for score in _complete(attribution.evaluate_timelines(load(solo), group, windows_s, setup=setup))
    ]


def known(setup: Setup, windows_s: Sequence[float]) -> list[Score]:
    """Steady kernels, each of which was alone before."""
    return [
        score
        for pattern in ("*.gz", "work/*.gz")
        for score in _complete(attribution.evaluate(load(pattern), windows_s, setup=setup))
    ]


def instances(setup: Setup, windows_s: Sequence[float]) -> list[Score]:
    """MIG instances."""
    return _complete(attribution.evaluate_timelines([], load("mig/*.gz"), windows_s, setup=setup))


def _complete(evaluation: attribution.Evaluation) -> list[Score]:
    scores, left_out = evaluation
    if left_out:
        raise ValueError(f"recordings without truth: {left_out}")
    return scores


def measure(windows_s: Sequence[float] = WINDOWS_S) -> dict[str, Regime]:
    """All regimes, by the keys of TITLES."""
    first, unseen = (timelines(f"{folder}/tl-*.gz", WITH_GPM, windows_s) for folder in ("timelines", "unseen"))
    without = [timelines(f"{folder}/tl-*.gz", WITHOUT_GPM, windows_s) for folder in ("timelines", "unseen")]
    scores = {
        "natural": natural(WITH_GPM, windows_s),
        "natural known": natural(WITH_GPM, windows_s, known=True),
        "held out": natural(WITH_GPM, windows_s, folder=HELD_OUT),
        "held out known": natural(WITH_GPM, windows_s, folder=HELD_OUT, known=True),
        "steady": first + unseen,
        "unseen": unseen,
        "known": known(WITH_GPM, windows_s),
        "bursts": [score for score in first + unseen if any(mark in score.name for mark in BURSTS)],
        "mps": timelines("timelines/mps-*.gz", WITH_GPM, windows_s),
        "mig": instances(WITH_GPM, windows_s),
        "natural without GPM": natural(WITHOUT_GPM, windows_s),
        "steady without GPM": without[0] + without[1],
    }
    return {key: Regime(title, scores[key]) for key, title in TITLES.items() if scores[key]}


def table(regimes: Iterable[Regime], windows_s: Sequence[float] = WINDOWS_S) -> str:
    """The errors of energy shares, in Markdown: one line for each regime and length of windows."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" + "|---:" * (len(COLUMNS) - 1) + "|"]
    for regime in regimes:
        title = regime.title
        for line in _lines(regime, windows_s):
            lines.append(f"| {title} | {line} |")
            title = ""
    return "\n".join(lines)


def _lines(regime: Regime, windows_s: Sequence[float]) -> Iterator[str]:
    for window_s in windows_s:
        totals = summary(regime.scores, window_s)
        if not totals:
            continue
        count = sum(score.count for score in regime.scores if score.window_s == window_s)
        errors = standard_errors(regime.scores, window_s)
        means = [_plus_minus(totals[name]["mean"], errors[name]) for name in ("equal", "kepler", "sm_time")]
        ours = f"**{totals['ours']['mean']:.3f}**" + _plus_minus(None, errors["ours"])
        rest = f"{totals['ours']['p95']:.2f} | {totals['ours']['bias']:.2f} | {totals['sm_time']['bias']:.2f}"
        within = 100 * (covered(regime.scores, window_s) or 0)
        yield " | ".join([f"{window_s:g} s", str(count), *means, ours, rest, f"{within:.0f} %"])


def _plus_minus(mean: float | None, error: float | None) -> str:
    """A mean, if any, and its standard error."""
    return (f"{mean:.3f}" if mean is not None else "") + (f" ± {error:.3f}" if error is not None else "")


def results_table(regimes: Iterable[Regime], window_s: float = WINDOWS_S[0]) -> str:
    """Mean error, 95th percentile and bias of each method, in Markdown."""
    lines = [f"| windows of {window_s:g} s | {' | '.join(METHODS.values())} |", "|---" + "|---:" * len(METHODS) + "|"]
    for regime in regimes:
        totals = summary(regime.scores, window_s)
        cells = (
            f"{totals[name]['mean']:.3f} ({totals[name]['p95']:.2f}; {totals[name]['bias']:.2f})" for name in METHODS
        )
        lines.append(f"| {regime.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def activity_table(regimes: Iterable[Regime], window_s: float = WINDOWS_S[0]) -> str:
    """The error of the activity of a process, in Markdown; only regimes with true activity.

    MIG instances are left out: their activity is measured.
    """
    lines = [
        f"| in windows of {window_s:g} s | SMs | tensor cores | memory | SMs, copied | covered |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for regime in regimes:
        scores = [score for score in regime.scores if score.window_s == window_s and score.activity["sm"]]
        if not scores:
            continue
        errors = [_mean(error for score in scores for error in score.activity[unit]) for unit in ACTIVITY]
        copied = _mean(error for score in scores for error in score.copied["sm"])
        within = _mean(float(ratio <= 1) for score in scores for ratio in score.activity_ratios)
        ours = " | ".join(f"**{error:.3f}**" for error in errors)
        lines.append(f"| {regime.title} | {ours} | {copied:.3f} | {100 * within:.0f} % |")
    return "\n".join(lines)


def _mean(numbers: Iterable[float]) -> float:
    values = list(numbers)
    return sum(values) / len(values)


def tables(regimes: Mapping[str, Regime]) -> dict[Path, dict[str, str]]:
    """Each table of each page, by the name in its marks, with the marks."""
    made = {
        PAGE: {"accuracy": table(regimes.values(), SHOWN_S), "activity": activity_table(regimes.values())},
        BENCHMARK: {"results": results_table(regimes.values())},
    }
    return {
        page: {name: f"{MARKS[0].format(name)}\n{text}\n{MARKS[1].format(name)}" for name, text in of_page.items()}
        for page, of_page in made.items()
    }


def replaced(page: str, name: str, text: str) -> str:
    """A page with another table between its marks."""
    before, _, rest = page.partition(MARKS[0].format(name))
    _, _, after = rest.partition(MARKS[1].format(name))
    return f"{before}{text}{after}"


def main(words: list[str]) -> int:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description="Measure the accuracy of shares.")
    parser.add_argument("--write", action="store_true", help=f"replace the tables in {PAGE.name} and {BENCHMARK.name}")
    arguments = parser.parse_args(words)
    for page, of_page in tables(measure()).items():
        for name, text in of_page.items():
            print(text)
            if arguments.write:
                page.write_text(replaced(page.read_text(), name, text))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
