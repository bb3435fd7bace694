"""Queries to a Prometheus, or to a server with its API (Thanos, Mimir, VictoriaMetrics).

Every query has a time limit and a size limit; failures are PrometheusErrors.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

from gpuledger.errors import ConnectError, HttpError, PrometheusError
from gpuledger.net.address import Address, has_credentials, parse_url
from gpuledger.net.answers import refused
from gpuledger.net.http import FORM, Client
from gpuledger.net.tls import TlsSettings
from gpuledger.tools.prometheus.answer import Answer, RangeVector, parse, parse_range
from gpuledger.tools.prometheus.expression import OWN
from gpuledger.tools.prometheus.stream import Sink, read

LARGEST_ANSWER = 128 << 20
"""Bytes, read as they arrive. 80,000 series with one label are 9 MB; with all labels of dcgm-exporter, 45 MB."""
LARGEST_BODY = 32 << 20
"""Bytes of an answer that is parsed as a whole."""
LARGEST_SECRET = 64 << 10
T = TypeVar("T")
API = "/api/v1"
REASONS = {"half": "http"}
"""Kinds of HttpError that are merged in the label `reason`."""
FIXES = {
    "size": "query fewer series or fewer labels",
    "http": "check whether it is a Prometheus",
    "timeout": "check whether it is overloaded",
    "tls": "set --prometheus.ca-file; check the URL scheme and whether it requires a client certificate",
    "unreachable": "check whether it is running",
}


@dataclass(frozen=True, slots=True)
class Access:
    """Address and credentials of a Prometheus. Secrets are in files, which may be rotated."""

    url: str
    user: str = ""
    password_file: str = ""
    token_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    insecure: bool = False
    headers: tuple[str, ...] = ()
    timeout_s: float = 10.0
    selector: str = OWN
    """Matchers of the series of exporters."""

    @property
    def tls(self) -> TlsSettings:
        """Certificates and authority."""
        return TlsSettings(self.ca_file, self.cert_file, self.key_file, verify=not self.insecure)


def parse_place(text: str) -> tuple[Address, str]:
    """Address and path prefix of `https://host:9090/prefix`; ValueError says what is accepted."""
    if has_credentials(text):
        raise ValueError("contains a user name or password; set --prometheus.user and --prometheus.password-file")
    address, prefix = parse_url(text) or (None, "")
    if address is None or any(c in prefix for c in "?#"):
        raise ValueError("is not a URL; write it as http://prometheus:9090 or https://host/prefix")
    if f"{API}/" in f"{prefix}/":
        raise ValueError(f"contains an API path; remove {API} and everything after it")
    return address, prefix.rstrip("/")


class Prometheus:
    """A client of one Prometheus."""

    def __init__(self, access: Access, largest: int = LARGEST_ANSWER) -> None:
        self._access, self._largest = access, largest
        address, self._prefix = parse_place(access.url)
        self._client = Client(address, name=access.url, tls=access.tls)

    def query(self, promql: str, at_s: float | None = None, sink: Sink | None = None) -> Answer:
        """Run an instant query, now or at `at_s`. Raises PrometheusError.

        With `sink`, samples are passed to it as they arrive and are not in the answer.
        """
        parameters = {} if at_s is None else {"time": f"{at_s:.3f}"}
        stream = None if sink is None else partial(read, query=promql, sink=sink)
        return self._answer("query", promql, parameters, parse, stream)

    def query_range(self, promql: str, first_s: float, last_s: float, step_s: float) -> RangeVector:
        """Run a range query from `first_s` to `last_s`. Raises PrometheusError."""
        parameters = {
            "start": f"{first_s:.3f}",
            "end": f"{last_s:.3f}",
            "step": f"{step_s:.3f}",
            "nocache": "1",  # VictoriaMetrics would align the times
        }
        return self._answer("query_range", promql, parameters, parse_range)

    def _answer(
        self,
        target: str,
        promql: str,
        parameters: dict[str, str],
        parse: Callable[[bytes, str], T],
        stream: Callable[[Iterable[bytes]], T] | None = None,
    ) -> T:
        """The answer. An error is raised here, because the frames of `_attempt` hold the body of the response."""
        promql = promql.replace(OWN, self._access.selector)
        timeout = f"{self._access.timeout_s:g}"  # Prometheus rejects 2.5s
        form = urlencode({"query": promql, "timeout": timeout, **parameters}).encode()
        answer = self._attempt(f"{self._prefix}{API}/{target}", form, lambda body: parse(body, promql), stream)
        if isinstance(answer, PrometheusError):
            raise answer
        return answer

    def _attempt(
        self, target: str, form: bytes, parse: Callable[[bytes], T], stream: Callable[[Iterable[bytes]], T] | None
    ) -> T | PrometheusError:
        access, status = self._access, 0
        try:
            headers = (*access.headers, *login(access), "Accept: application/json", FORM)
            with self._client.stream(target, access.timeout_s, self._largest, *headers, body=form) as response:
                status = response.status
                if status == 200 and stream is not None:
                    return stream(response.pieces())
                body = response.body(LARGEST_BODY)
            self._check(status, body)
            return parse(body)
        except HttpError as error:
            reason = "unreachable" if isinstance(error, ConnectError) else REASONS.get(error.kind, error.kind)
            return PrometheusError(error.problem.what, FIXES[reason], reason)
        except PrometheusError as error:
            what, fix, kind = error.problem.what, error.problem.fix, error.kind
            if kind == "format" and status != 200:
                what, fix, kind = f"{access.url} responds with status {status}", "check whether it is healthy", "http"
            subject = {"size": f"{access.url} ", "format": f"{access.url}: "}.get(kind, "")
            return PrometheusError(f"{subject}{what}", fix, kind)

    def _check(self, status: int, body: bytes) -> None:
        refusals = {504: ("a proxy timed out", "check whether it is overloaded")}
        has_login = self._access.user or self._access.token_file
        fix = "check user, password or token" if has_login else "set --prometheus.user or .token-file"
        refusals |= dict.fromkeys((401, 403), ("authentication failed", fix))
        if not body.lstrip().startswith(b"{"):
            reason = ("no Prometheus at this path", "check the path prefix of --prometheus.url")
            refusals |= dict.fromkeys((404, 405), reason)
        if status in refusals or 300 <= status < 400:
            kind = {401: "login", 403: "login", 504: "timeout"}.get(status, "http")
            raise refused(PrometheusError, self._access.url, status, refusals, "", kind=kind)


def login(access: Access) -> list[str]:
    """The Authorization header, if there are credentials."""
    if access.token_file:
        return [f"Authorization: Bearer {secret(access.token_file)}"]
    if access.user:
        both = f"{access.user}:{secret(access.password_file)}".encode()
        return [f"Authorization: Basic {base64.b64encode(both).decode()}"]
    return []


def secret(path: str) -> str:
    """A password or token from a file of one line, read for each request: Kubernetes rotates tokens hourly."""
    fix = "write the secret as one line"
    try:
        with Path(path).open("rb") as file:
            text = file.read(LARGEST_SECRET).decode("utf-8").rstrip("\r\n")
    except OSError as error:
        raise PrometheusError(f"cannot read the secret in {path}: {error.strerror}", fix, "login") from None
    except UnicodeDecodeError:
        raise PrometheusError(f"the secret in {path} is not text", fix, "login") from None
    if not text or not text.isprintable():
        raise PrometheusError(f"the secret in {path} is not one line of text", fix, "login")
    return text
