"""A cluster node with a real containerd, kubelet and device plugins; the fake driver provides the GPUs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.device_plugin import GIVEN, DevicePlugin
from tests.e2e.kubelets import Kubelet, StaticPod
from tests.fakedriver import Gpu, Mig, Process, Scenario
from tests.owners.providers.kubelet_server import CRI, RUNNING
from tests.real import images
from tests.real.containerds import Containerd, image_archive
from tests.waiting import wait_until

GIB = 1 << 30
WHOLE, SHARED, SLICED = (f"GPU-{index:08x}-0000-4000-8000-000000000000" for index in range(3))
MIGS = {f"MIG-{instance:08x}-0000-5000-8000-000000000000": instance for instance in (1, 2)}
"""The two MIG devices of GPU 2 and their GPU instances."""

LOG_TAIL = 3000
STARTED_S = 90
"""Timeout: a container that crashed twice restarts after 20 s, and a removed pod must end before it starts again."""


@dataclass(frozen=True)
class Container:
    """A running container according to the runtime and the kernel, independent of kubelet and exporter."""

    namespace: str
    pod: str
    pod_uid: str
    name: str
    id: str
    pid: int
    given: tuple[str, ...]
    """Device ids from the device plugin."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Identity that survives a restart."""
        return self.namespace, self.pod, self.name


Running = dict[tuple[str, str, str], Container]


