"""A month of exporters that keep no journal and restart often: little of their energy is lost in a report."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest

from gpuledger.tools.report.span import default_step_ms
from tests.cli.running import gpuledger
from tests.real.history import History, remembering
from tests.real.prometheus import Prometheus

pytestmark = pytest.mark.needs("prometheus")

DAY_S, SCRAPE_S, WATTS = 86400, 30, 300.0
BEGAN = int(time.time()) // DAY_S * DAY_S - 2 * DAY_S
RESTARTS, PODS = 12, 24
"""In a day."""


def node(world: History, name: str, random: Random) -> None:
    """A node whose GPU draws 300 W for one pod after the other, and whose exporter begins at 0 after each restart."""
    gpu = {"instance": f"{name}:9400", "job": "gpuledger", "gpu": "0", "uuid": f"GPU-{name}"}
    scrapes = range(0, DAY_S + 1, SCRAPE_S)
    starts = [-DAY_S, *(random.randrange(DAY_S) for _ in range(RESTARTS))]
    world.add("gpu_up", gpu, [(BEGAN + at, 1) for at in scrapes])
    world.add("gpu_energy_joules_total", gpu, [(BEGAN + at, WATTS * at) for at in scrapes])
    changes = sorted((0, DAY_S, *(random.randrange(DAY_S) for _ in range(PODS - 1))))
    for number, (first, last) in enumerate(pairwise(changes)):
        pod = {"namespace": "ml", "pod": f"p{number}", "container": "main", "container_id": f"{name}-{number}"}
        shown = [(at, max([first, *(start for start in starts if start <= at)])) for at in scrapes if at <= last + 300]
        samples = [(BEGAN + at, WATTS * (min(at, last) - since)) for at, since in shown if since < min(at, last)]
        world.add("container_gpu_energy_joules_total", {**gpu, **pod, "method": "exclusive"}, samples)


@pytest.fixture(scope="module")
def server() -> Iterator[Prometheus]:
    """A Prometheus that scraped four nodes for a day."""
    world, random = History(), Random(1)
    for name in "abcd":
        node(world, name, random)
    with remembering(world) as running:
        yield running


def test_restarts_without_a_journal_lose_little(server: Prometheus) -> None:
    """In cells as long as those of a month, an exporter that restarts every two hours loses less than 3 %."""
    step_s = default_step_ms(31 * DAY_S * 1000) // 1000
    ends = [f"--{name}={time.strftime('%Y-%m-%d', time.gmtime(at))}" for name, at in
            {"from": BEGAN, "to": BEGAN + DAY_S}.items()]  # fmt: skip
    done = gpuledger("report", f"--prometheus.url={server.url}", *ends, f"--step={step_s}s", "--format=json")
    assert (done.returncode, done.stderr) == (0, "")
    bill = json.loads(done.stdout)

    total = bill["total"]["energy_kwh"]
    assert total == pytest.approx(4 * DAY_S * WATTS / 3.6e6, rel=0.001)
    assert bill["unattributed_kwh_by_reason"].get("unrecorded", 0) < 0.03 * total
