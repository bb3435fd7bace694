"""The settings of `gpuledger fleet`; those about Prometheus are for every command that asks one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gpuledger import checks
from gpuledger.config import OPTIONS as EXPORTER
from gpuledger.config import Option
from gpuledger.errors import ConfigError
from gpuledger.fleet.in_use import CLUSTER, RULES, Key
from gpuledger.fleet.prometheus import Access, parse_place
from gpuledger.fleet.queries import Queries, dcgm, native
from gpuledger.fleet.refresh import Plan

UNITS = ("auto", "ratio", "percent")
HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([ -~]+)")
OURS = ("host", "connection", "content-length", "content-type", "transfer-encoding", "accept-encoding")
LABEL = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")


def url(text: str) -> str:
    """Where a Prometheus is."""
    parse_place(text)
    return text


def header(text: str) -> str:
    """A header of a request, as curl takes it."""
    found = HEADER.fullmatch(text)
    if found is None:
        raise ValueError("is no header; write it as X-Scope-OrgID: team")
    if found[1].lower() in OURS:
        raise ValueError("is a header that is made here; leave it out")
    return text


def grouping(text: str) -> Key:
    """Labels joined by +."""
    names = tuple(text.split("+"))
    if not all(LABEL.fullmatch(name) for name in names) or len(set(names)) < len(names):
        raise ValueError("is no label; write it as namespace, or as namespace+pod for each pair")
    if {"by", CLUSTER} & set(names):
        raise ValueError("cannot be grouped by: it would look like a label of this program; rename it in the query")
    return names


def by(text: str) -> str:
    """A grouping, as it was written."""
    grouping(text)
    return text


def _taken(*keys: str) -> list[Option]:
    """The same as the exporter's."""
    return [option for option in EXPORTER if option.key in keys]


PROMETHEUS: tuple[Option, ...] = (
    Option("prometheus.url", "http://localhost:9090",
           "Prometheus, Thanos, Mimir or VictoriaMetrics to ask, with its path prefix.", url),
    Option("prometheus.user", "", "User for basic authentication."),
    Option("prometheus.password-file", "", "File with the password of that user."),
    Option("prometheus.token-file", "", "File with a bearer token; read anew for each question."),
    Option("prometheus.ca-file", "", "File with the certificates to trust, in place of the system's."),
    Option("prometheus.cert-file", "", "File with our certificate, if Prometheus wants one."),
    Option("prometheus.key-file", "", "File with its key, if it is not in the same file."),
    Option("prometheus.insecure-skip-verify", False, "Trust whatever certificate Prometheus shows.", checks.switch),
    Option("prometheus.header", (),
           "Header to send, such as X-Scope-OrgID: team for a tenant of Mimir; may be given several times.",
           header, many=True),
    Option("prometheus.timeout", 10.0, "How long one whole answer may take.", checks.between("100ms", "10m")),
)  # fmt: skip

OPTIONS: tuple[Option, ...] = (
    *PROMETHEUS,
    Option("in-use", "busy", f"When a GPU is in use: {', '.join(RULES)}.", checks.one_of(*RULES)),
    Option("by", (), "Label to group by as well, or several joined by +; may be given several times.", by, many=True),
    Option("window", 0.0, "Average over this time, from gpuledger's counters; at 0s the last scrape counts.",
           checks.between("0s", "1d")),
    Option("dcgm", False, "Ask for dcgm-exporter's metrics in place of gpuledger's.", checks.switch),
    Option("query", "", "PromQL for the utilization of each GPU, in place of the usual one."),
    Option("memory-query", "", "PromQL for the memory utilization of each GPU, in place of the usual one."),
    Option("allocated-query", "", "PromQL with a value over 0 for each GPU that somebody was given."),
    Option("resident-query", "", "PromQL with a value over 0 for each GPU with a process on it."),
    Option("unit", "auto", f"Unit of the queries: {', '.join(UNITS)}; auto takes DCGM_FI_DEV_ metrics for percent.",
           checks.one_of(*UNITS)),
    Option("refresh", 15.0, "How often Prometheus is asked.", checks.between("1s", "10m")),
    Option("max-age", 60.0,
           "How long the last good answer is shown when there is no newer one, and how old its newest sample may be.",
           checks.between("1s", "1h")),
    *[replace(option, default=(":9401",), variables={}) for option in _taken("web.listen-address")],
    *_taken("web.telemetry-path", "web.max-connections", "web.config.file", "web.systemd-socket"),
    *_taken("log.level", "log.format"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asking:
    """The settings of PROMETHEUS."""

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
        """How to ask; ConfigError when some of it contradicts the rest."""
        if bool(self.prometheus_user) != bool(self.prometheus_password_file):
            raise ConfigError("--prometheus.user and --prometheus.password-file belong together; give both or none")
        if self.prometheus_user and self.prometheus_token_file:
            raise ConfigError("--prometheus.user and --prometheus.token-file are two ways to log in; give one of them")
        logins = any(one.lower().startswith("authorization:") for one in self.prometheus_header)
        if logins and (self.prometheus_user or self.prometheus_token_file):
            raise ConfigError("--prometheus.header: there is a login already; leave out Authorization")
        if self.prometheus_key_file and not self.prometheus_cert_file:
            raise ConfigError("--prometheus.key-file is of no use alone; give --prometheus.cert-file too")
        return Access(
            self.prometheus_url,
            self.prometheus_user,
            self.prometheus_password_file,
            self.prometheus_token_file,
            self.prometheus_ca_file,
            self.prometheus_cert_file,
            self.prometheus_key_file,
            self.prometheus_insecure_skip_verify,
            self.prometheus_header,
            self.prometheus_timeout,
        )


@dataclass(frozen=True, slots=True)
class Settings(Asking):
    """What the service is set to."""

    in_use: str
    by: tuple[str, ...]
    window: float
    dcgm: bool
    query: str
    memory_query: str
    allocated_query: str
    resident_query: str
    unit: str
    refresh: float
    max_age: float
    web_listen_address: tuple[str, ...]
    web_telemetry_path: str
    web_max_connections: int
    web_config_file: str
    web_systemd_socket: bool
    log_level: str
    log_format: str

    def plan(self) -> Plan:
        """What to ask and how to sum it up; ConfigError when some of it contradicts the rest."""
        if self.window and (self.dcgm or self.query):
            raise ConfigError("--window needs gpuledger's own counters; put the time into --query in its place, "
                              "as in avg_over_time(METRIC[5m])")  # fmt: skip
        if self.max_age < self.refresh:
            raise ConfigError("--max-age is shorter than --refresh; make it longer, or the values come and go")
        groupings = tuple(dict.fromkeys(grouping(text) for text in self.by))
        theirs = self.dcgm or "DCGM_FI_" in self.query
        usual = dcgm(groupings) if theirs else native(groupings, self.window)
        percent = "DCGM_FI_DEV_" in (self.query or usual.utilization) if self.unit == "auto" else self.unit == "percent"
        queries = Queries(
            self.query or usual.utilization,
            self.memory_query or (usual.memory if percent == theirs else ""),  # one unit for both
            self.allocated_query or usual.allocated,
            self.resident_query or usual.resident,
            "" if self.resident_query else usual.residents,
            usual.info,
            "" if self.query else usual.newest,
            "" if self.allocated_query else usual.known,
        )
        if self.in_use == "resident" and not queries.resident:
            raise ConfigError("--in-use resident: dcgm-exporter does not say who is on a GPU; give --resident-query")
        return Plan(queries, self.in_use, groupings, percent, self.refresh, self.max_age)
