"""Settings of `gpuledger job`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuledger.config import parsers
from gpuledger.config.exporter import Config
from gpuledger.config.settings import in_group, redeclared
from gpuledger.errors import ConfigError
from gpuledger.model import job_id
from gpuledger.tools.idle.settings import LOCAL, CostSettings

JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}", re.ASCII)
EXPORTER_SOURCE, JOURNAL_SOURCE, PROMETHEUS_SOURCE = "exporter", "journal", "prometheus"

_period = in_group("period and groups")


# fmt: off
@dataclass(frozen=True)
class JobSettings(CostSettings):
    """All settings of `gpuledger job`."""

    prometheus_url: str = redeclared(CostSettings, "prometheus_url",
        help="URL of a Prometheus, for all nodes and for jobs that ended.")
    journal_path: str = redeclared(Config, "journal_path",
        help="Journal of this node's exporter, to read instead of the exporter, which may be down.")
    path_procfs: str = redeclared(Config, "path_procfs")
    since: float = _period("since", 1_209_600.0, "How far back to look for the job in Prometheus.",
        parsers.between("1m", "366d"), "DURATION")
    # fmt: on

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
