"""A job in the answers of a Prometheus."""

from __future__ import annotations

from gpuledger.tools.job.history import of_prometheus, run_total
from gpuledger.tools.prometheus.answer import Answer, RangeSeries, RangeVector, Series
from gpuledger.tools.prometheus.client import Prometheus
from gpuledger.tools.prometheus.stream import Sink

NOW = 1_800_000_000.0


def points(*values: float) -> RangeSeries:
    """A counter, one value in each cell."""
    return RangeSeries({"uuid": "GPU-0"}, [(float(n), value) for n, value in enumerate(values)])


def test_runs_of_a_requeued_job_add_up() -> None:
    """A value below the previous one begins a new run."""
    assert run_total(points(1, 5, 9)) == 9
    assert run_total(points(1, 5, 0, 4, 2)) == 11
    assert run_total(points()) == 0


class Server(Prometheus):
    """Answers by the first text that a query contains; empty for all others."""

    def __init__(self, answers: dict[str, float], *warnings: str) -> None:
        self.answers, self.warnings, self.asked = answers, warnings, list[str]()

    def _find(self, promql: str) -> float | None:
        self.asked.append(promql)
        return next((value for text, value in self.answers.items() if text in promql), None)

    def query(self, promql: str, at_s: float | None = None, sink: Sink | None = None) -> Answer:
        """One series."""
        assert at_s is not None
        assert sink is None
        value = self._find(promql)
        labels = {"uuid": "GPU-0", "gpu": "0", "instance": "gpu01:9400"}
        return Answer(() if value is None else (Series(labels, value),), warnings=self.warnings)

    def query_range(self, promql: str, first_s: float, last_s: float, step_s: float) -> RangeVector:
        """One counter."""
        assert (last_s - first_s) / step_s < 1100
        value = self._find(promql)
        return RangeVector(() if value is None else (points(value),))


ALLOCATION = {
    "gpu_allocation_start_timestamp_seconds": NOW - 7200,
    "gpu_allocation_seconds_total": 3600.0,
    "gpu_allocation_busy_seconds_total": 2700.0,
    "gpu_allocation_idle_seconds_total": 900.0,
    "gpu_allocation_unknown_seconds_total": 0.0,
    "gpu_allocation_idle_since_timestamp_seconds": NOW - 4500,
}


def test_a_job_that_ended_an_hour_ago() -> None:
    """Its tail ends with the job: start plus allocated time. A GPU without energy counters has no energy."""
    use = of_prometheus(Server(ALLOCATION, "some nodes did not respond"), "211", NOW, 86400.0)

    assert use is not None
    (device,) = use.devices
    assert (device.node, device.gpu, device.end, device.tail_s) == ("gpu01", "0", NOW - 3600, 900)
    assert (use.gpu_hours, use.busy_share, use.kwh, use.memory_bytes) == (1, 0.75, None, None)
    assert use.notes == ("Prometheus warns: some nodes did not respond",)


def test_a_device_that_worked_again_has_no_tail() -> None:
    """The last idle period that was scraped is over."""
    use = of_prometheus(
        Server(ALLOCATION | {"gpu_allocation_last_busy_timestamp_seconds": NOW - 4000}), "211", NOW, 86400.0
    )

    assert use is not None
    assert use.tail_s == 0


def test_a_job_that_no_prolog_recorded() -> None:
    """The energy of its processes."""
    server = Server({"gpu_process_energy_joules_total": 3.6e6, "gpu_process_info": 1.0})
    use = of_prometheus(server, "211.server", NOW, 86400.0)

    assert use is not None
    assert (use.gpu_hours, use.kwh, use.devices[0].node) == (None, 1, "gpu01")
    assert r'batch_job=~"([a-z-]+/)?211\\.server"' in server.asked[-1]


def test_an_unknown_job() -> None:
    """None, after a query for allocations and one for processes."""
    server = Server({})

    assert of_prometheus(server, "211", NOW, 86400.0) is None
    assert len(server.asked) == 2
