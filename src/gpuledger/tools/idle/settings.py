"""Settings of `gpuledger idle`, and of all commands that read an exporter or a Prometheus and show costs."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.config import parsers
from gpuledger.config.settings import in_group, redeclared
from gpuledger.errors import ConfigError
from gpuledger.tools.exporterclient import ExporterSettings
from gpuledger.tools.idle.rows import Prices
from gpuledger.tools.prometheus.settings import PrometheusSettings, optional_url
from gpuledger.tools.report.settings import amount, currency

LOCAL = "localhost:9400"

_idle, _prices = in_group("idle allocations"), in_group("prices and carbon")


# fmt: off
@dataclass(frozen=True)
class CostSettings(PrometheusSettings, ExporterSettings):
    """An exporter or a Prometheus, and prices."""

    prometheus_url: str = redeclared(PrometheusSettings, "prometheus_url", default="", parse=optional_url,
        help="URL of a Prometheus, for all nodes instead of one.")
    connect: str = redeclared(ExporterSettings, "connect", default=LOCAL)
    price: str = _prices("price", "", "Price per kWh.", amount, "AMOUNT")
    price_gpu_hour: str = _prices("price-gpu-hour", "", "Price per GPU-hour.", amount, "AMOUNT")
    currency: str = _prices("currency", "", "Currency to show.", currency, "NAME")
    # fmt: on

    def prices(self) -> Prices:
        """The prices that were given."""
        kwh, gpu_hour = (float(text) if text else None for text in (self.price, self.price_gpu_hour))
        return Prices(kwh, gpu_hour, self.currency)

    def for_fleet(self) -> bool:
        """Whether to query a Prometheus. Raises ConfigError if an exporter is given too."""
        if self.prometheus_url and self.connect != LOCAL:
            raise ConfigError("--connect and --prometheus.url exclude each other", "set one of them")
        return bool(self.prometheus_url)


# fmt: off
@dataclass(frozen=True)
class IdleSettings(CostSettings):
    """All settings of `gpuledger idle`."""

    min: float = _idle("min", 0.0, "Leave out allocations that are idle for a shorter time.",
        parsers.between("0s", "36500d"), "DURATION")
    pairs_window: float = _idle("pairs.window", 604800.0, "Time over which --pairs takes the 95th percentiles.",
        parsers.between("1m", "31d"), "DURATION")
