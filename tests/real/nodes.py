"""Kubernetes nodes on the fake driver: a kubelet, a container runtime, pods and GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from tests.cli.running import Running, serving, surroundings
from tests.fakedriver import Gpu, Mig, Process, Scenario
from tests.owners.providers.kubelet_server import CriServer, KubeletServer, pod_labels

GIB = 1 << 30
GPUS, SHARED, CUT = 8, 3, 7


def uuid(gpu: int) -> str:
    """As the fake driver has it."""
    return f"GPU-0000000{gpu}-0000-4000-8000-00000000000{gpu}"


class EmptyNode:
    """GPUs without processes."""

    def __init__(self, folder: Path, *gpus: Gpu) -> None:
        self.folder, self.proc, self.scenario, self.pids = folder, folder / "proc", Scenario(gpus=[*gpus]), count(5000)
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
        self.running(pid, "python3", f"/kubepods/pod{uid}/{container_id}")
        return process

    def waiting_pod(self, name: str, device: str, *, namespace: str = "ml") -> None:
        """A pod whose container runs and has no process on its GPU."""
        number = next(self.pids)
        uid, sandbox = f"00000000-0000-4000-8000-{number:012d}", f"{number + 1000:064x}"
        self.kubelet.give(namespace, name, "main", "nvidia.com/gpu", device)
        self.cri.add_sandbox(sandbox, namespace, name, uid)
        self.cri.add(f"{number:064x}", sandbox_id=sandbox, labels=pod_labels(namespace, name, uid, "main"))

    def running(self, pid: int, name: str, cgroup: str) -> None:
        """What /proc says of a process."""
        home = self.proc / str(pid)
        home.mkdir()
        (home / "stat").write_text(f"{pid} ({name}) S " + " ".join(["0"] * 18) + " 12345 0\n")
        (home / "status").write_text(f"Name:\t{name}\nUid:\t0\t0\t0\t0\n")
        (home / "cgroup").write_text(f"0::{cgroup}\n")

    @contextmanager
    def served(self) -> Iterator[Running]:
        """An exporter on it."""
        with self.named(), self.exporter() as running:
            yield running

    @contextmanager
    def named(self) -> Iterator[None]:
        """While the name providers run."""
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


class Node(EmptyNode):
    """Eight GPUs: a pod each on 0 to 2, three pods that share 3, none on 4 to 6, two pods on instances of 7."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, *(Gpu(index=g, watts=200 + 50 * g, temperature=40 + g) for g in range(GPUS)))
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


def host(server: Running) -> str:
    """Where it listens."""
    return server.url.removeprefix("http://")
