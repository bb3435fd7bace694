"""Settings of `gpuledger report`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timezone, tzinfo
from pathlib import PurePath
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gpuledger.config import durations, parsers
from gpuledger.config.settings import in_group, redeclared
from gpuledger.errors import ConfigError
from gpuledger.tools.prices import NUMBER, amount, currency
from gpuledger.tools.prometheus.settings import PrometheusSettings
from gpuledger.tools.report.queries import GROUPINGS, Grouping, find_grouping
from gpuledger.tools.report.rates import GPU_HOURS, Embodied, Rates
from gpuledger.tools.report.span import MAX_POINTS, Span, default_step_ms, parse_moment, parse_month

FORMATS = {"table": (".txt",), "csv": (".csv",), "json": (".json",), "html": (".html", ".htm"), "focus": ()}
CURRENCY = re.compile("[A-Z]{3}")
IDLE = ("row", "spread")
DEFAULT_SPAN_S = 86400.0

_period, _prices, _output = in_group("period and groups"), in_group("prices and carbon"), in_group("output")


def pue(text: str) -> str:
    """A power usage effectiveness of 1 or more."""
    if not NUMBER.fullmatch(text) or float(text) < 1:
        raise ValueError("is not a PUE; write a number from 1 on, such as 1.3")
    return text


def find_zone(text: str) -> tzinfo:
    """A time zone. Raises ValueError."""
    if text.upper() == "UTC":
        return timezone.utc
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("is no known time zone; write it as Europe/Berlin, and install tzdata") from None


def by(text: str) -> str:
    """A grouping."""
    return find_grouping(text).name


def model_price(text: str) -> str:
    """The price of a GPU-hour of one model of GPU."""
    model, _, price = text.rpartition("=")
    if not model.strip() or not price:
        raise ValueError("is no price of a model; write it as 'NVIDIA H200=2.50'")
    return f"{model.strip()}={amount(price.strip())}"


def top(text: str) -> int:
    """A number of rows; 0 is no limit."""
    return parsers.count(text) if text != "0" else 0


def step(text: str) -> float:
    """The length of a cell; 0s chooses it automatically."""
    return parsers.between("1s", "31d")(text) if durations.parse(text) else 0.0


def name(text: str) -> str:
    """A name in a bill."""
    if not text or len(text) > 200 or not text.isprintable():
        raise ValueError("is not a name; write one of at most 200 printable characters")
    return text


# fmt: off
@dataclass(frozen=True)
class ReportSettings(PrometheusSettings):
    """All settings of a report."""

    prometheus_timeout: float = redeclared(PrometheusSettings, "prometheus_timeout", default=120.0)
    since: float = _period("since", 0.0, "Length of the span that ends at --to; 0s is 1d, unless --from is given.",
        parsers.between("0s", "36500d"), "DURATION")
    from_: str = _period("from", "", "Start of the span, such as 2026-11-01 or 2026-11-01T08:30.",
        parsers.checked(parse_moment, optional=True), "TIME")
    to: str = _period("to", "", "End of the span; now if not set.",
        parsers.checked(parse_moment, optional=True), "TIME")
    month: str = _period("month", "", "Report on a month, such as 2026-10; until now if it is not over.",
        parsers.checked(parse_month, optional=True), "MONTH")
    time_zone: str = _period("time-zone", "UTC",
        "Time zone of --month, --from, --to and of the report: UTC, or a name such as "
        "Europe/Berlin.", parsers.checked(find_zone), "ZONE")
    by: str = _period("by", "namespace", f"Group rows by: {', '.join(GROUPINGS)} or label:NAME.", by, "GROUPING")
    map: str = _period("map", "",
        "CSV file with the department of each group, such as a user; the report is by department.", str, "PATH")
    top: int = _period("top", 0, "Number of groups to show, by energy; the others become one row. 0 shows all.", top,
        "N")
    price: str = _prices("price", "", "Price per kWh.", amount, "AMOUNT")
    price_gpu_hour: str = _prices("price-gpu-hour", "", "Price per GPU-hour, of models without --price-model.", amount,
        "AMOUNT")
    price_model: tuple[str, ...] = _prices("price-model", (),
        "Price per GPU-hour of a model, such as 'NVIDIA H200=2.50'. Can be repeated.", model_price, "MODEL=AMOUNT",
        many=True)
    gpu_hours: str = _prices("gpu-hours", "allocated",
        f"GPU-hours to charge: {', '.join(GPU_HOURS)} (of entitlement and busy). share apportions shared GPUs.",
        parsers.OneOf(*GPU_HOURS),
        "KIND")
    idle: str = _prices("idle", "row",
        f"Idle and unattributed energy: {', '.join(IDLE)} (rows of their own, or spread over all "
        "other rows in proportion to their use).",
        parsers.OneOf(*IDLE), "POLICY")
    currency: str = _prices("currency", "", "Currency to show.", currency, "NAME")
    carbon: str = _prices("carbon", "", "Grams of CO2 equivalent per kWh.", amount, "GRAMS")
    carbon_query: str = _prices("carbon-query", "",
        "PromQL of the grid's carbon intensity in grams per kWh, which weights each cell of the "
        "report; instead of --carbon.",
        str, "PROMQL")
    embodied: str = _prices("embodied", "", "Emissions of the production of one GPU, in kg of CO2 equivalent.", amount,
        "KG")
    embodied_lifetime: float = _prices("embodied-lifetime", 5 * 365.25 * 86400,
        "Life of a GPU, over whose hours --embodied is divided.", parsers.between("1d", "36500d"), "DURATION")
    pue: str = _prices("pue", "1",
        "Power usage effectiveness (facility energy / IT energy); multiplies costs and carbon.", pue, "RATIO")
    step: float = _period("step", 0.0,
        "Length of the cells that the span is divided into, from 1s; 0s chooses it automatically.", step, "DURATION")
    gap: float = _period("gap", 3600.0, "Longest absence of a GPU after which its counters are continued.",
        parsers.between("1m", "7d"), "DURATION")
    allow_partial: bool = _output("allow-partial", False,
        "Create the report even if answers have warnings or values that are not numbers.", parsers.switch)
    format: str = _output("format", "",
        f"Output format: {', '.join(FORMATS)}. Without it, the suffix of --output decides.",
        parsers.checked(parsers.OneOf(*FORMATS), optional=True), "FORMAT")
    output: str = _output("output", "",
        "File to write; standard output if not set. With --map, also a folder, which ends with /: it gets a file for "
        "each department.", str, "PATH")
    billing_account: str = _output("billing-account", "gpuledger", "Billing account in the rows of --format focus.",
        name, "NAME")
    provider_name: str = _output("provider-name", "gpuledger",
        "Provider and issuer of the invoice in the rows of --format focus.", name, "NAME")
    # fmt: on

    def span(self, now_ms: int) -> Span:
        """The span of the report. Raises ConfigError."""
        zone = find_zone(self.time_zone)
        begin_ms, end_ms = self._ends_of_month(now_ms, zone) if self.month else self._ends(now_ms, zone)
        step_ms = min(round(self.step * 1000) or default_step_ms(end_ms - begin_ms), end_ms - begin_ms)
        if (end_ms - begin_ms) // step_ms > MAX_POINTS:
            raise ConfigError(f"--step: {durations.show(self.step)} is too short for this span", "choose a longer one")
        return Span(begin_ms, end_ms, step_ms, zone)

    def is_month_over(self, span: Span) -> bool:
        """Whether the span is the whole month, if one is set."""
        return not self.month or parse_month(self.month, span.zone)[1] == span.end_ms

    def _ends(self, now_ms: int, zone: tzinfo) -> tuple[int, int]:
        if self.since and self.from_:
            raise ConfigError("--since and --from both set the start of the span", "use one of them")
        end_ms = parse_moment(self.to, zone) if self.to else now_ms // 1000 * 1000
        if end_ms > now_ms:
            raise ConfigError(f"--to: {self.to!r} is in the future", "omit it to report until now")
        since_ms = round((self.since or DEFAULT_SPAN_S) * 1000)
        begin_ms = parse_moment(self.from_, zone) if self.from_ else max(0, end_ms - since_ms)
        if begin_ms >= end_ms:
            raise ConfigError(f"--from: {self.from_!r} is not before the end of the span", "choose an earlier time")
        return begin_ms, end_ms

    def _ends_of_month(self, now_ms: int, zone: tzinfo) -> tuple[int, int]:
        if self.since or self.from_ or self.to:
            raise ConfigError("--month sets the span, as --since, --from and --to do", "use --month alone")
        begin_ms, end_ms = parse_month(self.month, zone)
        now_ms = now_ms // 1000 * 1000
        if begin_ms >= now_ms:
            raise ConfigError(f"--month: {self.month!r} has not begun", "choose an earlier month")
        return begin_ms, min(end_ms, now_ms)

    def grouping(self) -> Grouping:
        """The grouping of the rows."""
        return find_grouping(self.by)

    def prices(self) -> Rates:
        """The prices that were given. Raises ConfigError if a model has two."""
        if self.carbon and self.carbon_query:
            raise ConfigError("--carbon and --carbon-query both set the carbon intensity", "use one of them")
        amounts = (self.price, self.price_gpu_hour, self.carbon)
        kwh, gpu_hour, grams = (float(text) if text else None for text in amounts)
        models: dict[str, float] = {}
        for text in self.price_model:
            model, _, price = text.rpartition("=")
            if model in models:
                raise ConfigError(f"--price-model: {model!r} has two prices", "remove one of them")
            models[model] = float(price)
        embodied = Embodied(float(self.embodied), self.embodied_lifetime) if self.embodied else None
        return Rates(
            kwh,
            gpu_hour,
            self.currency,
            self.gpu_hours,
            grams,
            pue=float(self.pue),
            models=models,
            carbon_query=self.carbon_query,
            embodied=embodied,
        )

    def check_hours(self) -> None:
        """Check the hours to charge. Raises ConfigError."""
        if self.gpu_hours in ("entitlement", "larger") and not find_grouping(self.by).has_allocations:
            raise ConfigError(f"--gpu-hours {self.gpu_hours}: allocations have no {self.by}", "use --by job or account")
        if self.gpu_hours == "larger" and self.price_model:
            raise ConfigError("--gpu-hours larger has no hours by model", "use --price-gpu-hour")

    def check_focus(self) -> None:
        """Check the settings of `--format focus`. Raises ConfigError."""
        if not CURRENCY.fullmatch(self.currency):
            raise ConfigError("--format focus needs a currency as in ISO 4217", "set --currency, such as EUR")
        if not (self.price or self.price_gpu_hour or self.price_model):
            raise ConfigError("--format focus needs a price", "set --price, --price-gpu-hour or both")
        for setting, is_set in {"--map": self.map, "--top": self.top, "--idle spread": self.idle == "spread"}.items():
            if is_set:
                raise ConfigError(f"--format focus: {setting} has no effect on its rows", "omit it")
        if find_grouping(self.by).of == "gpus":
            raise ConfigError(f"--format focus: --by {self.by} has no owners", "use --by namespace, pod or user")

    def output_format(self) -> str:
        """The output format. Raises ConfigError if the suffix of the file does not determine it."""
        if self.format or not self.output:
            return self.format or "table"
        suffix = PurePath(self.output).suffix.lower()
        formats = [name for name, suffixes in FORMATS.items() if suffix in suffixes]
        if not formats:
            raise ConfigError(f"--output: the suffix of {self.output!r} does not determine the format", "set --format")
        return formats[0]
