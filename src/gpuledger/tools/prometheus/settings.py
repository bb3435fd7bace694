"""Settings of all commands that query a Prometheus."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuledger.config import parsers
from gpuledger.config.settings import in_group
from gpuledger.errors import ConfigError
from gpuledger.tools.prometheus.client import Access, parse_place
from gpuledger.tools.prometheus.expression import OWN

HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([ -~]+)")
RESERVED_HEADERS = ("host", "connection", "content-length", "content-type", "transfer-encoding", "accept-encoding")
MATCHER = r'[A-Za-z_]\w*(?:=|!=|=~|!~)"(?:[^"\\\n]|\\.)*"'
SELECTOR = re.compile(rf"{MATCHER}(?:, ?{MATCHER})*", re.ASCII)

_prometheus = in_group("Prometheus")


def header(text: str) -> str:
    """A request header, as curl takes it."""
    match = HEADER.fullmatch(text)
    if match is None:
        raise ValueError("is not a header; write it as X-Scope-OrgID: team")
    if match[1].lower() in RESERVED_HEADERS:
        raise ValueError("is set by gpuledger; omit it")
    return text


def selector(text: str) -> str:
    """Matchers of labels, as in PromQL."""
    if not SELECTOR.fullmatch(text):
        raise ValueError('is not a list of matchers; write it as job="gpuledger" or, for all jobs, as job=~".*"')
    return text


def check_login(prefix: str, user: str, password_file: str, token_file: str) -> None:
    """Check the flags of a login, which begin with `prefix`. Raises ConfigError."""
    if bool(user) != bool(password_file):
        raise ConfigError(f"{prefix}.user and {prefix}.password-file belong together", "set both or neither")
    if user and token_file:
        raise ConfigError(f"{prefix}.user and {prefix}.token-file exclude each other", "set one of them")


# fmt: off
@dataclass(frozen=True)
class PrometheusSettings:
    """How to reach a Prometheus."""

    prometheus_url: str = _prometheus("prometheus.url", "http://localhost:9090",
        "URL of a Prometheus, Thanos, Mimir or VictoriaMetrics, with its path prefix.", parsers.checked(parse_place),
        "URL")
    prometheus_user: str = _prometheus("prometheus.user", "", "User for basic authentication.", str, "NAME")
    prometheus_password_file: str = _prometheus("prometheus.password-file", "", "File with the password.", str, "PATH")
    prometheus_token_file: str = _prometheus("prometheus.token-file", "",
        "File with a bearer token; read for each query.", str, "PATH")
    prometheus_ca_file: str = _prometheus("prometheus.ca-file", "",
        "File with CA certificates to trust instead of the system's.", str, "PATH")
    prometheus_cert_file: str = _prometheus("prometheus.cert-file", "", "File with a client certificate.", str, "PATH")
    prometheus_key_file: str = _prometheus("prometheus.key-file", "",
        "File with the client key, if it is not in the certificate file.", str, "PATH")
    prometheus_insecure_skip_verify: bool = _prometheus("prometheus.insecure-skip-verify", False,
        "Accept any server certificate.", parsers.switch)
    prometheus_header: tuple[str, ...] = _prometheus("prometheus.header", (),
        "HTTP header to send, such as X-Scope-OrgID: team for Mimir. Can be repeated.", header, "HEADER", many=True)
    prometheus_selector: str = _prometheus("prometheus.selector", OWN,
        'Matchers of the series of exporters, such as job="gpus"; any other target may expose the same names.',
        selector, "MATCHERS")
    prometheus_timeout: float = _prometheus("prometheus.timeout", 10.0, "Time limit for one complete answer.",
        parsers.between("100ms", "10m"), "DURATION")
    # fmt: on

    def access(self) -> Access:
        """Access to the Prometheus. Raises ConfigError for contradictory settings."""
        check_login("--prometheus", self.prometheus_user, self.prometheus_password_file, self.prometheus_token_file)
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
            selector=self.prometheus_selector,
        )
