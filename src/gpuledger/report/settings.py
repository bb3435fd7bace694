"""The settings of `gpuledger report`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePath

from gpuledger import checks, durations
from gpuledger.config import Option
from gpuledger.errors import ConfigError
from gpuledger.fleet.settings import PROMETHEUS, PrometheusSettings
from gpuledger.report.queries import GROUPINGS
from gpuledger.report.report import GPU_HOURS, Prices
from gpuledger.report.span import Span, default_step_ms, parse_moment

FORMATS = {"table": (".txt",), "csv": (".csv",), "json": (".json",), "html": (".html", ".htm")}
MAX_CELLS = 11_000
"""The maximum number of points that Prometheus returns per series."""
DEFAULT_SPAN_S = 86400.0
NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")


def amount(text: str) -> str:
    """An amount of 0 or more; may be empty."""
    if text and not NUMBER.fullmatch(text):
        raise ValueError("is not an amount; write it as 0.30")
    return text


def pue(text: str) -> str:
    """A power usage effectiveness of 1 or more."""
    if not NUMBER.fullmatch(text) or float(text) < 1:
        raise ValueError("is not a PUE; write a number from 1 on, such as 1.3")
    return text


def moment(text: str) -> str:
    """A date or a time; may be empty."""
    if text:
        parse_moment(text)
    return text


def top(text: str) -> int:
    """A number of rows; 0 is no limit."""
    return checks.count(text) if text != "0" else 0


def step(text: str) -> float:
    """The length of a cell; 0s chooses it automatically."""
    return checks.between("1s", "31d")(text) if durations.parse(text) else 0.0


def output_format(text: str) -> str:
    """A format; may be empty."""
    return checks.OneOf(*FORMATS)(text) if text else text


def currency(text: str) -> str:
    """A short word."""
    if len(text) > 8 or not text.isprintable():
        raise ValueError("is not a currency; write it as EUR")
    return text


OPTIONS: tuple[Option, ...] = (
    *[replace(option, default=120.0) if option.key == "prometheus.timeout" else option for option in PROMETHEUS],
    Option("since", 0.0, "Length of the span that ends at --to; 0s is 1d, unless --from is given.",
           checks.between("0s", "36500d"), "DURATION"),
    Option("from", "", "Start of the span in UTC, such as 2026-11-01 or 2026-11-01T08:30.", moment, "TIME"),
    Option("to", "", "End of the span in UTC; now if not set.", moment, "TIME"),
    Option("by", "namespace", f"Group rows by: {', '.join(GROUPINGS)}.", checks.OneOf(*GROUPINGS), "GROUPING"),
    Option("top", 0, "Number of groups to show, by energy; the others become one row. 0 shows all.", top, "N"),
    Option("price", "", "Price per kWh.", amount, "AMOUNT"),
    Option("price-gpu-hour", "", "Price per GPU-hour.", amount, "AMOUNT"),
    Option("gpu-hours", "allocated", f"GPU-hours to charge: {', '.join(GPU_HOURS)}.", checks.OneOf(*GPU_HOURS),
           "KIND"),
    Option("currency", "", "Currency to show.", currency, "NAME"),
    Option("carbon", "", "Grams of CO2 equivalent per kWh.", amount, "GRAMS"),
    Option("pue", "1", "Power usage effectiveness (facility energy / IT energy); multiplies costs and carbon.", pue,
           "RATIO"),
    Option("step", 0.0, "Length of the cells that the span is divided into, from 1s; 0s chooses it automatically.",
           step, "DURATION"),
    Option("gap", 3600.0, "Longest absence of a GPU after which its counters are continued.",
           checks.between("1m", "7d"), "DURATION"),
    Option("allow-partial", False, "Create the report even if answers have warnings or values that are not numbers.",
           checks.switch),
    Option("format", "", f"Output format: {', '.join(FORMATS)}. Without it, the suffix of --output decides.",
           output_format, "FORMAT"),
    Option("output", "", "File to write; standard output if not set.", str, "PATH"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings(PrometheusSettings):
    """All settings of a report."""

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
        """The span of the report. Raises ConfigError."""
        if self.since and self.from_:
            raise ConfigError("--since and --from both set the start of the span", "use one of them")
        end_ms = parse_moment(self.to) if self.to else now_ms // 1000 * 1000
        if end_ms > now_ms:
            raise ConfigError(f"--to: {self.to!r} is in the future", "omit it to report until now")
        since_ms = round((self.since or DEFAULT_SPAN_S) * 1000)
        begin_ms = parse_moment(self.from_) if self.from_ else max(0, end_ms - since_ms)
        if begin_ms >= end_ms:
            raise ConfigError(f"--from: {self.from_!r} is not before the end of the span", "choose an earlier time")
        step_ms = min(round(self.step * 1000) or default_step_ms(end_ms - begin_ms), end_ms - begin_ms)
        if (end_ms - begin_ms) // step_ms > MAX_CELLS:
            raise ConfigError(f"--step: {durations.show(self.step)} is too short for this span", "choose a longer one")
        return Span(begin_ms, end_ms, step_ms)

    def prices(self) -> Prices:
        """The prices that were given."""
        amounts = (self.price, self.price_gpu_hour, self.carbon)
        kwh, gpu_hour, grams = (float(text) if text else None for text in amounts)
        return Prices(kwh, gpu_hour, self.gpu_hours, self.currency, grams, pue=float(self.pue))

    def output_format(self) -> str:
        """The output format. Raises ConfigError if the suffix of the file does not determine it."""
        if self.format or not self.output:
            return self.format or "table"
        suffix = PurePath(self.output).suffix.lower()
        formats = [name for name, suffixes in FORMATS.items() if suffix in suffixes]
        if not formats:
            raise ConfigError(f"--output: the suffix of {self.output!r} does not determine the format", "set --format")
        return formats[0]
