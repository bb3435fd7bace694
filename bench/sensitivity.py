"""`python -m bench.sensitivity [MODULE:NAME...]`: what halving and doubling a constant of the estimate changes.

A module of gpuledger.shares names its constants in `TUNED`, a tuple of their names. A constant is a number or a tuple
of numbers, which are scaled together. It is replaced in the module that defines it and in every module that imported
it by name. A value that was computed from it at import does not change.

The table has the mean error of shares in windows of 5 s (bench/accuracy.py), and for each constant the differences.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType

from bench import accuracy
from bench.replay import WITHOUT_GPM
from bench.scores import Score, summary

import gpuledger.shares

PACKAGE = "gpuledger"
WINDOW_S = 5.0
FACTORS = {"halved": 0.5, "doubled": 2.0}
NO_CHANGE = 0.0005
"""Smaller differences are shown as none."""
OURS, OURS_WITHOUT_GPM = replace(accuracy.WITH_GPM, others=False), replace(WITHOUT_GPM, others=False)
Value = float | int | tuple[float | int, ...]
Means = Mapping[str, float]
"""Mean errors by regime."""
REGIMES: dict[str, Callable[[], list[Score]]] = {
    "natural": lambda: accuracy.natural(OURS, [WINDOW_S]),
    "natural known": lambda: accuracy.natural(OURS, [WINDOW_S], known=True),
    "steady": lambda: [
        *accuracy.timelines("timelines/tl-*.gz", OURS, [WINDOW_S]),
        *accuracy.timelines("unseen/tl-*.gz", OURS, [WINDOW_S]),
    ],
    "known": lambda: accuracy.known(OURS, [WINDOW_S]),
    "mps": lambda: accuracy.timelines("timelines/mps-*.gz", OURS, [WINDOW_S]),
    "mig": lambda: accuracy.instances(OURS, [WINDOW_S]),
    "without GPM": lambda: accuracy.natural(OURS_WITHOUT_GPM, [WINDOW_S]),
}


@dataclass(frozen=True, slots=True)
class Constant:
    """A global of a module."""

    module: str
    name: str

    @property
    def value(self) -> Value:
        value = getattr(importlib.import_module(self.module), self.name)
        numbers = value if isinstance(value, tuple) else (value,)
        if not numbers or any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers):
            raise TypeError(f"{self.module}:{self.name} is neither a number nor a tuple of numbers: {value!r}")
        return value  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Row:
    """The mean errors with one constant changed."""

    constant: Constant
    value: Value
    change: str
    means: Means


def tuned(package: ModuleType = gpuledger.shares) -> list[Constant]:
    """The constants that the modules of a package name in TUNED."""
    names = [
        package.__name__,
        *(f"{package.__name__}.{found.name}" for found in pkgutil.iter_modules(package.__path__)),
    ]
    return [
        Constant(module, name) for module in names for name in getattr(importlib.import_module(module), "TUNED", ())
    ]


def scaled(value: Value, factor: float) -> Value:
    """A constant times a factor; integers stay integers, and positive ones positive."""
    if isinstance(value, tuple):
        return tuple(_scaled(number, factor) for number in value)
    return _scaled(value, factor)


def _scaled(number: float, factor: float) -> float:
    if isinstance(number, int):
        return max(1, round(number * factor)) if number > 0 else round(number * factor)
    return number * factor


@contextmanager
def changed(constant: Constant, value: Value) -> Iterator[None]:
    """Replace a constant, also where it was imported by its name."""
    before = constant.value
    holders = [
        module
        for name, module in list(sys.modules.items())
        if (name == constant.module or name.split(".")[0] == PACKAGE) and vars(module).get(constant.name) is before
    ]
    try:
        for module in holders:
            setattr(module, constant.name, value)
        yield
    finally:
        for module in holders:
            setattr(module, constant.name, before)


def measure() -> Means:
    """The mean error in each regime."""
    return {name: summary(scores(), WINDOW_S)["ours"]["mean"] for name, scores in REGIMES.items()}


def rows(constants: Sequence[Constant], measured: Callable[[], Means] = measure) -> Iterator[Row]:
    """Each constant halved and doubled."""
    for constant in constants:
        for change, factor in FACTORS.items():
            value = scaled(constant.value, factor)
            with changed(constant, value):
                yield Row(constant, value, change, measured())


def head(means: Means) -> str:
    """The begin of the table in Markdown, with the errors that other lines are compared with."""
    names = " | ".join(means)
    errors = " | ".join(f"{mean:.3f}" for mean in means.values())
    return f"| constant | value | | {names} |\n|---|---:|---{'|---:' * len(means)}|\n| as it is | | | {errors} |"


def line(row: Row, means: Means) -> str:
    """A line of the table: differences to `means`."""
    differences = (row.means[name] - mean for name, mean in means.items())
    cells = " | ".join(f"{number:+.3f}" if abs(number) >= NO_CHANGE else "" for number in differences)
    module = row.constant.module.rpartition(".")[2]
    return f"| `{module}.{row.constant.name}` | {_text(row.value)} | {row.change} | {cells} |"


def _text(value: Value) -> str:
    return ", ".join(f"{number:g}" for number in (value if isinstance(value, tuple) else (value,)))


def _constant(text: str) -> Constant:
    module, _, name = text.partition(":")
    constant = Constant(module, name)
    try:
        constant.value  # noqa: B018 - raises
    except (ImportError, AttributeError, TypeError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return constant


def main(words: list[str], measured: Callable[[], Means] = measure) -> int:
    """Print the table line by line; returns 1 if there is no constant."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.sensitivity", description="Halve and double each constant of the estimate."
    )
    parser.add_argument("constants", nargs="*", type=_constant, metavar="MODULE:NAME", help="default: all in TUNED")
    constants = parser.parse_args(words).constants or tuned()
    if not constants:
        print("no module of gpuledger.shares has TUNED; pass MODULE:NAME", file=sys.stderr)
        return 1
    means = measured()
    print(head(means), flush=True)
    for row in rows(constants, measured):
        print(line(row, means), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
