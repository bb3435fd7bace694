"""`gpuledger job ID`: what a batch job used of its GPUs, for an epilog or a user's shell."""

from __future__ import annotations

import argparse
import platform
import re
import time
from dataclasses import dataclass
from pathlib import Path

from gpuledger.cli import terminal
from gpuledger.config import parsers
from gpuledger.config.exporter import Config
from gpuledger.config.settings import in_group, redeclared
from gpuledger.errors import ConfigError, JournalError, LostError, PrometheusError, SnapshotError
from gpuledger.model import job_id
from gpuledger.owners.kernel.procfs import Procfs
from gpuledger.storage.journalfile import JournalFile
from gpuledger.tools.exporterclient import LOCAL, CostSettings, ExporterClient
from gpuledger.tools.job import formats
from gpuledger.tools.job.history import of_prometheus
from gpuledger.tools.job.use import JobUse, of_journal, of_snapshot
from gpuledger.tools.prometheus.client import Prometheus

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


SETTINGS = JobSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("job", metavar="ID", help="the job, such as 211 or $SLURM_JOB_ID")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--short", action="store_true", help="print one line of at most 200 ASCII characters, for a comment of Slurm"
    )


def run(arguments: argparse.Namespace, settings: JobSettings) -> int:
    """Exit code 1 and one line if the job is not known, or its source does not answer."""
    if arguments.json and arguments.short:
        raise ConfigError("--json and --short exclude each other", "set one of them")
    job, source, prices = _parse_job(arguments.job), settings.source(), settings.prices()
    try:
        use = _find(job, source, settings)
    except (LostError, PrometheusError) as error:
        return terminal.fail(str(error))
    except SnapshotError as error:
        return terminal.fail(f"{settings.connect}: {error}")
    except JournalError as error:
        return terminal.fail(f"cannot read the journal {settings.journal_path}: {error}")
    if use is None:
        return terminal.fail(_unknown(job, source, settings))
    if arguments.json:
        text = formats.to_json(use, prices)
    elif arguments.short:
        text = formats.short(use, prices)
    else:
        text = formats.screen(use, prices, colour=terminal.has_colour())
    terminal.write(text.encode())
    return 0


def _find(job: str, source: str, settings: JobSettings) -> JobUse | None:
    if source == PROMETHEUS_SOURCE:
        return of_prometheus(Prometheus(settings.access()), job, time.time(), settings.since)
    if source == JOURNAL_SOURCE:
        state = JournalFile(settings.journal_path).read(Procfs(Path(settings.path_procfs)).boot_id())
        if state is None:
            raise JournalError("it does not exist", "set --journal.path as for the exporter", "missing")
        return of_journal(state, job, platform.node())
    return of_snapshot(ExporterClient(settings.exporter_access())(), job)


def _unknown(job: str, source: str, settings: JobSettings) -> str:
    if source == PROMETHEUS_SOURCE:
        days = f"the last {settings.since / 86400:g} days"
        return (
            f"job {job}: no GPU of it in {settings.prometheus_url} in {days}; check the id (of an array task, "
            "sacct -o JobIDRaw), look further back with --since, or install the prolog in docs/slurm.md"
        )
    place = settings.journal_path if source == JOURNAL_SOURCE else settings.connect
    return (
        f"job {job}: no GPU of it on this node, according to {place}; check the id (of an array task, "
        "sacct -o JobIDRaw), ask the node where it runs, or set --prometheus.url for a job that ended"
    )


def _parse_job(text: str) -> str:
    """The id of a job, without the scheduler. Raises ConfigError."""
    job = job_id(text)
    if not JOB.fullmatch(job):
        raise ConfigError(f"{text[:60]!r} is not a job id", "pass the number, such as 211 or $SLURM_JOB_ID")
    return job
