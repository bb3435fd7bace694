"""Our dashboards, asked of a real Prometheus that scrapes the demo and a Kubernetes node with all that can be wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.cli.running import serving, surroundings
from tests.fakedriver import Process
from tests.mixin.dashboards import PLACED, PanelQuery, fill_variables, variables
from tests.mixin.dashboards import PLACED_QUERIES as QUERIES
from tests.owners.providers.kubelet_server import pod_labels
from tests.real.nodes import GIB, Node, host
from tests.real.prometheus import Found, Prometheus, prometheus

pytestmark = pytest.mark.needs("prometheus")

ENERGY, FLEET, WORKLOAD = "gpuledger-energy", "gpuledger-fleet", "gpuledger-workload"
SCRAPES = 24
SPAN, INTERVAL = "8s", "5s"
HOST, GHOST = 4, 5
"""GPUs with a process of the host itself, and with one that /proc does not know."""
UNLISTED = "00000000-0000-4000-8000-00000000abcd"
"""A pod that was given a share of a GPU whose memory nobody is listed with."""


class IllNode(Node):
    """A node with pods, a host process, an unknown process, a hot GPU with errors, and fans."""

    def make_ill(self) -> None:
        """Before it is served."""
        hot = self.scenario.gpus[0]
        hot.throttle = 0x44  # power cap, heat
        hot.extra |= {"fan": 60, "ecc_uncorrected_aggregate": 2, "remapped_pending": 1, "nvlink_tx_kib": 4096}
        self.scenario.processes += [
            Process(gpu=HOST, pid=9998, memory=GIB, sm=30),
            Process(gpu=GHOST, pid=9999, memory=GIB),
        ]
        self.running(9998, "ollama", "/system.slice/ollama.service")
        self.cri.add_sandbox("5a" * 32, "ml", "waiting", UNLISTED)
        self.cri.add("5b" * 32, sandbox_id="5a" * 32, labels=pod_labels("ml", "waiting", UNLISTED, "main"))
        self.scenario.extra.append(f"error nvmlDeviceGetDecoderUtilization code=999 gpu={GHOST}")

    def have_xid(self) -> None:
        """While it is served: earlier XIDs do not count."""
        self.scenario.extra.append("xid 0 code=94 seq=1")
        self.scenario.write(self.folder / "scenario")


@dataclass
class Scraped:
    """What was scraped, at one moment."""

    server: Prometheus

    def ask(self, text: str, dashboard: str, **chosen: str) -> Found:
        """A query of a dashboard; all variables but those chosen are at All. 0 / 0 is no answer."""
        found = self.server.query(fill_variables(text, dashboard, chosen, interval=INTERVAL, span=SPAN))
        return [(labels, value) for labels, value in found if not math.isnan(value)]

    def values(self, dashboard: str, name: str, **chosen: str) -> list[str]:
        """What can be chosen."""
        query = variables(dashboard)[name]["query"]["query"]
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert match, query
        found = self.ask(f"group by ({match[2]}) ({match[1]})", dashboard, **chosen)
        return sorted(labels[match[2]] for labels, _ in found if match[2] in labels)

    def sum(self, dashboard: str, panel: str, **chosen: str) -> float:
        """All that the first query of a panel gives, together."""
        first = next(one for one in QUERIES if (one.dashboard, one.panel) == (dashboard, panel))
        return sum(value for _, value in self.ask(first.promql, dashboard, **chosen))


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """Both, scraped for some seconds; the demo twice, once as if it were in a cluster."""
    node = IllNode(tmp_path_factory.mktemp("ill"))
    node.make_ill()
    with ExitStack() as stack:
        stack.enter_context(node.named())
        flags = ("--driver.energy-interval=0s", "--collector.engines")  # for windows of 5 s, and for all panels
        fake = stack.enter_context(node.exporter(*flags))
        demo = stack.enter_context(serving("demo", "--tick.interval=200ms", "--collector.engines", env=surroundings()))
        fake.metrics('^gpu_process_energy_joules_total.*pod="mig-2"')
        node.have_xid()
        fake.metrics("^gpu_xid_errors_total")
        servers = {"node": fake, "demo": demo, "again": demo}
        targets = {job: (host(server), "/metrics") for job, server in servers.items()}
        east = {"cluster": "east"}
        running = stack.enter_context(prometheus(targets, "500ms", labels={"node": east, "again": east}))
        yield Scraped(running.wait_until_scraped(SCRAPES))


@pytest.mark.parametrize("asked", QUERIES, ids=str)
def test_every_panel_has_data(scraped: Scraped, asked: PanelQuery) -> None:
    """With all variables at All; and for each variable there is a value to choose that leaves some."""
    assert scraped.ask(asked.promql, asked.dashboard), asked.promql
    for name in variables(asked.dashboard):
        values = scraped.values(asked.dashboard, name)
        assert any(scraped.ask(asked.promql, asked.dashboard, **{name: value}) for value in values), name


@pytest.mark.parametrize("dashboard", PLACED)
def test_variables_lead_from_one_to_the_next(scraped: Scraped, dashboard: str) -> None:
    """Each offers something, also when the first value of each before it is chosen."""
    chosen: dict[str, str] = {}
    for name in variables(dashboard):
        values = scraped.values(dashboard, name, **chosen)
        assert values, (name, chosen)
        chosen[name] = values[0]


@pytest.mark.parametrize("dashboard", PLACED)
def test_variables_work_without_clusters(scraped: Scraped, dashboard: str) -> None:
    """The demo is in none, and is found all the same."""
    assert scraped.values(dashboard, "cluster") == ["east"]
    assert scraped.values(dashboard, "job") == ["again", "demo", "node"]


DIVIDED = [
    "Energy and cost by workload", "Energy and cost by namespace", "Energy and cost by GPU", "Energy by method",
    "Energy by namespace",
]  # fmt: skip


@pytest.mark.parametrize("panel", DIVIDED)
def test_energy_adds_up_to_the_counter(scraped: Scraped, panel: str) -> None:
    """However it is divided: nothing is missing, nothing is there twice."""
    total = scraped.sum(ENERGY, "Energy", job="node")

    assert total > 0
    assert scraped.sum(ENERGY, panel, job="node") == pytest.approx(total, rel=0.001)


@pytest.mark.parametrize("panel", DIVIDED)
def test_energy_is_never_more_than_the_counter(scraped: Scraped, panel: str) -> None:
    """In the demo, where processes come and go within seconds: what a series has at its first scrape is not seen.

    Prometheus makes up to half a scrape more of one that began in the window, which is the slack here.
    """
    total = scraped.sum(ENERGY, "Energy", job="demo")

    assert 0.3 * total < scraped.sum(ENERGY, panel, job="demo") < 1.05 * total


@pytest.mark.parametrize(
    ("dashboard", "panel"),
    [
        *((ENERGY, panel) for panel in ("Energy", *DIVIDED)),
        *((FLEET, panel) for panel in ("GPUs", "Nodes", "GPUs in use", "Nodes, one by one")),
    ],
)
def test_what_is_scraped_twice_counts_once(scraped: Scraped, dashboard: str, panel: str) -> None:
    """The demo is scraped by two jobs, half a second apart at most; it has a fifth of all energy."""
    assert scraped.sum(dashboard, panel) == pytest.approx(scraped.sum(dashboard, panel, job="node|demo"), rel=0.08)


@pytest.mark.parametrize(
    ("panel", "expected"),
    [
        ("Nodes", 1),
        ("GPUs", 8),
        ("GPUs that do not answer", 0),
        ("GPUs allocated", 4),
        ("GPUs in use", 7),
        ("GPUs busy", 5),
    ],
)
def test_the_fleet_counts_gpus(scraped: Scraped, panel: str, expected: float) -> None:
    """Eight GPUs: one is empty, one is partitioned and reports no utilization, and one has a waiting process only."""
    assert scraped.sum(FLEET, panel, job="node") == expected


def test_a_cut_gpu_does_not_make_others_less_busy(scraped: Scraped) -> None:
    """It tells no utilization: the six others in use are busy for 40, 40, 40, 60, 30 and 0 %."""
    assert scraped.sum(FLEET, "Utilization while in use", job="node") == pytest.approx(0.35, abs=0.01)


def test_a_pod_that_does_not_use_its_gpu_is_shown(scraped: Scraped) -> None:
    """The demo's notebook; the pods of the node work, also those that share a GPU."""
    asked = {one.panel: one for one in reversed(QUERIES) if one.panel in ("Busy share of allocations", "Idle now")}
    busy = scraped.ask(asked["Busy share of allocations"].promql, FLEET)
    idle = scraped.ask(asked["Idle now"].promql, FLEET)

    shares = {labels["pod"]: share for labels, share in busy}
    assert shares["notebook-dana-0"] == 0
    assert all(shares[pod] > 0.5 for pod in ("whole-0", "whole-1", "slice-0", "slice-1"))
    pods = {labels["pod"] for labels, _ in idle}
    assert "notebook-dana-0" in pods
    assert not pods & {"whole-0", "slice-0"}


@pytest.mark.parametrize(
    ("chosen", "watts", "memory"),
    [({"pod": "whole-1"}, 250, 8 * GIB), ({"process": "ollama", "job": "node"}, 400, GIB)],
    ids=["a pod", "a process of the host"],
)
def test_one_workload_has_what_is_its_own(
    scraped: Scraped, chosen: dict[str, str], watts: float, memory: float
) -> None:
    """In Kubernetes and outside of any container: power, memory, devices, and energy as long as it is there."""
    assert scraped.sum(WORKLOAD, "Devices", **chosen) == 1
    assert scraped.sum(WORKLOAD, "Memory", **chosen) == memory
    assert scraped.sum(WORKLOAD, "Power", **chosen) == pytest.approx(watts, rel=0.1)
    assert scraped.sum(WORKLOAD, "Energy so far", **chosen) * 3.6e6 > watts * SCRAPES / 2
    assert scraped.sum(WORKLOAD, "Measured", **chosen) == 1
