"""The idle ledger of a real exporter in a real Prometheus, and `gpuledger idle` on both."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Running, gpuledger
from tests.fakedriver import Gpu
from tests.real.history import History, remembering
from tests.real.nodes import GIB, EmptyNode, host, uuid
from tests.real.prometheus import Prometheus, prometheus
from tests.waiting import free_port

pytestmark = pytest.mark.needs("prometheus")

BUSY, PARKED, KILLED, NEVER = range(4)
WATTS = 200
ENERGY = '{__name__=~"gpu_allocation_(busy|idle|unknown)_energy_joules_total"}'


class Node(EmptyNode):
    """Four GPUs, each allocated to a pod: one works, one is parked, one is killed, one never starts a process."""

    def __init__(self, folder: Path) -> None:
        gpus = [Gpu(index=n, watts=WATTS + 50 * n, energy_mj=10**9, util=0) for n in range(4)]
        super().__init__(folder, *gpus)
        random = self.proc / "sys" / "kernel" / "random"
        random.mkdir(parents=True)
        (random / "boot_id").write_text("0f7e3e0c-0000-4000-8000-000000000001\n")
        self.listen = f"--web.listen-address=127.0.0.1:{free_port()}"
        self.pod("busy", BUSY, uuid(BUSY), memory=GIB, sm=60)
        self.pod("parked", PARKED, uuid(PARKED), memory=GIB, sm=0)
        self.killed = self.pod("killed", KILLED, uuid(KILLED), memory=GIB, sm=70)
        self.waiting_pod("never", uuid(NEVER))
        self.set_use()

    def set_use(self) -> None:
        """What the driver says of the GPUs as a whole."""
        for gpu in self.scenario.gpus:
            used = [process for process in self.scenario.processes if process.gpu == gpu.index]
            gpu.util = max((process.sm for process in used), default=0)
            gpu.memory_used = GIB * len(used)
            gpu.memory_reserved = 0

    def kill(self) -> None:
        """The process ends; its pod stays."""
        self.scenario.processes.remove(self.killed)
        self.set_use()
        self.scenario.write(self.folder / "scenario")
        shutil.rmtree(self.proc / str(self.killed.pid))


class World:
    """The node for a dozen seconds, with a restart of its exporter in between."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        node = Node(folder)
        stack.enter_context(node.named())
        flags = (node.listen, f"--journal.path={folder / 'journal'}")
        first = stack.enter_context(node.exporter(*flags))
        first.metrics('gpu_allocation_state.*pod="never".*state="no_process"')
        self.server = stack.enter_context(prometheus({"gpuledger": (host(first), "/metrics")}, "500ms"))
        self.server.wait_until_scraped(2)
        time.sleep(3)
        node.kill()
        time.sleep(2)
        self.rest_before_mj = rest_mj(self.server.wait_until_scraped())
        first.stop()
        self.exporter: Running = stack.enter_context(node.exporter(*flags))
        self.exporter.metrics('gpu_allocation_state.*pod="never".*state="no_process"')
        time.sleep(3)
        self.server = self.server.wait_until_scraped()

    def values(self, promql: str) -> dict[str, float]:
        """By pod, all at the same moment."""
        return {labels.get("pod", ""): value for labels, value in self.server.query(promql)}


def rest_mj(server: Prometheus) -> dict[str, int]:
    """Energy of each GPU that is neither unattributed nor an allocation's.

    In whole millijoules, as the books have it: a difference of joules is off by the precision of a float.
    """
    unattributed = "sum by (uuid) (gpu_unattributed_energy_joules_total)"
    allocated = f"sum by (uuid) ({ENERGY})"
    promql = f"gpu_energy_joules_total - on (uuid) {unattributed} - on (uuid) {allocated}"
    return {labels["uuid"]: round(1000 * joules) for labels, joules in server.query(promql)}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """When all is over, while the exporter still runs."""
    with ExitStack() as stack:
        yield World(tmp_path_factory.mktemp("idle"), stack)