class Node:
    """All daemons of one node, with their files in one directory."""

    def __init__(self, folder: Path, kubeconfig: Path | None = None) -> None:
        self.scenario_path = folder / "scenario"
        (folder / "containerd").mkdir()
        self.containerd = Containerd(folder / "containerd")
        # `Containerd.clean` finds processes by this cgroup name.
        self.cgroup = f"e2e-{self.containerd.uid}"
        self.kubelet = Kubelet(folder / "kubelet", self.containerd.socket, self.cgroup, kubeconfig)
        self.log_paths = [self.kubelet.log, self.containerd.folder / "log"]
        """Logs that a failure shows."""
        plugins = self.kubelet.device_plugins
        self.plugins = [
            DevicePlugin(plugins, "nvidia.com/gpu", WHOLE),
            DevicePlugin(plugins, "nvidia.com/gpu.shared", f"{SHARED}::0", f"{SHARED}::1"),
            DevicePlugin(plugins, "nvidia.com/vgpu", f"{WHOLE}-0", f"{WHOLE}-1"),  # slots, as HAMi offers them
            DevicePlugin(plugins, "volcano.sh/vgpu-number", f"{SHARED}-0", f"{SHARED}-1"),
            DevicePlugin(plugins, "nvidia.com/mig-1g.18gb", *MIGS),
        ]
        self.scenario = Scenario(
            gpus=[Gpu(index=0, uuid=WHOLE), Gpu(index=1, uuid=SHARED), Gpu(index=2, uuid=SLICED, mig=1)],
            migs=[Mig(gpu=2, gi=instance, uuid=uuid) for uuid, instance in MIGS.items()],
        )
        self.list_on_gpus()

    def start(self) -> None:
        """Start without pods."""
        self.containerd.start()
        archive = self.containerd.folder / "image.tar"
        archive.write_bytes(image_archive(images.busybox_tar()))
        self.containerd.ctr("images", "import", "--snapshotter", "native", str(archive))
        self.start_kubelet()

    def start_kubelet(self) -> None:
        """Start the kubelet and the plugins, which it forgets at every start."""
        self.kubelet.start()
        for plugin in self.plugins:
            plugin.start()

    def bring_back(self) -> None:
        """Start the killed daemons again."""
        if not self.containerd.is_running:
            self.containerd.start()
        if not self.kubelet.is_running:
            self.start_kubelet()

    def clean(self) -> None:
        """Remove everything, also after a failure."""
        for plugin in self.plugins:
            plugin.stop()
        self.kubelet.stop()
        self.containerd.clean()
        self.kubelet.remove_cgroups()

    def run(self, *pods: StaticPod, without: Container | None = None) -> Running:
        """Run exactly these pods, and wait until their containers run with their devices.

        Containers of changed pods must be new, and the ids in `without` must be gone.
        """
        changed = {(pod.namespace, pod.shown_as) for pod in self.kubelet.set_pods(*pods)}
        gone = {container.id for container in self.running().values() if container.key[:2] in changed}
        gone |= {without.id} if without else set()
        wanted = {
            (pod.namespace, pod.shown_as, name): sum(count for resource, count in resources.items() if "/" in resource)
            for pod in pods
            for name, resources in pod.containers.items()
        }
        return self.runs(wanted, gone)

    def runs(self, wanted: dict[tuple[str, str, str], int], gone: Collection[str] = ()) -> Running:
        """Wait until exactly these containers run with these device counts, and no container has an old id."""
        containers: Running = {}

        def all_run() -> bool:
            containers.clear()
            containers.update(self.running())
            given = {key: len(container.given) for key, container in containers.items()}
            return given == wanted and not any(container.id in gone for container in containers.values())

        self.wait(all_run, f"running, with so many devices: {wanted}", STARTED_S)
        return containers

    def running(self) -> Running:
        """Running containers; the newer one if a container is being replaced."""
        containers = {}
        answer = CRI.ListContainersResponse.FromString(self.containerd.call("ListContainers", b""))
        for container in sorted(answer.containers, key=lambda container: container.created_at):
            if container.state == RUNNING:
                labels = {pair.key: pair.value for pair in container.labels}
                with suppress(OSError):  # the container has exited
                    pid = self.containerd.pid(container.id)
                    current = Container(
                        namespace=labels["io.kubernetes.pod.namespace"],
                        pod=labels["io.kubernetes.pod.name"],
                        pod_uid=labels["io.kubernetes.pod.uid"],
                        name=labels["io.kubernetes.container.name"],
                        id=container.id,
                        pid=pid,
                        given=_given(pid),
                    )
                    containers[current.key] = current
        return containers

    def list_on_gpus(self, *containers: Container, also: tuple[Process, ...] = ()) -> None:
        """Make the driver list the process of each container on its devices."""
        listed = [process(container, device) for container in containers for device in container.given]
        self.scenario.processes = [*listed, *also]
        self.scenario.write(self.scenario_path)

    def wait(self, true: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
        """Wait for a condition. A failure shows the logs of the daemons."""
        try:
            wait_until(true, timeout_s, every_s=0.2)
        except TimeoutError:
            raise AssertionError(f"not within {timeout_s:g} s: {what}\n{self.logs()}") from None

    def resource_of(self, device: str) -> str:
        """Resource name of a device."""
        return next(plugin.resource for plugin in self.plugins if device in plugin.device_ids)

    def logs(self) -> str:
        """End of the log of each daemon."""
        return "\n".join(f"--- {log}:\n{log.read_text(errors='replace')[-LOG_TAIL:]}" for log in self.log_paths)


@contextmanager
def a_node(kubeconfig: Path | None = None) -> Iterator[Node]:
    """A running node without pods. Its path is short, because socket paths have at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="e2e-") as folder:
        node = Node(Path(folder), kubeconfig)
        try:
            node.start()
            yield node
        finally:
            node.clean()


def place(device: str) -> tuple[int, str]:
    """GPU index and uuid of a device."""
    uuid, _, _ = device.partition("::")
    return (2 if uuid in MIGS else (WHOLE, SHARED).index(uuid)), uuid


def process(container: Container, device: str) -> Process:
    """Process of a container in the fake driver."""
    gpu, uuid = place(device)
    instance = MIGS.get(uuid)
    compute = None if instance is None else 0
    return Process(gpu=gpu, pid=container.pid, memory=GIB, sm=20, gi=instance, ci=compute)


def _given(pid: int) -> tuple[str, ...]:
    variables = dict(line.split("=", 1) for line in Path(f"/proc/{pid}/environ").read_text().split("\0") if line)
    return tuple(variables[GIVEN].split(",")) if GIVEN in variables else ()
