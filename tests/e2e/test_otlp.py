"""A push through a real OpenTelemetry collector: what arrives behind it equals a scrape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuledger.catalog.otel import CONVENTIONS
from tests.cli.running import serving, surroundings
from tests.e2e.build import built
from tests.fakedriver import Gpu, Process, Scenario
from tests.integrations.otlp.collector import Received, collector
from tests.real.daemons import listens, start, stop
from tests.waiting import free_port, wait_until

COUNTERS = ("gpu_energy_joules_total", "gpu_process_busy_seconds_total")


def test_sums_behind_a_collector(tmp_path: Path) -> None:
    """Every series of two counters arrives once per push, is monotonic, and at the end equals a scrape."""
    port = free_port()
    scenario = Scenario(gpus=[Gpu(0, watts=300), Gpu(1, watts=200)], processes=[Process(gpu=0, pid=77, sm=60)])
    with collector() as behind:
        config = tmp_path / "collector.yaml"
        config.write_text(json.dumps({
            "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
            "exporters": {"otlphttp": {"metrics_endpoint": behind.url, "compression": "none",
                                       "sending_queue": {"enabled": False}}},
            "service": {"pipelines": {"metrics": {"receivers": ["otlp"], "exporters": ["otlphttp"]}},
                        "telemetry": {"metrics": {"level": "none"}}},
        }))  # fmt: skip
        daemon = start([str(built("otelcol")), f"--config=file:{config}"], tmp_path / "log", lambda: listens(port))
        try:
            flags = ["--tick.interval=200ms", "--otlp.interval=0s",
                     f"--otlp.endpoint=http://127.0.0.1:{port}"]  # fmt: skip
            with serving("serve", *flags, env=surroundings(scenario.write(tmp_path / "scenario"))) as exporter:
                behind.wait_for(10)
                text = exporter.get("/metrics")
                moment = _scraped(text, "gpuledger_tick_timestamp_seconds")
                (now,) = moment.values()
                wait_until(lambda: any(abs(_time_s(r) - now) < 1e-6 for r in behind.received))
        finally:
            stop(daemon)

    times = [_time_s(request) for request in behind.received]
    assert times == sorted(set(times))
    (same,) = [request for request in behind.received if abs(_time_s(request) - now) < 1e-6]
    for name in COUNTERS:
        arrived = {
            dict(attributes)["hw.id"]: value
            for (metric, attributes), value in same.values().items()
            if metric == (CONVENTIONS[name].name if name in CONVENTIONS else name)
        }
        assert arrived == pytest.approx(_scraped(text, name))
        assert arrived


def _scraped(text: str, name: str) -> dict[str, float]:
    """Values of a metric by the uuid of the device."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.labels.get("uuid", ""): sample.value for sample in samples if sample.name == name}


def _time_s(request: Received) -> float:
    (tick,) = [metric for metric in request.metrics() if metric.name == "gpuledger_tick_timestamp_seconds"]
    return float(tick.gauge.data_points[0].as_double)
