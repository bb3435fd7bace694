"""Sends metrics to an OpenTelemetry collector over OTLP/HTTP, in a thread of its own.

A tick waits for nothing: it is handed over as a reference, and encoded in the thread. While the collector is down,
encoded requests wait in a queue of limited size; the oldest one is dropped first. Counters are cumulative, so the next
request that arrives has everything.
"""

from __future__ import annotations

import gzip
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpuledger import __version__
from gpuledger.errors import HttpError
from gpuledger.integrations.otlp import encode
from gpuledger.integrations.otlp.points import Attributes, Points
from gpuledger.model import OtlpHealth, Tick
from gpuledger.model.plaintext import one_line, plain
from gpuledger.model.problem import Problem
from gpuledger.net.http import Client
from gpuledger.runtime.poller import Backoff
from gpuledger.runtime.statelog import StateLog

log = logging.getLogger(__name__)

PROTOBUF, JSON = "http/protobuf", "http/json"
PROTOCOLS = {PROTOBUF: "application/x-protobuf", JSON: "application/json"}
MOST_REQUESTS, MOST_BYTES = 60, 8 << 20
"""Limits of the queue."""
ANSWER_LIMIT = 1 << 20
RETRIED = frozenset({401, 403, 404, 408, 429, 500, 502, 503, 504})
"""The collector, its address or the token may be in order later. Any other error is one of the request."""
STOP_S = 2.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to send."""

    client: Client
    path: str
    protocol: str = PROTOBUF
    headers: tuple[str, ...] = ()
    token_file: str = ""
    """A file with a bearer token; read for every request, because tokens are rotated."""
    timeout_s: float = 10.0
    compressed: bool = True
    resource: Attributes = ()


@dataclass(slots=True)
class _State:
    """What the thread reports, replaced as a whole."""

    problem: Problem | None = None
    last_success_ns: int = 0
    sent_points: int = 0
    rejected_points: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


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
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._target, self._interval_s = target, interval_s
        self._monotonic, self._now_ns = monotonic, now_ns
        self._points = Points()
        self._queue: deque[_Request] = deque()
        self._backoff = Backoff(monotonic, jitter=True)
        self._state = _State()
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
        state = self._state
        return OtlpHealth(
            up=state.problem is None and state.last_success_ns > 0,
            problem=state.problem,
            last_success_ns=state.last_success_ns,
            waiting=len(self._queue),
            sent_points=state.sent_points,
            rejected_points=state.rejected_points,
            dropped=tuple(sorted(state.dropped.items())),
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
            self._enqueue(tick)
        while self._queue and self._backoff.due():
            if not self._send(self._queue[0]):
                self._backoff.failed()
                return
            self._backoff.reset()
            self._queue.popleft()

    def _enqueue(self, tick: Tick) -> None:
        target, metrics = self._target, self._points.collect(tick)
        to_body = encode.as_json if target.protocol == JSON else encode.protobuf
        body = to_body(metrics, target.resource, __version__, tick.time_ns)
        if target.compressed:
            body = gzip.compress(body, 1, mtime=0)
        self._queue.append(_Request(body, sum(len(metric.points) for metric in metrics)))
        while len(self._queue) > MOST_REQUESTS or sum(len(request.body) for request in self._queue) > MOST_BYTES:
            self._queue.popleft()
            self._state.dropped["queue full"] += 1
            if not self._queue:
                break

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
        self._state.dropped["rejected"] += 1
        return True

    def _headers(self) -> tuple[str, ...]:
        target = self._target
        headers = [f"Content-Type: {PROTOCOLS[target.protocol]}", *target.headers]
        if target.compressed:
            headers.append("Content-Encoding: gzip")
        if target.token_file:
            token = Path(target.token_file).read_text(encoding="utf-8", errors="replace").strip()
            headers.append(f"Authorization: Bearer {plain(token)}")
        return tuple(headers)

    def _accepted(self, request: _Request, answer: bytes) -> None:
        problem = None
        try:
            count, reason = encode.rejected(answer, is_json=self._target.protocol == JSON)
        except (ValueError, TypeError, RecursionError):
            count, reason = 0, ""  # it accepted the request; what else it says does not matter
        if count:
            what = f"{self._target.client.name} rejected {count} of {request.points} points: {one_line(reason)}"
            problem = Problem(what, "check the log of the collector", "partial")
        state = self._state
        state.rejected_points += min(count, request.points)
        state.sent_points += request.points
        state.last_success_ns = self._now_ns()
        self._report(problem)

    def _report(self, problem: Problem | None) -> None:
        self._state.problem = problem
        self._state_log.change("otlp", str(problem or ""), f"otlp: {problem}", "otlp: metrics are accepted again")


def _refusal(name: str, status: int, answer: bytes) -> Problem:
    """Why a collector refused a request."""
    fix = {
        401: "check --otlp.headers and --otlp.token-file",
        403: "check --otlp.headers and --otlp.token-file",
        404: "check the path of --otlp.endpoint; OTLP over HTTP uses /v1/metrics",
        413: "raise the limit of the collector, or expose fewer processes with --process.max",
        415: "choose another --otlp.protocol",
        429: "the collector is overloaded; raise --otlp.interval",
    }.get(status, "check the log of the collector")
    reason = one_line(answer.decode("utf-8", "replace"))
    return Problem(f"{name} answered {status}{f': {reason}' if reason else ''}", fix, f"http {status}")
