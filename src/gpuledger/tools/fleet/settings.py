"""Settings of `gpuledger fleet`, and the settings of all commands that query a Prometheus."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gpuledger.config import parsers as checks
from gpuledger.config.options import OPTIONS as EXPORTER
from gpuledger.config.options import Option
from gpuledger.errors import ConfigError
from gpuledger.tools.fleet.in_use import CLUSTER, RULES, Key
from gpuledger.tools.fleet.queries import Queries, dcgm, native
from gpuledger.tools.fleet.refresh import Plan
from gpuledger.tools.prometheus.client import Access, parse_place

UNITS = ("auto", "ratio", "percent")
HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([ -~]+)")
RESERVED_HEADERS = ("host", "connection", "content-length", "content-type", "transfer-encoding", "accept-encoding")
LABEL = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")


def url(text: str) -> str:
    """The URL of a Prometheus."""
    parse_place(text)
    return text


def header(text: str) -> str:
    """A request header, as curl takes it."""
    match = HEADER.fullmatch(text)
    if match is None:
        raise ValueError("is not a header; write it as X-Scope-OrgID: team")
    if match[1].lower() in RESERVED_HEADERS:
        raise ValueError("is set by gpuledger; omit it")
    return text


def grouping(text: str) -> Key:
    """Labels joined by +."""
    names = tuple(text.split("+"))
    if not all(LABEL.fullmatch(name) for name in names) or len(set(names)) < len(names):
        raise ValueError("is not a label; write it as namespace, or as namespace+pod for several")
    if {"by", CLUSTER} & set(names):
        raise ValueError("conflicts with a label of gpuledger; rename it in the query")
    return names


def by(text: str) -> str:
    """A grouping; returns the text unchanged."""
    grouping(text)
    return text


def _shared(*keys: str) -> list[Option]:
    """Options of the exporter."""
    return [option for option in EXPORTER if option.key in keys]


PROMETHEUS: tuple[Option, ...] = (
    Option("prometheus.url", "http://localhost:9090",
           "URL of a Prometheus, Thanos, Mimir or VictoriaMetrics, with its path prefix.", url, "URL"),
    Option("prometheus.user", "", "User for basic authentication.", str, "NAME"),
    Option("prometheus.password-file", "", "File with the password.", str, "PATH"),
    Option("prometheus.token-file", "", "File with a bearer token; read for each query.", str, "PATH"),
    Option("prometheus.ca-file", "", "File with CA certificates to trust instead of the system's.", str, "PATH"),
    Option("prometheus.cert-file", "", "File with a client certificate.", str, "PATH"),
    Option("prometheus.key-file", "", "File with the client key, if it is not in the certificate file.", str, "PATH"),
    Option("prometheus.insecure-skip-verify", False, "Accept any server certificate.", checks.switch),
    Option("prometheus.header", (), "HTTP header to send, such as X-Scope-OrgID: team for Mimir. Can be repeated.",
           header, "HEADER", many=True),
    Option("prometheus.timeout", 10.0, "Time limit for one complete answer.", checks.between("100ms", "10m"),
           "DURATION"),
)  # fmt: skip

OPTIONS: tuple[Option, ...] = (
    *PROMETHEUS,
    Option("in-use", "busy", f"When a GPU counts as in use: {', '.join(RULES)}.", checks.OneOf(*RULES), "RULE"),
    Option("by", (), "Additional grouping: a label, or several joined by +. Can be repeated.", by, "LABELS", many=True),
    Option("window", 0.0, "Average over this window, from gpuledger's counters; 0s uses the last scrape.",
           checks.between("0s", "1d"), "DURATION"),
    Option("dcgm", False, "Query dcgm-exporter's metrics instead of gpuledger's.", checks.switch),
    Option("query", "", "PromQL for the utilization of each GPU, instead of the default.", str, "PROMQL"),
    Option("memory-query", "", "PromQL for the memory utilization of each GPU, instead of the default.", str, "PROMQL"),
    Option("allocated-query", "", "PromQL with a value above 0 for each allocated GPU.", str, "PROMQL"),
    Option("resident-query", "", "PromQL with a value above 0 for each GPU with a process.", str, "PROMQL"),
    Option("unit", "auto", f"Unit of the queries: {', '.join(UNITS)}. auto takes DCGM_FI_DEV_ metrics for percent.",
           checks.OneOf(*UNITS), "UNIT"),
    Option("sd", False, "Serve the exporters that Prometheus knows as targets for HTTP service discovery, under /sd.",
           checks.switch),
    Option("refresh", 15.0, "Time between two refreshes.", checks.between("1s", "10m"), "DURATION"),
    Option("max-age", 60.0, "Maximum age of the exposed result, and of its newest sample.",
           checks.between("1s", "1h"), "DURATION"),
    *[replace(option, default=(":9401",), variables={}) for option in _shared("web.listen-address")],
    *_shared("web.telemetry-path", "web.max-connections", "web.allowed-hosts", "web.config.file", "web.systemd-socket"),
    *_shared("log.level", "log.format"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """Settings of commands that query a Prometheus."""

    prometheus_url: str
    prometheus_user: str
    prometheus_password_file: str
    prometheus_token_file: str
    prometheus_ca_file: str
    prometheus_cert_file: str
    prometheus_key_file: str
    prometheus_insecure_skip_verify: bool
    prometheus_header: tuple[str, ...]
    prometheus_timeout: float

    def access(self) -> Access:
        """Access to the Prometheus. Raises ConfigError for contradictory settings."""
        if bool(self.prometheus_user) != bool(self.prometheus_password_file):
            raise ConfigError("--prometheus.user and --prometheus.password-file belong together", "set both or neither")
        if self.prometheus_user and self.prometheus_token_file:
            raise ConfigError("--prometheus.user and --prometheus.token-file exclude each other", "set one of them")
        has_authorization = any(text.lower().startswith("authorization:") for text in self.prometheus_header)
        if has_authorization and (self.prometheus_user or self.prometheus_token_file):
            raise ConfigError("--prometheus.header: Authorization conflicts with the login", "omit one of them")
        if self.prometheus_key_file and not self.prometheus_cert_file:
            raise ConfigError("--prometheus.key-file needs --prometheus.cert-file", "set both")
        return Access(
            url=self.prometheus_url,
            user=self.prometheus_user,
            password_file=self.prometheus_password_file,
            token_file=self.prometheus_token_file,
            ca_file=self.prometheus_ca_file,
            cert_file=self.prometheus_cert_file,
            key_file=self.prometheus_key_file,
            insecure=self.prometheus_insecure_skip_verify,
            headers=self.prometheus_header,
            timeout_s=self.prometheus_timeout,
        )


@dataclass(frozen=True, slots=True)
class Settings(PrometheusSettings):
    """All settings of `gpuledger fleet`."""

    in_use: str
    by: tuple[str, ...]
    window: float
    dcgm: bool
    query: str
    memory_query: str
    allocated_query: str
    resident_query: str
    unit: str
    sd: bool
    refresh: float
    max_age: float
    web_listen_address: tuple[str, ...]
    web_telemetry_path: str
    web_max_connections: int
    web_allowed_hosts: tuple[str, ...]
    web_config_file: str
    web_systemd_socket: bool
    log_level: str
    log_format: str

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
        from_dcgm = self.dcgm or "DCGM_FI_" in self.query
        defaults = dcgm(groupings) if from_dcgm else native(groupings, self.window)
        percent = self.unit == "percent"
        if self.unit == "auto":
            percent = "DCGM_FI_DEV_" in (self.query or defaults.utilization)
        queries = Queries(
            utilization=self.query or defaults.utilization,
            memory=self.memory_query or (defaults.memory if percent == from_dcgm else ""),  # one unit for both
            allocated=self.allocated_query or defaults.allocated,
            resident=self.resident_query or defaults.resident,
            residents="" if self.resident_query else defaults.residents,
            info=defaults.info,
            newest="" if self.query else defaults.newest,
            known="" if self.allocated_query else defaults.known,
        )
        if self.in_use == "resident" and not queries.resident:
            raise ConfigError("--in-use resident: dcgm-exporter does not report processes", "set --resident-query")
        return Plan(
            queries=queries,
            rule=self.in_use,
            groupings=groupings,
            percent=percent,
            refresh_s=self.refresh,
            max_age_s=self.max_age,
        )
