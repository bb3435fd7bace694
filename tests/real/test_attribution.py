"""The queries of docs/attribution.md, asked of a real Prometheus that scraped a recording and a small made-up host."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuledger.recording.recording import recording
from tests.builders import World
from tests.cli.running import serving, surroundings
from tests.real.prometheus import Prometheus, prometheus

pytestmark = pytest.mark.needs("prometheus")

ONE_GPU = Path(__file__).parents[1] / "data" / "one-gpu.jsonl.gz"
"""A real H200 that two pods and a container share."""
PAGE = (Path(__file__).parents[2] / "docs" / "attribution.md").read_text()
QUERIES: dict[str, str] = dict(re.findall(r"```promql\n# ([a-z-]+): .*\n((?:.+\n)+?)```", PAGE))
ASKED_S = 29
"""After the start: in the recording nobody comes or goes in the 12 s before, so increases have all there is to see."""
WINDOW = "12s"

Series = list[tuple[dict[str, str], float]]


@dataclass
class Host:
    """One exporter's numbers in a Prometheus of their own, at one moment."""

    server: Prometheus
    at: float

    def ask(self, promql: str) -> Series:
        """With every window of the page, an hour or a minute, made as short as the test."""
        return self.server.query(re.sub(r"\[(1h|5m|1m)\]", f"[{WINDOW}]", promql), self.at)

    def one(self, promql: str) -> float:
        """The value of a query that has one."""
        ((_, value),) = self.ask(promql)
        return value

    def page(self, name: str) -> Series:
        """What a query of the page gives."""
        return self.ask(QUERIES[name])

    def by_container(self, name: str) -> dict[str, float]:
        """The same by container, `""` for processes outside of any."""
        return {labels.get("container", ""): value for labels, value in self.page(name)}


@dataclass
class Hosts:
    """The recording, and a host on which one process works alone, waits beside another, and leaves: 4 s each."""

    recorded: Host
    small: Host


