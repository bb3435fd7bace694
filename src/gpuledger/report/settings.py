"""The settings of `gpuledger report`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from gpuledger import checks, durations
from gpuledger.config import Option
from gpuledger.errors import ConfigError
from gpuledger.fleet.settings import PROMETHEUS, Asking
from gpuledger.report.grouping import GROUPINGS
from gpuledger.report.prices import HOURS, Prices
from gpuledger.report.span import Span, parse_moment, usual_step_ms

FORMATS = {"table": (".txt",), "csv": (".csv",), "json": (".json",), "html": (".html", ".htm")}
MOST_CELLS = 11_000
"""As many points as Prometheus gives of one series."""
USUAL_S = 86400.0
NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")


def price(text: str) -> str:
    """An amount of 0 or more, as it was written."""
    if text and not NUMBER.fullmatch(text):
        raise ValueError("is no amount; write it as 0.30")
    return text


def pue(text: str) -> str:
    """1 or more: a place cannot use less than what is in it."""
    if not NUMBER.fullmatch(text) or float(text) < 1:
        raise ValueError("is no PUE; write a number from 1 on, such as 1.3")
    return text


def moment(text: str) -> str:
    """A date or a time, as it was written."""
    if text:
        parse_moment(text)
    return text


def most(text: str) -> int:
    """A number of lines; 0 is no limit."""
    return checks.count(text) if text != "0" else 0


def step(text: str) -> float:
    """The length of a cell; 0s is none."""
    return checks.between("1s", "31d")(text) if durations.parse(text) else 0.0


def form(text: str) -> str:
    """A format, or nothing."""
    return checks.one_of(*FORMATS)(text) if text else text


def currency(text: str) -> str:
    """A short word."""
    if len(text) > 8 or not text.isprintable():
        raise ValueError("is no currency; write it as EUR")
    return text


OPTIONS: tuple[Option, ...] = (
    *[replace(option, default=120.0) if option.key == "prometheus.timeout" else option for option in PROMETHEUS],
    Option("since", 0.0, "How far back; at 0s it is 1d, unless --from is given.", checks.between("0s", "36500d")),
    Option("from", "", "Where the time begins, as 2026-11-01 or 2026-11-01T08:30, in UTC.", moment),
    Option("to", "", "Where it ends, in the same form; now if not given.", moment),
    Option("by", "namespace", f"What a line is: {', '.join(GROUPINGS)}.", checks.one_of(*GROUPINGS)),
    Option("top", 0, "Only as many lines of groups, those with most energy; all others in one. 0 is all.", most),
    Option("price", "", "Price of a kWh.", price),
    Option("price-gpu-hour", "", "Price of a GPU-hour.", price),
    Option("gpu-hours", "allocated", f"Which GPU-hours are paid for: {', '.join(HOURS)}.", checks.one_of(*HOURS)),
    Option("currency", "", "What to call the money.", currency),
    Option("carbon", "", "Grams of CO2 equivalent a kWh.", price),
    Option("pue", "1", "Energy of the whole place over that of its computers; costs and carbon are times this.", pue),
    Option("step", 0.0, "How finely the time is cut, from 1s on; at 0s it is found by itself.", step),
    Option("gap", 3600.0, "How long a GPU may have been away for its counters to be taken as going on.",
           checks.between("1m", "7d")),
    Option("allow-partial", False, "Report also on answers with warnings, or with values that are no numbers.",
           checks.switch),
    Option("format", "", f"{', '.join(FORMATS)}; by the ending of --output, else table.", form),
    Option("output", "", "File to write; standard output if not given."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings(Asking):
    """What a report is made of."""

    since: float
    from_: str
    to: str
    by: str
    top: int
    price: str
    price_gpu_hour: str
    gpu_hours: str
    currency: str
    carbon: str
    pue: str
    step: float
    gap: float
    allow_partial: bool
    format: str
    output: str

    def span(self, now_ms: int) -> Span:
        """The time to report on; ConfigError when there is none."""
        if self.since and self.from_:
            raise ConfigError("--since and --from are two ways to say where the time begins; give one of them")
        end_ms = parse_moment(self.to) if self.to else now_ms // 1000 * 1000
        if end_ms > now_ms:
            raise ConfigError(f"--to: {self.to!r} is still to come; leave it out for now")
        since_ms = round((self.since or USUAL_S) * 1000)
        begin_ms = parse_moment(self.from_) if self.from_ else max(0, end_ms - since_ms)
        if begin_ms >= end_ms:
            raise ConfigError(f"--from: {self.from_!r} is not before the end of the time; choose an earlier moment")
        step_ms = min(round(self.step * 1000) or usual_step_ms(end_ms - begin_ms), end_ms - begin_ms)
        if (end_ms - begin_ms) // step_ms > MOST_CELLS:
            raise ConfigError(f"--step: {durations.show(self.step)} is too short for this time; choose a longer one")
        return Span(begin_ms, end_ms, step_ms)

    def prices(self) -> Prices:
        """What was said of them."""
        kwh, gpu_hour, grams = (float(text) if text else None for text in self._amounts())
        return Prices(kwh, gpu_hour, self.gpu_hours, self.currency, grams, float(self.pue))

    def _amounts(self) -> Sequence[str]:
        return self.price, self.price_gpu_hour, self.carbon

    def form(self) -> str:
        """The format; ConfigError when the ending of the file does not tell."""
        if self.format or not self.output:
            return self.format or "table"
        ending = PurePath(self.output).suffix.lower()
        found = [name for name, endings in FORMATS.items() if ending in endings]
        if not found:
            raise ConfigError(f"--output: the ending of {self.output!r} does not say what to write; give --format")
        return found[0]
