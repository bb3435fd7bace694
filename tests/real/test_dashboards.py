"""Dashboards written for dcgm-exporter, asked of a real Prometheus that scrapes /dcgm/metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.cli.running import Running, serving, surroundings
from tests.fakedriver import Gpu, Mig, Process, Scenario
from tests.owners.kubelet_server import CriServer, KubeletServer, pod_labels
from tests.real.prometheus import Found, Prometheus, prometheus

GIB = 1 << 30
GPUS, SHARED, CUT = 8, 3, 7
ALL = 'gpu=~".*", hostname=~".*"'

# What panels of dashboards for dcgm-exporter ask: gauges, averages, sums, by pod, over time.
QUERIES = [
    f"DCGM_FI_DEV_GPU_TEMP{{{ALL}}}",
    f"avg(DCGM_FI_DEV_GPU_TEMP{{{ALL}}})",
    "avg by (hostname) (DCGM_FI_DEV_MEMORY_TEMP)",
    f"DCGM_FI_DEV_POWER_USAGE{{{ALL}}}",
    f"sum(DCGM_FI_DEV_POWER_USAGE{{{ALL}}})",
    "sum by (namespace, pod) (DCGM_FI_DEV_POWER_USAGE)",
    "sum by (UUID) (avg_over_time(DCGM_FI_DEV_POWER_USAGE[1m]))",
    f"DCGM_FI_DEV_SM_CLOCK{{{ALL}}} * 1000000",
    "max by (gpu) (DCGM_FI_DEV_MEM_CLOCK)",
    "sum by (gpu, UUID) (DCGM_FI_DEV_GPU_UTIL)",
    "avg by (modelName) (sum by (modelName, UUID) (DCGM_FI_DEV_GPU_UTIL))",
    'sum by (pod) (DCGM_FI_DEV_GPU_UTIL{pod!=""})',
    f"DCGM_FI_DEV_FB_USED{{{ALL}}}",
    "sum by (UUID) (DCGM_FI_DEV_FB_USED) / (sum by (UUID) (DCGM_FI_DEV_FB_USED) + sum by (UUID) (DCGM_FI_DEV_FB_FREE))",
    "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)",
    "sum by (namespace) (DCGM_FI_DEV_FB_USED) * 1024 * 1024",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "avg(DCGM_FI_PROF_GR_ENGINE_ACTIVE)",
    "DCGM_FI_PROF_DRAM_ACTIVE",
    "rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[1m]) / 1000",
    "sum by (pod) (increase(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[1m])) / 3600000",
    "DCGM_FI_DEV_XID_ERRORS > -1",
    "sum by (UUID) (DCGM_FI_DEV_ECC_DBE_VOL_TOTAL)",
    "count by (modelName, DCGM_FI_DRIVER_VERSION) (DCGM_FI_DEV_GPU_TEMP)",
    "increase(DCGM_FI_DEV_POWER_VIOLATION[1m])",
    "DCGM_FI_PROF_PCIE_RX_BYTES + DCGM_FI_PROF_PCIE_TX_BYTES",
]


def uuid(gpu: int) -> str:
    """As the fake driver has it."""
    return f"GPU-0000000{gpu}-0000-4000-8000-00000000000{gpu}"


class Node:
    """Eight GPUs: a pod each on 0 to 2, three pods that share 3, nobody on 4 to 6, two pods on instances of 7."""

    def __init__(self, folder: Path) -> None:
        gpus = [Gpu(index=g, watts=200 + 50 * g, temperature=40 + g) for g in range(GPUS)]
        self.set_up(folder, Scenario(gpus=gpus))
        self.scenario.gpus[CUT].mig = 1
        self.scenario.gpus[CUT].memory_used = 12 * GIB
        self.scenario.migs = [
            Mig(gpu=CUT, gi=n, uuid=f"MIG-{n}", memory_used=n * GIB, extra={"gpm.sm": 10.0 * n, "gpm.tensor": 5.0})
            for n in (1, 2)
        ]
        for gpu in range(3):
            self.pod(f"whole-{gpu}", gpu, uuid(gpu), sm=40, memory=8 * GIB)
        for n in range(2):
            self.pod(f"slice-{n}", SHARED, f"{uuid(SHARED)}::{n}", sm=20 + 20 * n, memory=(2 + n) * GIB)
        self.kubelet.give("ml", "waiting", "main", "nvidia.com/gpu", f"{uuid(SHARED)}::2")
        for n in (1, 2):
            self.pod(f"mig-{n}", CUT, f"MIG-{n}", memory=n * GIB, gi=n)
        self.scenario.gpus[SHARED].memory_used = 7 * GIB

    def set_up(self, folder: Path, scenario: Scenario) -> None:
        """A node on which nobody is yet."""
        self.folder, self.proc, self.scenario, self.pids = folder, folder / "proc", scenario, count(5000)
        self.kubelet, self.cri = KubeletServer(folder / "kubelet.sock"), CriServer(folder / "cri.sock")
        (self.proc / "1").mkdir(parents=True)
        (self.proc / "stat").write_text("cpu 0\nbtime 1690000000\n")

    def pod(
        self,
        name: str,
        gpu: int,
        device: str,
        *,
        memory: int,
        sm: int = 0,
        gi: int | None = None,
        namespace: str = "ml",
    ) -> Process:
        """A pod with one process on a GPU or an instance of it."""
        pid = next(self.pids)
        uid, container_id = f"00000000-0000-4000-8000-{pid:012d}", f"{pid:064x}"
        ci = None if gi is None else 0
        process = Process(gpu=gpu, pid=pid, memory=memory, sm=sm, gi=gi, ci=ci)
        self.scenario.processes.append(process)
        self.kubelet.give(namespace, name, "main", "nvidia.com/gpu", device)
        sandbox = f"{pid + 1000:064x}"
        self.cri.add_sandbox(sandbox, namespace, name, uid)
        self.cri.add(container_id, sandbox_id=sandbox, labels=pod_labels(namespace, name, uid, "main"))
        home = self.proc / str(pid)
        home.mkdir()
        (home / "stat").write_text(f"{pid} (python3) S " + " ".join(["0"] * 18) + " 12345 0\n")
        (home / "status").write_text("Name:\tpython3\nUid:\t0\t0\t0\t0\n")
        (home / "cgroup").write_text(f"0::/kubepods/pod{uid}/{container_id}\n")
        return process

    @contextmanager
    def served(self) -> Iterator[Running]:
        """An exporter on it."""
        with self.named(), self.exporter() as running:
            yield running

    @contextmanager
    def named(self) -> Iterator[None]:
        """While those run who know names."""
        with ExitStack() as stack:
            for server in (self.kubelet, self.cri):
                server.start()
                stack.callback(server.stop)
            yield

    @contextmanager
    def exporter(self, *more: str) -> Iterator[Running]:
        """An exporter, with more flags."""
        flags = [
            "--tick.interval=200ms",
            "--environment=kubernetes",
            f"--path.procfs={self.proc}",
            f"--cri.socket={self.cri.path}",
            f"--pod-resources-socket={self.kubelet.path}",
        ]
        scenario = self.scenario.write(self.folder / "scenario")
        with serving("serve", *flags, *more, env=surroundings(scenario, NODE_NAME="node1")) as running:
            yield running


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped the demo and the node for a while."""
    node = Node(tmp_path_factory.mktemp("node"))
    with ExitStack() as stack:
        fake = stack.enter_context(node.served())
        demo = stack.enter_context(serving("demo", "--tick.interval=200ms", env=surroundings()))
        fake.metrics('pod="mig-2"', "/dcgm/metrics")
        targets = {"node": (host(fake), "/dcgm/metrics"), "demo": (host(demo), "/dcgm/metrics")}
        targets |= {"native": (host(fake), "/metrics"), "older": (host(fake), "/gpu/metrics")}
        running = stack.enter_context(prometheus(targets, "500ms"))
        running.wait_until_scraped(20)
        yield running


