"""Settings of `gpuledger fleet`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuledger.catalog.dialects.dcgmnames import RATIO, query_unit
from gpuledger.catalog.others import DCGM_FIELD
from gpuledger.config import parsers
from gpuledger.config.exporter import Config
from gpuledger.config.settings import in_group, redeclared
from gpuledger.errors import ConfigError
from gpuledger.model.in_use import BUSY, RESIDENT, RULES
from gpuledger.tools.fleet.queries import FleetQueries, dcgm, native
from gpuledger.tools.fleet.refresh import Plan
from gpuledger.tools.fleet.usage import CLUSTER, Key
from gpuledger.tools.prometheus.settings import PrometheusSettings

UNITS = ("auto", "ratio", "percent")
LABEL = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")

_in_use = in_group("GPUs in use")


def grouping(text: str) -> Key:
    """Labels joined by +."""
    names = tuple(text.split("+"))
    if not all(LABEL.fullmatch(name) for name in names) or len(set(names)) < len(names):
        raise ValueError("is not a label; write it as namespace, or as namespace+pod for several")
    if {"by", CLUSTER} & set(names):
        raise ValueError("conflicts with a label of gpuledger; rename it in the query")
    return names


# fmt: off
@dataclass(frozen=True)
class FleetSettings(PrometheusSettings):
    """All settings of `gpuledger fleet`."""

    in_use: str = _in_use("in-use", BUSY, f"When a GPU counts as in use: {', '.join(RULES)}.", parsers.OneOf(*RULES),
        "RULE")
    by: tuple[str, ...] = _in_use("by", (), "Additional grouping: a label, or several joined by +. Can be repeated.",
        parsers.checked(grouping), "LABELS", many=True)
    window: float = _in_use("window", 0.0,
        "Average over this window, from gpuledger's counters; 0s uses the last scrape.", parsers.between("0s", "1d"),
        "DURATION")
    dcgm: bool = _in_use("dcgm", False, "Query dcgm-exporter's metrics instead of gpuledger's.", parsers.switch)
    query: str = _in_use("query", "", "PromQL for the utilization of each GPU, instead of the default.", str, "PROMQL")
    memory_query: str = _in_use("memory-query", "",
        "PromQL for the memory utilization of each GPU, instead of the default.", str, "PROMQL")
    allocated_query: str = _in_use("allocated-query", "", "PromQL with a value above 0 for each allocated GPU.", str,
        "PROMQL")
    resident_query: str = _in_use("resident-query", "", "PromQL with a value above 0 for each GPU with a process.",
        str, "PROMQL")
    unit: str = _in_use("unit", "auto",
        f"Unit of the queries: {', '.join(UNITS)}. auto knows the unit of dcgm-exporter's metrics.",
        parsers.OneOf(*UNITS), "UNIT")
    sd: bool = _in_use("sd", False,
        "Serve the exporters that Prometheus knows as targets for HTTP service discovery, under /sd.", parsers.switch)
    notify_config: str = _in_use("notify.config", "", "YAML file with the rules and receivers of messages.", str,
        "PATH")
    notify_dry_run: bool = _in_use("notify.dry-run", False, "Print the messages instead of sending them.",
        parsers.switch)
    refresh: float = _in_use("refresh", 15.0, "Time between two refreshes.", parsers.between("1s", "10m"), "DURATION")
    max_age: float = _in_use("max-age", 60.0, "Maximum age of the exposed result, and of its newest sample.",
        parsers.between("1s", "1h"), "DURATION")
    web_listen_address: tuple[str, ...] = redeclared(Config, "web_listen_address", default=(":9401",), variables={})
    web_telemetry_path: str = redeclared(Config, "web_telemetry_path")
    web_max_connections: int = redeclared(Config, "web_max_connections")
    web_allowed_hosts: tuple[str, ...] = redeclared(Config, "web_allowed_hosts")
    web_config_file: str = redeclared(Config, "web_config_file")
    web_systemd_socket: bool = redeclared(Config, "web_systemd_socket")
    log_level: str = redeclared(Config, "log_level")
    log_format: str = redeclared(Config, "log_format")
    # fmt: on

    def plan(self) -> Plan:
        """The queries and how to aggregate them. Raises ConfigError for contradictory settings."""
        if self.window and (self.dcgm or self.query):
            raise ConfigError("--window needs gpuledger's own counters",
                              "put the window into --query, as in avg_over_time(METRIC[5m])")  # fmt: skip
        if self.max_age < self.refresh:
            raise ConfigError(
                "--max-age is shorter than --refresh", "raise it, or values will be missing between refreshes"
            )
        groupings = tuple(dict.fromkeys(grouping(text) for text in self.by))
        from_dcgm = self.dcgm or DCGM_FIELD in self.query
        defaults = dcgm(groupings) if from_dcgm else native(groupings, self.window)
        percent = self.unit == "percent"
        if self.unit == "auto" and self.query:
            unit = query_unit(self.query)
            if unit is None:
                raise ConfigError("--query: the names in it do not tell whether its result is in percent",
                                  "set --unit percent, or --unit ratio if it is from 0 to 1")  # fmt: skip
            percent = unit is RATIO
        elif self.unit == "auto":
            percent = from_dcgm
        queries = FleetQueries(
            utilization=self.query or defaults.utilization,
            memory=self.memory_query or (defaults.memory if percent == from_dcgm else ""),  # one unit for both
            allocated=self.allocated_query or defaults.allocated,
            resident=self.resident_query or defaults.resident,
            residents="" if self.resident_query else defaults.residents,
            info=defaults.info,
            newest="" if self.query else defaults.newest,
            known="" if self.allocated_query else defaults.known,
        )
        if self.in_use == RESIDENT and not queries.resident:
            raise ConfigError("--in-use resident: dcgm-exporter does not report processes", "set --resident-query")
        return Plan(
            queries=queries,
            rule=self.in_use,
            groupings=groupings,
            percent=percent,
            refresh_s=self.refresh,
            max_age_s=self.max_age,
        )
