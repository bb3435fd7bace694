"""The settings of `gpuledger job`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gpuledger.config import parsers as checks
from gpuledger.config.options import OPTIONS as EXPORTER
from gpuledger.config.options import Option
from gpuledger.errors import ConfigError
from gpuledger.model import job_id
from gpuledger.tools.fleet.settings import PROMETHEUS
from gpuledger.tools.idle.settings import LOCAL, CostSettings, optional_url
from gpuledger.tools.report.settings import amount, currency
from gpuledger.tools.top.exporter import OWN

JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}", re.ASCII)
EXPORTER_SOURCE, JOURNAL_SOURCE, PROMETHEUS_SOURCE = "exporter", "journal", "prometheus"


def _shared(key: str, text: str = "") -> Option:
    option = next(option for option in EXPORTER if option.key == key)
    return replace(option, help=text or option.help)


OPTIONS: tuple[Option, ...] = (
    *[
        replace(option, default="", help="URL of a Prometheus, for all nodes and for jobs that ended.",
                parse=optional_url)
        if option.key == "prometheus.url"
        else option
        for option in PROMETHEUS
    ],
    *[replace(option, default=LOCAL) if option.key == "connect" else option for option in OWN],
    _shared("journal.path", "Journal of this node's exporter, to read instead of the exporter, which may be down."),
    _shared("path.procfs"),
    Option("since", 1_209_600.0, "How far back to look for the job in Prometheus.", checks.between("1m", "366d"),
           "DURATION"),
    Option("price", "", "Price per kWh.", amount, "AMOUNT"),
    Option("price-gpu-hour", "", "Price per GPU-hour.", amount, "AMOUNT"),
    Option("currency", "", "Currency to show.", currency, "NAME"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings(CostSettings):
    """All settings of `gpuledger job`."""

    journal_path: str
    path_procfs: str
    since: float

    def source(self) -> str:
        """Where to look for the job: a Prometheus, an exporter that was given, a journal, or the exporter here."""
        has_exporter = self.connect != LOCAL
        if self.for_fleet():
            return PROMETHEUS_SOURCE
        return JOURNAL_SOURCE if self.journal_path and not has_exporter else EXPORTER_SOURCE


def parse_job(text: str) -> str:
    """The id of a job, without the scheduler. Raises ConfigError."""
    job = job_id(text)
    if not JOB.fullmatch(job):
        raise ConfigError(f"{text[:60]!r} is not a job id", "pass the number, such as 211 or $SLURM_JOB_ID")
    return job
