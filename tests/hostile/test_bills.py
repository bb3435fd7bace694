"""Tenants whose servers the same Prometheus scrapes, and who expose metrics with the names of an exporter."""

from __future__ import annotations

import json
import re
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import yaml

from tests.cli.running import gpuledger, serving, surroundings
from tests.real.daemons import run
from tests.real.history import History, remembering
from tests.real.scriptednode import Node, column, report
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("prometheus")

MIXIN = Path(__file__).parents[1] / "mixin"
OWN = 'job="gpuledger"'
TENANT = "tenant"
"""The job of the scrape configuration for servers of tenants."""


def node(history: History, name: str, joules_per_minute: float, job: str = "gpuledger") -> None:
    """An exporter, or a server that looks like one, with a container of the namespace red on its GPU."""
    target = Node(history, name, job=job)
    target.container("red", lambda minute: joules_per_minute * (minute + 30))
    target.books(1e6, lambda _: 0, lambda minute: 1e6 + joules_per_minute * (minute + 30))


def test_metrics_of_a_tenant_are_in_no_report() -> None:
    """A pod exposes GPUs and energy of another namespace to the same Prometheus: no report counts it by default."""
    history = History()
    node(history, "a", 600)
    node(history, "b", 600_000, job=TENANT)
    with remembering(history) as server:
        honest = report(server)
        all_jobs = report(server, '--prometheus.selector=job=~".*"')

    assert column(honest, "energy_kwh", 3.6e6)["total"] == pytest.approx(36_000)
    assert column(all_jobs, "energy_kwh", 3.6e6)["total"] == pytest.approx(36_036_000)


def test_metrics_of_a_tenant_make_no_target() -> None:
    """A pod exposes GPUs, so that a second Prometheus scrapes it with honoured labels: it is no target of `/sd`."""
    history, now_s = History(), time.time()
    for name, job in (("node", "gpuledger"), ("pod", TENANT)):
        labels = {"instance": f"{name}:9400", "job": job, "gpu": "0", "uuid": f"GPU-{name}", "name": "H200"}
        history.add("gpu_info", labels, [(now_s - 15 * n, 1.0) for n in range(20, 0, -1)])
    with ExitStack() as stack:
        server = stack.enter_context(remembering(history))
        words = ("fleet", "--sd", f"--prometheus.url={server.url}", "--refresh=1s")
        fleet = stack.enter_context(serving(*words, env=surroundings()))
        pages = list[bytes]()

        def answers() -> bool:
            try:
                with urlopen(f"{fleet.url}/sd", timeout=5) as response:
                    pages.append(response.read())
            except HTTPError:  # nothing was read from Prometheus yet
                return False
            return True

        wait_until(answers, 15)

    assert [target for group in json.loads(pages[-1]) for target in group["targets"]] == ["node:9400"]


def test_metrics_of_a_tenant_are_no_idle_gpu() -> None:
    """A pod exposes allocations of another user that are idle: `idle` does not list them."""
    history, now_s = History(), time.time()
    for name, job in (("node", "gpuledger"), ("pod", TENANT)):
        labels = {"instance": f"{name}:9400", "job": job, "gpu": "0", "uuid": f"GPU-{name}", "pod": name,
                  "namespace": "ml", "container": "main"}  # fmt: skip
        times = [now_s - 15 * n for n in range(20, 0, -1)]
        history.add("gpu_allocation_state", {**labels, "state": "no_process"}, [(t, 1.0) for t in times])
        history.add("gpu_allocation_idle_since_timestamp_seconds", labels, [(t, now_s - 7200) for t in times])
        history.add("gpu_allocation_idle_period_gpu_seconds", labels, [(t, 7200.0) for t in times])
    with remembering(history) as server:
        found = json.loads(gpuledger("idle", f"--prometheus.url={server.url}", "--json", "--min=0s").stdout)

    assert [allocation["pod"] for allocation in found["allocations"]] == ["node"]


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("name", ["rules_test.yml", "namespaces_test.yml", "tokens_test.yml"])
def test_metrics_of_a_tenant_are_in_no_recorded_series(tmp_path: Path, name: str) -> None:
    """A tenant's target exposes all series of the exporters, with its own GPUs: recorded series are unchanged."""
    tests = yaml.safe_load((MIXIN / name).read_text())
    tests["rule_files"] = [str((MIXIN / path).resolve()) for path in tests["rule_files"]]
    forged = 0
    for test in tests["tests"]:
        own = [series for series in test["input_series"] if OWN in series["series"]]
        forged += len(own)
        test["input_series"] += [
            {**series, "series": re.sub('(uuid|instance)="', r'\1="evil-', series["series"].replace(OWN, 'job="evil"'))}
            for series in own
        ]
    (tmp_path / name).write_text(yaml.safe_dump(tests))

    assert forged > 2
    assert "SUCCESS" in run("promtool", "test", "rules", str(tmp_path / name))