def small_host(path: Path) -> Path:
    """A minute of a host: 300 W with one process, 120 W with two waiting processes, 80 W without a process."""
    world = World(containers={7: "c7", 8: "c8"})
    with recording(path, 1) as recorder:
        for second in range(60):
            pids, watts = [((7,), 300), ((7, 8), 120), ((), 80)][second // 4 % 3]
            work = {7: 100} if watts == 300 else {}
            recorder.write(world.tick(*pids, mj=watts * 1000, work=work, utilization_pct=work.get(7, 0)))
    return path


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Both, half a minute old."""
    path = small_host(tmp_path_factory.mktemp("small") / "host.jsonl.gz")
    with ExitStack() as stack:
        found = []
        for recorded in (ONE_GPU, path):
            exporter = stack.enter_context(serving("serve", f"--source=replay:{recorded}", env=surroundings()))
            began = time.time()
            exporter.metrics("^gpu_energy_joules_total")
            address = exporter.url.removeprefix("http://")
            server = stack.enter_context(prometheus({"gpuledger": (address, "/metrics")}, "1s"))
            found.append(Host(server, began + ASKED_S))
        for host in found:
            host.server.wait_until_scraped(20)
            time.sleep(max(0.0, host.at + 1 - time.time()))
        yield Hosts(*found)


RECORDED = {"trainer", "triton", "vllm"}
"""Its containers; beside them runs a service of the host that does nothing."""


def power_by_pod(hosts: Hosts) -> None:
    """Every pod is there, and together they draw the power of the device."""
    watts = hosts.recorded.by_container("power-by-pod")
    assert set(watts) == {*RECORDED, ""}
    assert sum(watts.values()) == pytest.approx(hosts.recorded.one("rate(gpu_energy_joules_total[1m])"))
    assert {labels.get("pod") for labels, _ in hosts.recorded.page("power-by-pod")} >= {"llama-finetune-0"}


def energy_by_pod(hosts: Hosts) -> None:
    """With what no container has it adds up to the device."""
    joules = hosts.recorded.by_container("energy-by-pod")
    assert set(joules) == RECORDED
    nobody = [hosts.recorded.one(f"sum(increase(gpu_{n}_energy_joules_total[1h]))") for n in ("idle", "retired")]
    nobody += [hosts.recorded.one("sum(increase(gpu_unattributed_energy_joules_total[1h]))")]
    nobody += [hosts.recorded.one('sum(increase(gpu_process_energy_joules_total{container=""}[1h]))')]
    device = hosts.recorded.one("sum(increase(gpu_energy_joules_total[1h]))")
    assert sum(joules.values()) + sum(nobody) == pytest.approx(device)
    assert device > 1000


def energy_by_namespace(hosts: Hosts) -> None:
    """Each namespace has what its pods have."""
    joules = hosts.recorded.by_container("energy-by-pod")
    assert {labels.get("namespace", ""): value for labels, value in hosts.recorded.page("energy-by-namespace")} == {
        "ml": joules["trainer"],
        "serving": joules["vllm"],
        "": joules["triton"],
    }


def kwh_by_pod(hosts: Hosts) -> None:
    """3.6 million joules are one."""
    joules = hosts.recorded.by_container("energy-by-pod")
    kwh = hosts.recorded.by_container("kwh-by-pod")
    assert kwh == pytest.approx({name: value / 3_600_000 for name, value in joules.items()})


def cost_by_pod(hosts: Hosts) -> None:
    """Kilowatt-hours times the price."""
    kwh = hosts.recorded.by_container("kwh-by-pod")
    assert hosts.recorded.by_container("cost-by-pod") == pytest.approx(
        {name: 0.3 * value for name, value in kwh.items()}
    )


def top_consumers(hosts: Hosts) -> None:
    """The largest first, each with its name."""
    top = hosts.recorded.page("top-consumers")
    watts = [value for _, value in top]
    assert watts == sorted(watts, reverse=True)
    assert {labels["process_name"] for labels, _ in top} == {"ollama", "python3", "triton", "vllm"}
    assert sum(watts) == pytest.approx(sum(hosts.recorded.by_container("power-by-pod").values()))


def joules_per_busy_second(hosts: Hosts) -> None:
    """More than an idle GPU draws; alone at 300 W it is 300 and the waiting.

    A container may exceed the board's limit of 700 W: its energy and its sampled time are estimated separately.
    """
    for cost in hosts.recorded.by_container("joules-per-busy-second").values():
        assert 80 < cost < 2 * 700
    ((_, alone),) = hosts.small.page("joules-per-busy-second")
    assert alone > 300


def working_share(hosts: Hosts) -> None:
    """Most in the recording, where all work; on the small host one works, the other only waits."""
    assert hosts.recorded.by_container("working-share") == dict.fromkeys(RECORDED, pytest.approx(0.75, abs=0.24))
    by_id = re.sub("namespace, pod, container", "container_id", QUERIES["working-share"])
    shares = {labels["container_id"]: share for labels, share in hosts.small.ask(by_id)}
    assert shares["c8"] < 0.3  # what it has beyond that is of the edges, where it was alone at one end
    assert shares["c8"] < shares["c7"] < 1


def waiting(hosts: Hosts) -> None:
    """The service in the recording that holds memory and does nothing."""
    assert [labels["process_name"] for labels, _ in hosts.recorded.page("waiting")] == ["ollama"]


def idle_share(hosts: Hosts) -> None:
    """None in the recording, which always has a process; the 80 W of a third of the time on the small host."""
    assert [value for _, value in hosts.recorded.page("idle-share")] == [0]
    ((labels, share),) = hosts.small.page("idle-share")
    assert share == pytest.approx(80 / (80 + 120 + 300), rel=0.5)  # the edges of the phases are not all idle
    assert labels["uuid"] == "GPU-0"


def unattributed_by_reason(hosts: Hosts) -> None:
    """Only what was before, and that does not rise."""
    for host in (hosts.recorded, hosts.small):
        assert host.page("unattributed-by-reason") == [({"reason": "before"}, 0)]


def measured_share(hosts: Hosts) -> None:
    """Nothing in the recording, where four share; on the small host that of the process alone."""
    assert [value for _, value in hosts.recorded.page("measured-share")] == [0]
    ((_, share),) = hosts.small.page("measured-share")
    assert 0.3 < share < 0.9


def balance(hosts: Hosts) -> None:
    """To less than a millijoule on each GPU."""
    for host in (hosts.recorded, hosts.small):
        ((labels, missing),) = host.page("balance")
        assert abs(missing) < 1e-6
        assert set(labels) == {"instance", "gpu"}


def utilization_in_use(hosts: Hosts) -> None:
    """Nearly always busy in the recording; on the small host, half of the time in which it is in use, not a third."""
    assert 0.5 < hosts.recorded.one(QUERIES["utilization-in-use"]) <= 1
    assert hosts.small.one(QUERIES["utilization-in-use"]) == pytest.approx(0.5, abs=0.15)


PROMISES: dict[str, Callable[[Hosts], None]] = {
    promise.__name__.replace("_", "-"): promise
    for promise in (
        power_by_pod, energy_by_pod, energy_by_namespace, kwh_by_pod, cost_by_pod, top_consumers,
        joules_per_busy_second, working_share, waiting, idle_share, unattributed_by_reason, measured_share, balance,
        utilization_in_use,
    )
}  # fmt: skip


def test_every_query_has_a_promise() -> None:
    """No block of the page is left out, and each begins with its name."""
    assert PAGE.count("```promql") == len(QUERIES)
    assert set(QUERIES) == set(PROMISES)


@pytest.mark.parametrize("name", PROMISES)
def test_a_query_gives_what_the_page_promises(name: str, hosts: Hosts) -> None:
    """On numbers that a real Prometheus scraped."""
    PROMISES[name](hosts)