def host(server: Running) -> str:
    """Where it listens."""
    return server.url.removeprefix("http://")


def by(found: Found, *names: str) -> dict[tuple[str, ...], float]:
    """The values under these labels."""
    return {tuple(labels.get(name, "") for name in names): value for labels, value in found}


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("job", ["node", "demo"])
def test_every_panel_has_data(scraped: Prometheus, job: str, query: str) -> None:
    """On a node that is shared and cut, and in the demo."""
    found = scraped.query(of_job(query, job))

    assert found, query


def of_job(query: str, job: str) -> str:
    """The query for one job only, as a dashboard's variable does it."""

    def narrowed(match: re.Match[str]) -> str:
        inside = f'job="{job}"' + (f", {match[2]}" if match[2] else "")
        return f"{match[1]}{{{inside}}}"

    return re.sub(r"(DCGM_FI_(?:DEV|PROF)_\w+)(?:\{(.*?)\})?", narrowed, query)


@pytest.mark.parametrize(
    ("theirs", "ours", "within"),
    [
        ("sum by (UUID) (DCGM_FI_DEV_POWER_USAGE{job='node'})", "gpu_power_watts{job='native'}", 1e-6),
        ("sum by (UUID) (DCGM_FI_DEV_FB_USED{job='node'}) * 1048576", "gpu_memory_used_bytes{job='native'}", 1 << 20),
        ("sum by (UUID) (DCGM_FI_DEV_GPU_UTIL{job='node'}) / 100", "gpu_utilization_ratio{job='native'}", 1e-6),
    ],
)
def test_all_series_of_a_gpu_are_the_gpu(scraped: Prometheus, theirs: str, ours: str, within: float) -> None:
    """Pods and the device's own series together are the device, which nothing counts twice."""
    device = {key: value for (key,), value in by(scraped.query(ours), "uuid").items()}
    parts = {key: value for (key,), value in by(scraped.query(theirs), "UUID").items()}

    assert parts == pytest.approx(device, abs=within)
    assert len(parts) >= GPUS - 1  # a cut GPU tells no utilization


