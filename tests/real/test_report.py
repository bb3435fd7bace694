"""`gpuledger report` beside the ledgers of real exporters, whose pods come and go, and which restart and die."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.running import Running, gpuledger, serving, surroundings
from tests.fakedriver import Gpu, Process, Scenario
from tests.real.nodes import GIB, EmptyNode, host
from tests.real.prometheus import OURS, prometheus
from tests.waiting import free_port, wait_until

pytestmark = pytest.mark.needs("prometheus", "victoria-metrics")

BACKENDS = ("prometheus", "victoria-metrics")
SCRAPE_S = 0.5
SETTLED_S = 4 * SCRAPE_S
"""Enough for what was just booked to be scraped by everybody."""
WATTS = 300
Joules = Counter[str]
"""By namespace, and by `idle`, `unattributed`, `outside of containers` and `total`."""
EVERY_TICK = "--driver.energy-interval=0s"
"""Otherwise a ledger is up to 5 s old while one process is on a GPU."""


class Node(EmptyNode):
    """Two GPUs in Kubernetes, each of them in slices; pods come and go while the exporter runs."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.here = name, dict[str, Process]()
        self.listen = f"--web.listen-address=127.0.0.1:{free_port()}"
        (folder / name).mkdir()
        self.uuids = [f"GPU-{len(name):08d}-0000-4000-8000-00000000000{n}" for n in range(2)]
        gpus = [Gpu(index=n, uuid=uuid, watts=WATTS, energy_mj=10**9) for n, uuid in enumerate(self.uuids)]
        super().__init__(folder / name, *gpus)
        random = self.proc / "sys" / "kernel" / "random"
        random.mkdir(parents=True)
        (random / "boot_id").write_text("0f7e3e0c-0000-4000-8000-000000000001\n")

    def comes(self, namespace: str, gpu: int, replica: int = 0) -> None:
        """A pod of this namespace, on a slice of a GPU."""
        device = f"{self.uuids[gpu]}::{replica}"
        self.here[namespace] = self.pod("pod", gpu, device, memory=GIB, sm=40, namespace=namespace)
        self.scenario.write(self.folder / "scenario")

    def leaves(self, namespace: str) -> None:
        """It ends, and its process with it."""
        process = self.here.pop(namespace)
        self.scenario.processes.remove(process)
        self.kubelet.remove(namespace, "pod")
        self.scenario.write(self.folder / "scenario")
        shutil.rmtree(self.proc / str(process.pid))


def ledger(exporter: Running) -> Joules:
    """What an exporter's books say now."""
    found: Joules = Counter()
    for family in text_string_to_metric_families(exporter.get("/metrics")):
        for sample in family.samples:
            labels, joules = sample.labels, sample.value
            if sample.name == "container_gpu_energy_joules_total":
                found[labels["namespace"]] += joules  # type: ignore[assignment]
            elif sample.name == "gpu_process_energy_joules_total" and not labels.get("container_id"):
                found["outside of containers"] += joules  # type: ignore[assignment]
            elif sample.name == "gpu_idle_energy_joules_total":
                found["idle"] += joules  # type: ignore[assignment]
            elif sample.name == "gpu_unattributed_energy_joules_total" and labels["reason"] != "before":
                found["unattributed"] += joules  # type: ignore[assignment]
    return found