def idle(*words: str) -> dict[str, Any]:
    """The JSON of `gpuledger idle`."""
    done = gpuledger("idle", "--json", "--min=0s", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


def test_seconds_add_up_to_the_allocated_time(world: World) -> None:
    """Busy + idle + unknown = allocated for every pod, across the restart: the time since the pod was first seen."""
    parts = (
        "gpu_allocation_busy_seconds_total + gpu_allocation_unknown_seconds_total"
        " + ignoring (reason) sum without (reason) (gpu_allocation_idle_seconds_total)"
    )
    off = world.values(f"abs(({parts}) - gpu_allocation_seconds_total)")
    age = world.values(
        "abs(gpu_allocation_seconds_total - (scalar(gpuledger_tick_timestamp_seconds)"
        " - gpu_allocation_start_timestamp_seconds))"
    )

    assert set(off) == {"busy", "parked", "killed", "never"}
    assert max(off.values()) < 1e-6
    assert max(age.values()) < 0.05  # two clocks


def test_every_state_is_where_it_belongs(world: World) -> None:
    """Only the restart, and the moment in which a process ends, is unknown."""
    busy = world.values("gpu_allocation_busy_seconds_total / gpu_allocation_seconds_total")
    reasons = {
        reason: world.values(f'gpu_allocation_idle_seconds_total{{reason="{reason}"}}')
        for reason in ("no_process", "parked", "low")
    }

    assert busy["busy"] > 0.5
    assert busy["parked"] == busy["never"] == 0
    assert 0 < busy["killed"] < 0.9
    assert {pod for pod, seconds in reasons["no_process"].items() if seconds} == {"killed", "never"}
    assert {pod for pod, seconds in reasons["parked"].items() if seconds} == {"parked"}
    assert not any(reasons["low"].values())


def test_joules_add_up_to_the_counter_of_each_gpu(world: World) -> None:
    """Busy + idle + unknown joules + unattributed = the GPU's counter since the pods were first seen.

    The rest is from the moment before the kubelet and the runtime had answered; the restart adds nothing to it.
    """
    rest = rest_mj(world.server)

    assert len(rest) == 4
    assert rest == world.rest_before_mj
    assert all(0 <= mj < 3000 * (WATTS + 150) for mj in rest.values())
    assert all(joules > 1000 for joules in world.values(f"sum by (pod) ({ENERGY})").values())


def test_the_fleet_and_the_node_agree(world: World) -> None:
    """Three pods are idle, the one without any process since the beginning at the top; the busy one is not listed."""
    fleet = idle(f"--prometheus.url={world.server.url}", "--price=0.30", "--price-gpu-hour=2.50", "--currency=EUR")
    node = idle(f"--connect={world.exporter.url}", "--price=0.30", "--price-gpu-hour=2.50", "--currency=EUR")

    for found in (fleet, node):
        rows = {row["pod"]: row for row in found["allocations"]}
        assert set(rows) == {"parked", "killed", "never"}
        assert [row["cost"] for row in found["allocations"]] == sorted(
            (row["cost"] for row in found["allocations"]), reverse=True
        )
        assert rows["parked"]["state"] == "parked"
        assert rows["never"]["state"] == rows["killed"]["state"] == "no_process"
        assert rows["killed"]["idle_seconds"] < rows["never"]["idle_seconds"]
        assert rows["never"]["command"] == ""
        assert all(row["kwh"] > 0 for row in rows.values())
    since = [{row["pod"]: row["idle_since"] for row in found["allocations"]} for found in (fleet, node)]
    assert since[0] == pytest.approx(since[1], abs=0.01)


def test_the_minimum_filters(world: World) -> None:
    """Nothing has been idle for an hour yet."""
    by_prometheus = idle(f"--prometheus.url={world.server.url}", "--min=1h")
    assert (by_prometheus["allocations"], by_prometheus["more"]) == ([], 3)
    table = gpuledger("idle", f"--connect={world.exporter.url}")
    assert table.stdout == "no allocation is idle for 1h\n3 more are idle for less than 1h: --min 0s\n"


def containers(history: History, now_s: float) -> None:
    """An hour of four containers alone on GPUs: two small ones, a large one, and a small one on another model."""
    times = [now_s - 3600 + 15 * n for n in range(240)]
    for number, (memory, activity, model) in enumerate(
        [(20, 0.3, "H200"), (30, 0.4, "H200"), (70, 0.9, "H200"), (20, 0.2, "L4")]
    ):
        gpu = {"instance": "n1:9400", "job": "gpuledger", "gpu": str(number), "uuid": f"GPU-{number}"}
        history.add("gpu_memory_total_bytes", gpu, [(t, 80.0 * GIB) for t in times])
        history.add("gpu_info", {**gpu, "name": model}, [(t, 1.0) for t in times])
        owner = {**gpu, "namespace": "ml", "pod": f"p{number}", "container": "main", "container_id": f"c{number}"}
        peaks = [1.0 if n % 25 == 0 else activity for n in range(len(times))]  # 4 % of the time
        history.add(
            "container_gpu_memory_bytes", {**owner, "method": "nvml"}, [(t, float(memory * GIB)) for t in times]
        )
        history.add("container_gpu_sm_utilization_ratio", owner, list(zip(times, peaks, strict=True)))


def test_pairs_that_would_fit_on_one_gpu() -> None:
    """The two small ones of one model, by their 95th percentiles, with the queries that found them."""
    history, now_s = History(), time.time()
    containers(history, now_s)
    with remembering(history) as server:
        words = ("idle", "--pairs", f"--prometheus.url={server.url}", "--pairs.window=1h")
        found = json.loads(gpuledger(*words, "--json").stdout)
        shown = gpuledger(*words).stdout

    (pair,) = found["pairs"]
    assert {workload["pod"] for workload in pair["workloads"]} == {"p0", "p1"}
    assert pair["memory_ratio"] == pytest.approx(50 / 80)
    assert pair["activity_ratio"] == pytest.approx(0.7)
    assert "quantile_over_time(0.95, " in found["queries"]["memory"]
    assert "ml/p1/main" in shown
    assert found["queries"]["activity"] in shown


def test_without_an_answer_there_is_one_line() -> None:
    """Neither an exporter nor a Prometheus, and settings that contradict each other."""
    nobody = f"127.0.0.1:{free_port()}"
    for words, code in (
        ((f"--connect={nobody}",), 1),
        ((f"--prometheus.url=http://{nobody}",), 1),
        (("--pairs",), 2),
        ((f"--connect={nobody}", f"--prometheus.url=http://{nobody}"), 2),
        (("--min=soon",), 2),
    ):
        done = gpuledger("idle", *words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
