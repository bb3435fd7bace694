"""`gpuledger idle`: allocated GPUs that are not used, ranked by cost; pairs of workloads that would fit on one GPU."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from gpuledger.cli import terminal
from gpuledger.config import durations, parsers
from gpuledger.config.settings import in_group
from gpuledger.errors import ConfigError, LostError, PrometheusError, SnapshotError
from gpuledger.model import ADVICE_AFTER_S
from gpuledger.model.plaintext import escaped
from gpuledger.tools.exporterclient import CostSettings, ExporterClient
from gpuledger.tools.idle import pairs
from gpuledger.tools.idle.formats import idle_json, idle_table, pairs_json, pairs_table
from gpuledger.tools.idle.rows import QUERIES, ranked, rows_of_fleet, rows_of_node
from gpuledger.tools.prometheus.answer import Series
from gpuledger.tools.prometheus.client import Prometheus

_idle_group = in_group("idle allocations")


# fmt: off
@dataclass(frozen=True)
class IdleSettings(CostSettings):
    """All settings of `gpuledger idle`."""

    min: float = _idle_group("min", ADVICE_AFTER_S, "Leave out allocations that are idle for a shorter time. 0s lists "
        f"all, with the command that would free them after {durations.show(ADVICE_AFTER_S)}.",
        parsers.between("0s", "36500d"), "DURATION")
    pairs_window: float = _idle_group("pairs.window", 604800.0, "Time over which --pairs takes the 95th percentiles.",
        parsers.between("1m", "31d"), "DURATION")
    # fmt: on


SETTINGS = IdleSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs that free idle GPUs")
    parser.add_argument(
        "--pairs", action="store_true", help="suggest workloads that would fit on one GPU; needs --prometheus.url"
    )


def run(arguments: argparse.Namespace, settings: IdleSettings) -> int:
    """Exit code 1 and one line if the exporter or the Prometheus does not answer."""
    for_fleet = settings.for_fleet()
    if arguments.pairs and not for_fleet:
        raise ConfigError("--pairs needs the values of a week", "set --prometheus.url")
    try:
        if arguments.pairs:
            text = _pairs(settings, as_json=arguments.json)
        else:
            text = _idle(settings, for_fleet=for_fleet, as_json=arguments.json)
    except (LostError, PrometheusError) as error:
        return terminal.fail(str(error))
    except SnapshotError as error:
        return terminal.fail(f"{settings.connect}: {error}")
    terminal.write(text.encode())
    return 0


def _idle(settings: IdleSettings, *, for_fleet: bool, as_json: bool) -> str:
    prices = settings.prices()
    if for_fleet:
        now_s = time.time()
        rows = rows_of_fleet(_answers(settings, QUERIES, now_s), now_s, prices)
    else:
        snapshot = ExporterClient(settings.exporter_access())()
        now_s, rows = snapshot.time, rows_of_node(snapshot, prices)
    listed = ranked(rows, settings.min)
    others = len(rows) - len(listed)
    if as_json:
        return idle_json(listed, prices, now_s, settings.min, others)
    colour = terminal.has_colour()
    return idle_table(listed, prices, nodes=for_fleet, colour=colour, min_s=settings.min, others=others)


def _pairs(settings: IdleSettings, *, as_json: bool) -> str:
    queries = pairs.queries(settings.pairs_window)
    found = pairs.find_pairs(pairs.workloads(_answers(settings, queries, time.time())))
    return pairs_json(found, queries) if as_json else pairs_table(found, queries, colour=terminal.has_colour())


def _answers(settings: IdleSettings, queries: Mapping[str, str], now_s: float) -> dict[str, tuple[Series, ...]]:
    """The result of each query at one moment. Warnings of the server are printed."""
    server = Prometheus(settings.access())
    answers = {}
    for name, promql in queries.items():
        answer = server.query(promql, now_s)
        for warning in answer.warnings:
            print(f"gpuledger: Prometheus warns: {escaped(warning)}", file=sys.stderr)
        answers[name] = answer.series
    return answers