def test_each_pod_has_its_own(scraped: Prometheus) -> None:
    """Memory and utilization by pod, as the driver lists its processes."""
    memory = by(scraped.query("sum by (pod) (DCGM_FI_DEV_FB_USED{job='node'}) / 1024"), "pod")
    busy = by(scraped.query("sum by (pod) (DCGM_FI_DEV_GPU_UTIL{job='node'})"), "pod")

    assert {pod: memory[pod,] for pod in ("whole-0", "slice-0", "slice-1", "waiting", "mig-1", "mig-2")} == {
        "whole-0": 8, "slice-0": 2, "slice-1": 3, "waiting": 0, "mig-1": 1, "mig-2": 2,
    }  # fmt: skip
    assert memory["",] == 2 + 9  # of the shared GPU, and of the cut one
    assert {pod: busy[pod,] for pod in ("whole-0", "slice-0", "slice-1", "waiting")} == {
        "whole-0": 40, "slice-0": 20, "slice-1": 40, "waiting": 0,
    }  # fmt: skip


def test_power_of_pods_that_share(scraped: Prometheus) -> None:
    """Each has some of it, who works more has more, and who waits has none."""
    watts = by(scraped.query(f"sum by (pod) (DCGM_FI_DEV_POWER_USAGE{{job='node', gpu='{SHARED}'}})"), "pod")

    assert 0 == watts["waiting",] < watts["slice-0",] < watts["slice-1",]
    assert sum(watts.values()) == pytest.approx(350)


def test_energy_over_time(scraped: Prometheus) -> None:
    """By pod it rises as fast as the power that the pod has, and all together as fast as the GPU."""
    found = scraped.query(
        f"sum by (UUID) (rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{job='node', gpu=~'0|{SHARED}|{CUT}'}}[8s])) / 1000"
    )
    alone = scraped.query("sum(rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{job='node', pod='whole-0'}[8s])) / 1000")

    assert by(found, "UUID") == pytest.approx({(uuid(0),): 200, (uuid(SHARED),): 350, (uuid(CUT),): 550}, rel=0.3)
    assert alone[0][1] == pytest.approx(200, rel=0.3)


def test_a_cut_gpu_is_there_once(scraped: Prometheus) -> None:
    """Heat once, for the GPU; activity and free memory of each instance, with its pod."""
    heat = scraped.query(f"DCGM_FI_DEV_GPU_TEMP{{job='node', gpu='{CUT}'}}")
    active = scraped.query(f"DCGM_FI_PROF_SM_ACTIVE{{job='node', gpu='{CUT}'}}")

    assert [("GPU_I_ID" in labels, value) for labels, value in heat] == [(False, 47)]
    assert by(active, "GPU_I_ID", "GPU_I_PROFILE", "pod") == {
        ("1", "1g.18gb", "mig-1"): 0.1, ("2", "1g.18gb", "mig-2"): 0.2,
    }  # fmt: skip


def test_the_older_names(scraped: Prometheus) -> None:
    """On /gpu/metrics, with the labels they had."""
    found = scraped.query('dcgm_gpu_temp{job="older", pod_name="whole-0"}')

    assert [(labels["pod_namespace"], labels["container_name"], value) for labels, value in found] == [
        ("ml", "main", 40)
    ]
