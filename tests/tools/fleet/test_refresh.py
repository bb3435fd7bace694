"""The state over time: new values, then old values, then none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuledger.errors import PrometheusError
from gpuledger.tools.fleet.pages import Pages, families
from gpuledger.tools.fleet.queries import FleetQueries
from gpuledger.tools.fleet.refresh import Plan, Refresh
from gpuledger.tools.prometheus.answer import Answer, Series
from gpuledger.tools.prometheus.stream import Sink, identity
from gpuledger.web.http import PROBES, Viewer, parse_head

USED = (80.0, 40.0, 0.0, 0.0)


class World:
    """A Prometheus that answers from a table, and a clock."""

    def __init__(self, plan: Plan) -> None:
        self.now = 1000.0
        self.asked: list[tuple[str, float | None]] = []
        self.answers: dict[str, Answer | PrometheusError] = {}
        self.refresh = Refresh(lambda *args: self.query(*args), plan, monotonic=lambda: self.now)  # noqa: PLW0108 - tests replace it
        self.pages = Pages(
            lambda: self.refresh.state, lambda: self.refresh.since_refresh_s, groupings=plan.groupings, longest_s=100
        )

    def query(self, promql: str, at_s: float | None, sink: Sink) -> Answer:
        """The answer in the table."""
        self.asked.append((promql, at_s))
        answer = self.answers[promql]
        if isinstance(answer, PrometheusError):
            raise answer
        sink([(identity(labels), labels, value) for labels, value in answer.series])
        return replace(answer, series=(), count=len(answer.series))

    def get(self, path: str) -> tuple[int, str]:
        """A page."""
        response = self.pages(parse_head(f"GET {path} HTTP/1.0\r\n\r\n".encode()))
        body = response.body if isinstance(response.body, bytes) else b"".join(response.body)
        return response.status, body.decode()

    def metrics(self) -> dict[str, float]:
        """All samples by name and labels, read by the parser of prometheus_client."""
        found = {}
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found


def world(rule: str = "busy", percent: bool = True, **queries: str) -> World:
    """Four GPUs of dcgm-exporter on two nodes."""
    made = World(Plan(FleetQueries("util", "memory", **queries), rule, (("node",), ("namespace", "pod")), percent))
    series = [Series({"UUID": str(n), "Hostname": f"n{n % 2}"}, value) for n, value in enumerate(USED)]
    series[0] = Series({**series[0].labels, "namespace": "ml", "pod": "p"}, USED[0])
    made.answers = {"util": Answer(tuple(series), time_s=7.5), "memory": Answer((Series({"UUID": "0"}, 30.0),), 2)}
    return made


def test_tenants_see_no_page() -> None:
    """With own views in --web.config.file, only the role all sees the cluster; health checks stay open."""
    made = world()
    made.refresh.step()
    for path in ("/metrics", "/sd", "/nothing", *PROBES):
        request = replace(parse_head(f"GET {path} HTTP/1.0\r\n\r\n".encode()), viewer=Viewer("alice", uid=1000))
        assert made.pages(request).status == (200 if path in PROBES else 403), path


def test_the_metrics_of_a_cluster() -> None:
    """80, 40, 0, 0 is 0.6 and, under the classic name, 60; groups carry their labels, the cluster none of them."""
    made = world()
    made.refresh.step()
    found = made.metrics()

    assert found["gpu_fleet_up"] == 1
    assert found["gpu_fleet_in_use_utilization_ratio{by=cluster}"] == 0.6
    assert found["avg_GPU_utilization"] == 60
    assert found["gpu_fleet_in_use_memory_utilization_ratio{by=cluster}"] == 0.3
    assert found["gpu_fleet_in_use_utilization_ratio{by=node,node=n0}"] == 0.8
    assert found["gpu_fleet_in_use_utilization_ratio{by=namespace+pod,namespace=ml,pod=p}"] == 0.8
    counts = {name: found[f"gpu_fleet_gpus{name}{{by=cluster}}"] for name in ("", "_in_use", "_idle", "_allocated")}
    assert counts == {"": 4, "_in_use": 2, "_idle": 2, "_allocated": 0}
    assert (found["gpu_fleet_query_series{query=utilization}"], found["gpu_fleet_query_dropped_series"]) == (4, 2)
    assert made.asked == [("util", None), ("memory", 7.5)]  # all speak of one moment


def test_all_idle_is_zero() -> None:
    """The metric is 0 and not absent."""
    made = world()
    made.answers["util"] = Answer((Series({"UUID": "0"}, 0.0),))
    made.refresh.step()

    assert made.metrics()["gpu_fleet_in_use_utilization_ratio{by=cluster}"] == 0
    assert made.metrics()["avg_GPU_utilization"] == 0


def test_old_values_expire() -> None:
    """While Prometheus is away the last ones stay for --max-age, not a second longer; then there is none."""
    made = world()
    made.refresh.step()
    made.answers["util"] = PrometheusError("cannot reach it", kind="unreachable")
    made.now += 59
    made.refresh.step()
    still = made.metrics()
    assert (still["gpu_fleet_up"], still["gpu_fleet_refresh_success"], still["avg_GPU_utilization"]) == (1, 0, 60)

    made.now += 1.5
    gone = made.metrics()
    assert (gone["gpu_fleet_up"], gone["gpu_fleet_refresh_failures_total{reason=unreachable}"]) == (0, 1)
    assert [name for name in gone if "util" in name or "gpus" in name or "timestamp" in name] == []
    for healthz, readyz in (("/healthz", "/readyz"), ("/-/healthy", "/-/ready")):
        assert made.get(readyz) == (503, "no recent result: cannot reach it\n")
        assert made.get(healthz) == (200, "ok\n")

    made.answers = world().answers
    made.refresh.step()
    assert made.metrics()["avg_GPU_utilization"] == 60
    assert made.get("/readyz")[0] == 200


def test_the_age_of_values_counts_from_the_query() -> None:
    """A slow answer has old values."""
    made = world()
    slow = made.query

    def query(promql: str, at_s: float | None, sink: Sink) -> Answer:
        made.now += 30
        return slow(promql, at_s, sink)

    made.query = query  # type: ignore[method-assign]
    made.refresh.step()
    made.now += 1

    assert not made.refresh.state.up


def test_before_the_first_answer_there_is_nothing() -> None:
    """No value, not ready, and alive as long as it tries."""
    made = world()

    assert made.metrics()["gpu_fleet_up"] == 0
    assert made.get("/readyz") == (503, "no recent result: not queried yet\n")
    made.now += 101
    assert made.get("/healthz")[0] == 503


def test_an_unknown_metric_is_not_an_empty_cluster() -> None:
    """No series is an error, not a utilization of 0."""
    made = world()
    made.answers["util"] = Answer(())
    made.refresh.step()

    assert not made.refresh.state.up
    assert "returns nothing; check that the metric exists" in made.refresh.state.reason
    made.answers["util"] = Answer((), dropped=3)
    made.refresh.step()
    assert "returns 3 series, none with a finite value" in made.refresh.state.reason
    assert made.refresh.state.failures == (("empty", 2),)


def test_values_that_cannot_be_added_up() -> None:
    """The refresh fails, and the next one runs."""
    made = world()
    made.answers["util"] = Answer((Series({"UUID": "0"}, 1.7e308), Series({"UUID": "1"}, 1.7e308)))
    made.refresh.step()

    assert (made.refresh.state.up, made.refresh.state.failures) == (False, (("query", 1),))


def test_one_failed_query_fails_the_refresh() -> None:
    """A failing second query does not leave the first with old evidence."""
    made = world()
    made.answers["memory"] = PrometheusError("too long", kind="timeout")
    made.refresh.step()

    assert (made.refresh.state.up, made.refresh.state.reason) == (False, "too long")


@pytest.mark.parametrize(("newest", "up"), [(1e9, True), (1e9 - 60, True), (1e9 - 61, False), (None, False)])
def test_samples_older_than_max_age_do_not_count(newest: float | None, up: bool) -> None:
    """Prometheus returns the last samples for five minutes after it stopped scraping; over a window, for the window."""
    made = world(newest="newest")
    made.answers["util"] = Answer((Series({"UUID": "0"}, 50.0),), time_s=1e9)
    made.answers["newest"] = Answer(() if newest is None else (Series({}, newest),))
    made.refresh.step()

    assert made.refresh.state.up == up
    assert made.asked[1] == ("newest", 1e9)
    if not up:
        assert "check whether Prometheus scrapes the exporters" in made.refresh.state.reason
        assert made.refresh.state.failures == (("stale", 1),)


@pytest.mark.parametrize(("providers_up", "allocated"), [((), None), ((0.0,), None), ((1.0,), 0)])
def test_allocated_is_absent_if_no_provider_reports_allocations(
    providers_up: tuple[float, ...], allocated: int | None
) -> None:
    """Without a provider of allocations, no allocation does not mean that nothing is allocated."""
    made = world(allocated="allocated", known="known")
    made.answers |= {"allocated": Answer(()), "known": Answer(tuple(Series({}, value) for value in providers_up))}
    made.refresh.step()

    assert made.metrics().get("gpu_fleet_gpus_allocated{by=cluster}") == allocated
    made.answers["allocated"] = Answer((Series({"UUID": "0"}, 1.0),))
    made.refresh.step()
    assert made.metrics()["gpu_fleet_gpus_allocated{by=cluster}"] == 1


def test_the_rule_allocated_needs_a_provider_of_allocations() -> None:
    """0 would scale everything down."""
    made = world("allocated", allocated="allocated", known="known")
    made.answers |= {"allocated": Answer(()), "known": Answer(())}
    made.refresh.step()

    assert not made.refresh.state.up
    assert "no exporter reports allocations" in made.refresh.state.reason


def test_warnings_are_counted() -> None:
    """Warnings of the server, and one about an impossible unit."""
    made = world(percent=False)
    made.answers["memory"] = Answer((), warnings=("a store is gone",))
    made.refresh.step()

    assert made.metrics()["gpu_fleet_query_warnings"] == 2
    assert made.refresh.state.warnings[0] == "a store is gone"
    assert "--unit percent" in made.refresh.state.warnings[1]


def test_every_family_is_declared_well() -> None:
    """Names once, a value or series each, and such as OpenMetrics allows."""
    table = families((("pod",),))

    assert len({family.name for family in table}) == len(table)
    assert all((family.value is None) != (family.series is None) for family in table)
