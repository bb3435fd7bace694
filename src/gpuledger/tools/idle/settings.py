"""The settings of `gpuledger idle`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuledger.config import parsers as checks
from gpuledger.config.options import Option
from gpuledger.errors import ConfigError
from gpuledger.tools.fleet.settings import PROMETHEUS, PrometheusSettings, url
from gpuledger.tools.idle.rows import Prices
from gpuledger.tools.prometheus.client import Access
from gpuledger.tools.report.settings import amount, currency
from gpuledger.tools.top.exporter import OWN, exporter_access

LOCAL = "localhost:9400"


def optional_url(text: str) -> str:
    """The URL of a Prometheus; may be empty."""
    return url(text) if text else text


OPTIONS: tuple[Option, ...] = (
    *[
        replace(option, default="", help="URL of a Prometheus, for all nodes instead of one.", parse=optional_url)
        if option.key == "prometheus.url"
        else option
        for option in PROMETHEUS
    ],
    *[replace(option, default=LOCAL) if option.key == "connect" else option for option in OWN],
    Option("min", 0.0, "Leave out allocations that are idle for a shorter time.", checks.between("0s", "36500d"),
           "DURATION"),
    Option("price", "", "Price per kWh.", amount, "AMOUNT"),
    Option("price-gpu-hour", "", "Price per GPU-hour.", amount, "AMOUNT"),
    Option("currency", "", "Currency to show.", currency, "NAME"),
    Option("pairs.window", 604800.0, "Time over which --pairs takes the 95th percentiles.", checks.between("1m", "31d"),
           "DURATION"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CostSettings(PrometheusSettings):
    """Settings of commands that read an exporter or a Prometheus, and show costs."""

    connect: str
    exporter_user: str
    exporter_password_file: str
    exporter_token_file: str
    exporter_ca_file: str
    exporter_insecure_skip_verify: bool
    price: str
    price_gpu_hour: str
    currency: str

    def prices(self) -> Prices:
        """The prices that were given."""
        kwh, gpu_hour = (float(text) if text else None for text in (self.price, self.price_gpu_hour))
        return Prices(kwh, gpu_hour, self.currency)

    def exporter_access(self) -> Access:
        """How to connect to the exporter. Raises ConfigError for contradictory settings."""
        return exporter_access(self)

    def for_fleet(self) -> bool:
        """Whether to query a Prometheus. Raises ConfigError if an exporter is given too."""
        if self.prometheus_url and self.connect != LOCAL:
            raise ConfigError("--connect and --prometheus.url exclude each other", "set one of them")
        return bool(self.prometheus_url)


@dataclass(frozen=True, slots=True)
class Settings(CostSettings):
    """All settings of `gpuledger idle`."""

    min: float
    pairs_window: float