class World:
    """Four nodes for half a minute, and what their ledgers said in it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.booked: Joules = Counter()

    def run(self) -> None:
        """A node that restarts and forgets, one that restarts and remembers, one that is idle, one that dies."""
        forgets, keeps = Node(self._folder, "forgets"), Node(self._folder, "keeps")
        for node in (forgets, keeps):
            self._stack.enter_context(node.named())
        journal = f"--journal.path={self._folder / 'journal'}"
        keeps.comes("kept", 0)
        first, second = self._serve(forgets), self._serve(keeps, journal)
        idle, dies = self._plain("idle"), self._plain("dies", Process(gpu=0, pid=77, sm=60))
        exporters = {"forgets": first, "keeps": second, "idle": idle, "dies": dies}
        second.metrics('container_gpu_energy_joules_total.*namespace="kept"')
        targets = {name: (host(one), "/metrics") for name, one in exporters.items()}
        labels = dict.fromkeys(targets, OURS)
        self.servers = {
            kind: self._stack.enter_context(prometheus(targets, "500ms", kind, labels=labels)) for kind in BACKENDS
        }
        for server in self.servers.values():
            server.wait_until_scraped(4)
        wait_until(lambda: all(server.is_fresh(SCRAPE_S) for server in self.servers.values()), 60)
        self.began_s = time.time()
        before = [ledger(one) for one in exporters.values()]
        for books in before:
            self.booked.subtract(books)
        forgets.comes("sliced", 0, 0)
        forgets.comes("beside", 0, 1)  # time-slicing
        time.sleep(4)
        forgets.leaves("beside")
        forgets.comes("brief", 1)
        time.sleep(3)
        forgets.leaves("brief")
        forgets.leaves("sliced")
        Scenario(gpus=[Gpu(index=0, uuid="GPU-dies", watts=WATTS)]).write(self._folder / "dies")
        time.sleep(SETTLED_S)
        self.booked.update(ledger(first))
        first.stop(signal.SIGKILL)
        self.booked.update(ledger(dies))
        dies.stop(signal.SIGKILL)
        second.stop()
        first, second = self._serve(forgets), self._serve(keeps, journal)
        forgets.comes("after", 0)
        time.sleep(4)
        forgets.leaves("after")
        keeps.leaves("kept")
        time.sleep(SETTLED_S)
        self.ended_s = time.time()
        for exporter in (first, second, idle):
            self.booked.update(ledger(exporter))
        time.sleep(SETTLED_S)

    def _serve(self, node: Node, *flags: str) -> Running:
        running = self._stack.enter_context(node.exporter(node.listen, EVERY_TICK, *flags))
        running.metrics("^gpu_energy_joules_total")
        return running

    def _plain(self, name: str, *processes: Process) -> Running:
        scenario = Scenario(gpus=[Gpu(index=0, uuid=f"GPU-{name}", watts=WATTS)], processes=list(processes))
        path = scenario.write(self._folder / name)
        flags = ("--tick.interval=200ms", EVERY_TICK)
        running = self._stack.enter_context(serving("serve", *flags, env=surroundings(path)))
        running.metrics("^gpu_energy_joules_total")
        return running


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """When all is over."""
    with ExitStack() as stack:
        found = World(tmp_path_factory.mktemp("world"), stack)
        found.run()
        yield found


def report(world: World, backend: str, *flags: str) -> dict[str, Any]:
    """On the time of the world."""
    begin, end = (f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(s))}.{int(s % 1 * 1000):03d}"
                  for s in (world.began_s, world.ended_s))  # fmt: skip
    words = [f"--prometheus.url={world.servers[backend].url}", f"--from={begin}", f"--to={end}", "--format=json"]
    done = gpuledger("report", *words, "--step=2s", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


def joules(found: dict[str, Any]) -> dict[str, float]:
    """By namespace or kind of line."""
    lines = [*found["rows"], found["total"]]
    return {line.get("namespace", line["kind"]): (line["energy_kwh"] or 0.0) * 3.6e6 for line in lines}


EDGE_J = 2 * SCRAPE_S * WATTS
"""Of a GPU at one end of the time: what was used since the last scrape, and by the tick that it showed."""


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_the_ledgers_say(world: World, backend: str) -> None:
    """Pods that came and left within the time to the joule; all others to 1 %, and one scrape at either end.

    A pod has no name for a moment when it comes, or its exporter does: if a cell ends just then, that is nobody's.
    """
    found = joules(report(world, backend))
    unnamed = found.get("", 0.0)

    pods = ("sliced", "beside", "brief", "after")
    for namespace in pods:
        assert world.booked[namespace] - unnamed - 0.01 <= found[namespace] <= world.booked[namespace] + 0.01
        assert found[namespace] > 100
    everything = sum(found[namespace] for namespace in pods) + unnamed + found["kept"]
    assert everything == pytest.approx(sum(world.booked[namespace] for namespace in (*pods, "kept")), abs=EDGE_J)
    assert world.booked["kept"] > 2000
    assert found["outside of containers"] == pytest.approx(world.booked["outside of containers"], rel=0.01, abs=EDGE_J)
    assert found["idle"] == pytest.approx(world.booked["idle"], rel=0.01, abs=2 * 5 * EDGE_J)
    assert sum(v for k, v in found.items() if k != "total") == pytest.approx(found["total"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_total_is_what_the_gpus_used(world: World, backend: str) -> None:
    """Five GPUs all the time and one until it died, at 300 W each: also while exporters were down."""
    found = report(world, backend)
    seconds = world.ended_s - world.began_s
    unrecorded = found["unattributed_kwh_by_reason"]["unrecorded"] * 3.6e6

    assert 5 * (WATTS * seconds - EDGE_J) < joules(found)["total"] < 6 * (WATTS * seconds + EDGE_J)
    assert unrecorded > 0  # of the two GPUs whose exporter was away, and forgot
    assert 3 * seconds < found["observed_gpu_hours"] * 3600 < 6 * seconds


@pytest.mark.parametrize("backend", BACKENDS)
def test_hours_of_pods(world: World, backend: str) -> None:
    """Slices of a GPU are a GPU each for their pod, for as long as it was there."""
    lines = {line.get("namespace"): line for line in report(world, backend)["rows"]}

    for namespace, seconds in (("sliced", 7), ("beside", 4), ("brief", 3), ("after", 4)):
        assert lines[namespace]["resident_gpu_hours"] * 3600 == pytest.approx(seconds, abs=4 * SCRAPE_S), namespace
    assert lines["kept"]["allocated_gpu_hours"] * 3600 > 5
