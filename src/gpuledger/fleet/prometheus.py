"""Asking a Prometheus, or what speaks as one (Thanos, Mimir, VictoriaMetrics), for values now or over a time.

Every question has one deadline and one limit of size, and ends with an Answer or with a PrometheusError in one line.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

from gpuledger.fleet.answer import Answer, Courses, parse, parse_range
from gpuledger.fleet.failure import PrometheusError
from gpuledger.fleet.stream import Take, read
from gpuledger.httpclient import Address, Client, HttpError, TooLargeError, holds_login, parse_url

LARGEST_ANSWER = 128 << 20
"""Bytes. 80,000 series with one label are 9 MB; with all the labels of dcgm-exporter, 45 MB."""
LARGEST_SECRET = 64 << 10
T = TypeVar("T")
API = "/api/v1"


@dataclass(frozen=True, slots=True)
class Access:
    """Where a Prometheus is and how it lets us in. Secrets are in files, which may change at any time."""

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


def parse_place(text: str) -> tuple[Address, str]:
    """Address and path prefix of `https://host:9090/prefix`; ValueError says what would be right."""
    if holds_login(text):
        raise ValueError("holds a user name or password; give --prometheus.user and --prometheus.password-file")
    address, prefix = parse_url(text) or (None, "")
    if address is None or any(c in prefix for c in "?#"):
        raise ValueError("is no URL of a Prometheus; write it as http://prometheus:9090 or https://host/prefix")
    if f"{API}/" in f"{prefix}/":
        raise ValueError(f"goes too far; leave out {API} and what comes after it")
    return address, prefix.rstrip("/")


class Prometheus:
    """Asks one server."""

    def __init__(self, access: Access, largest: int = LARGEST_ANSWER) -> None:
        self._access, self._largest = access, largest
        self._address, self._prefix = parse_place(access.url)
        self._client: Client | None = None
        self._files: tuple[object, ...] = ()

    def query(self, promql: str, at_s: float | None = None, take: Take | None = None) -> Answer:
        """The values now, or at a moment of the server's clock; raises PrometheusError.

        With `take` the series go there as they arrive, and are not in the answer.
        """
        asked = {"query": promql, "timeout": f"{self._access.timeout_s:g}"}  # no 2.5s for Prometheus
        if at_s is not None:
            asked["time"] = f"{at_s:.3f}"
        with self._post(f"{API}/query", urlencode(asked).encode()) as (status, pieces):
            if status == 200 and take is not None:
                return self._understood(status, lambda: read(pieces, promql, take))
            body = b"".join(pieces)
        self._check(status, body)
        return self._understood(status, lambda: parse(body, promql))

    def query_range(self, promql: str, first_s: float, last_s: float, step_s: float) -> Courses:
        """The values at the first moment, and at each step after it up to the last; raises PrometheusError."""
        asked = {
            "query": promql,
            "timeout": f"{self._access.timeout_s:g}",
            "start": f"{first_s:.3f}",
            "end": f"{last_s:.3f}",
            "step": f"{step_s:.3f}",
            "nocache": "1",  # else VictoriaMetrics moves the moments
        }
        with self._post(f"{API}/query_range", urlencode(asked).encode()) as (status, pieces):
            body = b"".join(pieces)
        self._check(status, body)
        return self._understood(status, lambda: parse_range(body, promql))

    def _understood(self, status: int, answer: Callable[[], T]) -> T:
        try:
            return answer()
        except PrometheusError as error:
            if error.reason != "format":
                raise
            if status != 200:
                raise PrometheusError("http", f"{self._access.url} answers {status}; is it healthy?") from None
            raise PrometheusError("format", f"{self._access.url}: {error}") from None

    def _check(self, status: int, body: bytes) -> None:
        url = self._access.url
        if 300 <= status < 400:
            raise PrometheusError("http", f"{url} answers {status}, a redirect, which is not followed; give the "
                                  "address it leads to")  # fmt: skip
        if status in (401, 403):
            given = self._access.user or self._access.token_file
            todo = "are user, password or token right?" if given else "give --prometheus.user or .token-file"
            raise PrometheusError("login", f"{url} answers {status} and does not let us in; {todo}")
        if status == 504:
            raise PrometheusError("timeout", f"{url} answers 504: what is before Prometheus waits no longer for it")
        if status in (404, 405) and not body.lstrip().startswith(b"{"):
            raise PrometheusError("http", f"{url} answers {status}: there is no Prometheus at this path; is a prefix "
                                  "missing in --prometheus.url?")  # fmt: skip

    @contextmanager
    def _post(self, target: str, form: bytes) -> Iterator[tuple[int, Iterator[bytes]]]:
        url, timeout_s = self._access.url, self._access.timeout_s
        try:
            client = self._current()
            headers = [*self._access.headers, *login(self._access), "Accept: application/json", "User-Agent: gpuledger"]
            with client.stream(self._prefix + target, timeout_s, self._largest, *headers, form=form) as answer:
                status, _, pieces = answer
                yield status, pieces
        except TooLargeError as error:
            raise PrometheusError("size", f"{url} {error}; ask for fewer series or fewer labels") from error
        except HttpError as error:
            raise PrometheusError("http", f"{url} {error}; is it a Prometheus?") from error
        except TimeoutError as error:
            message = f"no whole answer from {url} within {timeout_s:g} s; is it overloaded?"
            raise PrometheusError("timeout", message) from error
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> PrometheusError:
        import ssl

        url = self._access.url
        if isinstance(error, ssl.SSLCertVerificationError):
            return PrometheusError("tls", f"the certificate of {url} is not trusted: {error.verify_message}; "
                                   "give --prometheus.ca-file")  # fmt: skip
        if isinstance(error, ssl.SSLError):
            why = (error.reason or str(error)).replace("_", " ").lower()
            return PrometheusError("tls", f"no TLS with {url}: {why}; is it https, and is a client certificate wanted?")
        return PrometheusError("unreachable", f"cannot reach {url}: {error.strerror or error}; is it running?")

    def _current(self) -> Client:
        """A client that knows the TLS files as they are now."""
        access = self._access
        files = tuple(_signature(path) for path in (access.ca_file, access.cert_file, access.key_file))
        if self._client is None or files != self._files:
            self._files = files
            self._client = Client(
                self._address,
                ca=access.ca_file,
                cert=access.cert_file,
                key=access.key_file,
                insecure=access.insecure,
            )
        return self._client


def login(access: Access) -> list[str]:
    """The header that lets us in, if one is needed."""
    if access.token_file:
        return [f"Authorization: Bearer {secret(access.token_file)}"]
    if access.user:
        both = f"{access.user}:{secret(access.password_file)}".encode()
        return [f"Authorization: Basic {base64.b64encode(both).decode()}"]
    return []


def secret(path: str) -> str:
    """The one line of a file with a password or token, read each time: Kubernetes replaces tokens hourly."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(LARGEST_SECRET).decode("utf-8").rstrip("\r\n")
    except OSError as error:
        raise PrometheusError("login", f"cannot read the secret in {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PrometheusError("login", f"the secret in {path} is not text; write it as one line") from None
    if not text or not text.isprintable():
        raise PrometheusError("login", f"the secret in {path} is not one line of text; write it as one line")
    return text


def _signature(path: str) -> object:
    with suppress(OSError):
        info = os.stat(path)  # noqa: PTH116 - of a path that may be empty
        return info.st_ino, info.st_mtime_ns, info.st_size
    return None
