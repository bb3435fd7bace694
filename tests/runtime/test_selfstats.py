"""The exporter's own resource usage, beside that of Prometheus's client library."""

from __future__ import annotations

import time

from prometheus_client import ProcessCollector

from gpuledger.catalog.exporter import FAMILIES
from gpuledger.model import Driver, Health, Tick
from gpuledger.runtime.selfstats import measure


def test_metrics_of_the_process_are_those_of_client_libraries() -> None:
    """The same names, and values of the same size: dashboards and alerts for any exporter work."""
    library = {
        sample.name: sample.value for family in ProcessCollector(registry=None).collect() for sample in family.samples
    }
    tick = Tick(1, Driver(up=True), health=measure(Health()))
    ours = {
        family.name: value
        for family in FAMILIES
        if family.name.startswith("process_") and family.value and (value := family.value(tick)) is not None
    }

    assert set(ours) == set(library)
    for name in ("process_virtual_memory_bytes", "process_resident_memory_bytes"):
        assert 0.5 < ours[name] / library[name] < 2
    assert ours["process_max_fds"] == library["process_max_fds"]
    assert time.time() - ours["process_start_time_seconds"] < 3600
