"""Sends metrics to an OpenTelemetry collector over OTLP/HTTP, in a thread of its own.

A tick waits for nothing: it is handed over as a reference, and encoded in the thread. While the collector is down,
encoded requests wait in a queue of limited size; the oldest one is dropped first. Counters are cumulative, so the next
request that arrives has everything.
"""

from __future__ import annotations

import gzip
import logging
import os
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from gpuledger import __version__
from gpuledger.catalog import CATALOG, Family
from gpuledger.config.exporter import Config
from gpuledger.errors import ConfigError, HttpError
from gpuledger.integrations.otlp.request import Attributes, Metric, Points, encode, parts, rejected
from gpuledger.model import OtlpHealth, Tick
from gpuledger.model.plaintext import one_line, plain
from gpuledger.model.problem import Problem
from gpuledger.net.address import parse_url, redacted
from gpuledger.net.http import Client
from gpuledger.net.tls import TlsSettings
from gpuledger.runtime.poller import Backoff
from gpuledger.runtime.statelog import StateLog

log = logging.getLogger(__name__)

PORT = 4318
"""The default port of OTLP over HTTP."""
MOST_REQUESTS, MOST_BYTES = 60, 8 << 20
"""Limits of the queue."""
ANSWER_LIMIT = 1 << 20
RETRIED = frozenset({401, 403, 404, 408, 429, 500, 502, 503, 504})
"""The collector, its address or the token may be in order later. Any other error is one of the request."""
STOP_S = 2.0
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to send."""

    client: Client
    path: str
    headers: tuple[str, ...] = ()
    token_file: str = ""
    """A file with a bearer token; read for every request, because tokens are rotated."""
    timeout_s: float = 10.0
    compressed: bool = True
    resource: Attributes = ()


@dataclass(frozen=True, slots=True)
class _Request:
    body: bytes
    points: int


class Push:
    """Sends every tick, or one tick per interval."""

    def __init__(
        self,
        target: Target,
        interval_s: float,
        families: Sequence[Family] = CATALOG,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._target, self._interval_s = target, interval_s
        self._monotonic, self._now_ns = monotonic, now_ns
        self._points = Points(families)
        self._queue: deque[_Request] = deque()
        self._backoff = Backoff(monotonic, jitter=True)
        self._problem: Problem | None = None
        self._last_success_ns = self._sent_points = self._rejected_points = 0
        self._dropped: Counter[str] = Counter()
        self._state_log = StateLog(log)
        self._tick: Tick | None = None
        self._due = monotonic()
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def publish(self, tick: Tick) -> None:
        """Hand over a tick, if one is due. Called by the loop; does not wait."""
        now = self._monotonic()
        if now >= self._due:
            self._due = max(self._due + self._interval_s, now)
            self._tick = tick
            self._wake.set()

    def stop(self) -> None:
        """Send what is waiting, once, and end the thread; takes STOP_S at most."""
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    @property
    def health(self) -> OtlpHealth:
        """For the tick."""
        return OtlpHealth(
            up=self._problem is None and self._last_success_ns > 0,
            problem=self._problem,
            last_success_ns=self._last_success_ns,
            waiting=len(self._queue),
            sent_points=self._sent_points,
            rejected_points=self._rejected_points,
            dropped=tuple(sorted(self._dropped.items())),
        )

    def _run(self) -> None:
        while not self._stopped:
            self._wake.wait(max(0.0, self._backoff.left_s()) if self._queue else None)
            self._wake.clear()
            self._guarded_step()
        self._backoff.reset()
        self._guarded_step()

    def _guarded_step(self) -> None:
        try:
            self.step()
        except Exception as error:  # a bug must not end the thread
            log.debug("otlp", exc_info=True)
            self._report(Problem(f"{type(error).__name__}: {error}", kind="bug"))
            self._backoff.failed()

    def step(self) -> None:
        """Encode the new tick, if there is one, and send what is waiting, unless a backoff lasts."""
        tick, self._tick = self._tick, None
        if tick is not None:
            for metrics in parts(self._points.collect(tick)):
                self._enqueue(metrics, tick.time_ns)
                self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        while self._queue and self._backoff.due():
            if not self._send(self._queue[0]):
                self._backoff.failed()
                return
            self._backoff.reset()
            self._queue.popleft()

    def _enqueue(self, metrics: Sequence[Metric], time_ns: int) -> None:
        target = self._target
        body = encode(metrics, target.resource, __version__, time_ns)
        if target.compressed:
            body = gzip.compress(body, 1, mtime=0)
        self._queue.append(_Request(body, sum(len(metric.points) for metric in metrics)))
        while len(self._queue) > MOST_REQUESTS or sum(len(request.body) for request in self._queue) > MOST_BYTES:
            self._queue.popleft()
            self._dropped["queue full"] += 1

    def _send(self, request: _Request) -> bool:
        """Send one request; False to keep it and try again later."""
        target = self._target
        try:
            headers = self._headers()
            with target.client.stream(
                target.path, target.timeout_s, ANSWER_LIMIT, *headers, body=request.body
            ) as response:
                status, answer = response.status, response.body()
        except HttpError as error:
            self._report(error.problem)
            return False
        except OSError as error:
            what = f"cannot read {target.token_file}: {error.strerror}"
            self._report(Problem(what, "name a readable file in --otlp.token-file", "token"))
            return False
        if 200 <= status < 300:
            self._accepted(request, answer)
            return True
        self._report(_refusal(target.client.name, status, answer))
        if status in RETRIED:
            return False
        self._dropped["rejected"] += 1
        return True

    def _headers(self) -> tuple[str, ...]:
        target = self._target
        headers = ["Content-Type: application/x-protobuf", *target.headers]
        if target.compressed:
            headers.append("Content-Encoding: gzip")
        if target.token_file:
            token = Path(target.token_file).read_text(encoding="utf-8", errors="replace").strip()
            headers.append(f"Authorization: Bearer {plain(token)}")
        return tuple(headers)

    def _accepted(self, request: _Request, answer: bytes) -> None:
        problem = None
        try:
            count, reason = rejected(answer)
        except ValueError:
            count, reason = 0, ""  # it accepted the request; what else it says does not matter
        if count:
            what = f"{self._target.client.name} rejected {count} of {request.points} points: {one_line(reason)}"
            problem = Problem(what, "check the log of the collector", "partial")
        self._rejected_points += min(count, request.points)
        self._sent_points += request.points
        self._last_success_ns = self._now_ns()
        self._report(problem)

    def _report(self, problem: Problem | None) -> None:
        self._problem = problem
        self._state_log.change("otlp", str(problem or ""), f"otlp: {problem}", "otlp: metrics are accepted again")


def _refusal(name: str, status: int, answer: bytes) -> Problem:
    """Why a collector refused a request."""
    fix = {
        401: "check --otlp.headers and --otlp.token-file",
        403: "check --otlp.headers and --otlp.token-file",
        404: "check the path of --otlp.endpoint; OTLP over HTTP uses /v1/metrics",
        413: "raise the limit of the collector, or expose fewer processes with --process.max",
        415: "use a collector that accepts OTLP in protobuf",
        429: "the collector is overloaded; raise --otlp.interval",
    }.get(status, "check the log of the collector")
    reason = one_line(answer.decode("utf-8", "replace"))
    return Problem(f"{name} answered {status}{f': {reason}' if reason else ''}", fix, f"http {status}")


def create_push(settings: Config, hostname: str, families: Sequence[Family] = CATALOG) -> Push | None:
    """The push of `--otlp.endpoint`; None without one."""
    if not settings.otlp_endpoint:
        return None
    place = parse_url(settings.otlp_endpoint, PORT)
    if place is None:
        shown = redacted(settings.otlp_endpoint)
        raise ConfigError(f"--otlp.endpoint: {shown!r} is not a URL", "write it as http://collector:4318/v1/metrics")
    address, path = place
    tls = TlsSettings(settings.otlp_ca_file, settings.otlp_cert_file, settings.otlp_key_file)
    target = Target(
        client=Client(address, name=f"the collector at {address}", tls=tls),
        path=path if path.strip("/") else "/v1/metrics",
        headers=headers(settings.otlp_headers),
        token_file=settings.otlp_token_file,
        timeout_s=settings.otlp_timeout,
        compressed=settings.otlp_compression == "gzip",
        resource=resource(settings, hostname),
    )
    return Push(target, settings.otlp_interval, families)


def resource(settings: Config, hostname: str) -> Attributes:
    """The attributes of this exporter; those of the user take precedence."""
    attributes: dict[str, str | int] = {
        "service.name": os.environ.get("OTEL_SERVICE_NAME", "") or "gpuledger",
        "service.version": __version__,
        "service.instance.id": hostname,
        "host.name": hostname,
    }
    if settings.kubernetes_node_name or "NODE_NAME" in os.environ:
        attributes["k8s.node.name"] = hostname
    attributes.update(pairs(settings.otlp_resource_attributes))
    return tuple(attributes.items())


def headers(text: str) -> tuple[str, ...]:
    """The lines of `--otlp.headers`. The error does not show the value, which may be a secret."""
    for key, value in pairs(text):
        if CONTROL.search(f"{key}{value}"):
            raise ConfigError(f"--otlp.headers: the header {key!r} contains a control character, such as a line break",
                              "remove it; %0D and %0A are not allowed in a header")  # fmt: skip
    return tuple(f"{key}: {value}" for key, value in pairs(text))


def pairs(text: str) -> list[tuple[str, str]]:
    """`a=1,b=2` with percent-encoded values, as in OTEL_EXPORTER_OTLP_HEADERS."""
    found = [part.partition("=") for part in text.split(",") if part.strip()]
    return [(key.strip(), unquote(value.strip())) for key, _, value in found]
