"""A collector for tests: keeps the requests it gets, and answers as configured."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

PARTIAL = ExportMetricsServiceResponse(
    partial_success={"rejected_data_points": 3, "error_message": "too\x1b[31m old"}  # type: ignore[arg-type]
)


@dataclass
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    def message(self) -> ExportMetricsServiceRequest:
        """As OpenTelemetry's own definition reads it."""
        body = gzip.decompress(self.body) if self.headers.get("content-encoding") == "gzip" else self.body
        assert self.headers["content-type"] == "application/x-protobuf"
        return ExportMetricsServiceRequest.FromString(body)

    def values(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Values by metric and attributes; a series must be there once."""
        found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for metric in self.metrics():
            for point in (metric.sum if metric.HasField("sum") else metric.gauge).data_points:
                key = metric.name, frozenset((pair.key, _text(pair.value)) for pair in point.attributes)
                assert key not in found
                found[key] = point.as_int if point.HasField("as_int") else point.as_double
        return found

    def metrics(self) -> list[Any]:
        """All metrics."""
        return [
            metric
            for of_resource in self.message().resource_metrics
            for of_scope in of_resource.scope_metrics
            for metric in of_scope.metrics
        ]


def _text(value: Any) -> str:
    return str(value.int_value) if value.HasField("int_value") else str(value.string_value)


@dataclass
class Collector:
    """A running collector."""

    port: int = 0
    status: int = 200
    answer: bytes = b""
    received: list[Received] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        """The URL to push to."""
        return f"http://127.0.0.1:{self.port}/v1/metrics"

    def wait_for(self, requests: int, timeout_s: float = 20) -> None:
        """Wait until this many requests have arrived."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.received) >= requests, timeout_s)


@contextmanager
def collector(port: int = 0) -> Iterator[Collector]:
    """A collector on a port of its own, or on a given one."""
    running = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            with running.arrived:
                running.received.append(Received(self.path, headers, body))
                running.arrived.notify_all()
            self.send_response(running.status)
            self.send_header("Content-Length", str(len(running.answer)))
            self.end_headers()
            self.wfile.write(running.answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    running.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
