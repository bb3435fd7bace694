"""A real containerd, whose pods are made through the CRI as a kubelet makes them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc

from tests.owners.providers.kubelet_server import declare
from tests.real import daemons, images
from tests.waiting import wait_until

IMAGE = "docker.io/local/busy:1"
NODE = 2
"""The host's own namespace, as `hostNetwork: true` asks for: there is no CNI here."""
CGROUPS = Path("/sys/fs/cgroup")
PODS = "kubepods/besteffort"

CRI: Any = declare(
    "requests",
    """
    RunPodSandboxRequest: config=1 PodSandboxConfig
    PodSandboxConfig: metadata=1 PodSandboxMetadata, log_directory=3 string, labels=6 Pair*, linux=8 LinuxPodSandboxConfig
    PodSandboxMetadata: name=1 string, uid=2 string, namespace=3 string
    LinuxPodSandboxConfig: cgroup_parent=1 string, security_context=2 LinuxSandboxSecurityContext
    LinuxSandboxSecurityContext: namespace_options=1 NamespaceOption
    NamespaceOption: network=1 enum, pid=2 enum, ipc=3 enum
    Pair: key=1 string, value=2 string
    CreateContainerRequest: pod_sandbox_id=1 string, config=2 ContainerConfig, sandbox_config=3 PodSandboxConfig
    ContainerConfig: metadata=1 ContainerMetadata, image=2 ImageSpec, command=3 string*, labels=9 Pair*, linux=15 LinuxContainerConfig
    ContainerMetadata: name=1 string
    ImageSpec: image=1 string, user_specified_image=18 string
    LinuxContainerConfig: security_context=2 LinuxContainerSecurityContext
    LinuxContainerSecurityContext: namespace_options=3 NamespaceOption
    ById: id=1 string, number=2 int64
    ContainerStatusResponse: info=2 Pair*
    """,  # noqa: E501 - a message a line
)


class Containerd:
    """The daemon, with everything it owns below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "c.sock"
        self.uid = str(uuid.uuid4())
        self._config = folder / "config.toml"
        self._config.write_text(self._settings())
        self._daemon: subprocess.Popen[bytes] | None = None

    def _settings(self) -> str:
        cri = 'plugins."io.containerd.grpc.v1.cri"'
        return f"""
            version = 2
            root = "{self.folder}/root"
            state = "{self.folder}/state"
            [grpc]
              address = "{self.socket}"
            [{cri}]
              sandbox_image = "{IMAGE}"
              restrict_oom_score_adj = true
            [{cri}.containerd]
              snapshotter = "native"
            [{cri}.containerd.runtimes.runc]
              runtime_type = "io.containerd.runc.v2"
            [{cri}.cni]
              bin_dir = "{self.folder}/none"
              conf_dir = "{self.folder}/none"
        """

    def start(self) -> None:
        """Until its CRI answers, which is later than its socket."""
        argv = ["containerd", "--config", str(self._config)]
        self._daemon = daemons.start(argv, self.folder / "log", self._is_ready)

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._daemon is not None and self._daemon.poll() is None

    def kill(self) -> None:
        """Without a goodbye; its containers go on."""
        assert self._daemon is not None
        daemons.kill(self._daemon)

    def _is_ready(self) -> bool:
        try:
            self.call("Version", b"")
        except grpc.RpcError:
            return False
        return True

    def call(self, method: str, request: Any) -> bytes:
        """A call to the CRI, with grpcio: what we test must not help to prepare its test."""
        data = request if isinstance(request, bytes) else request.SerializeToString()
        with grpc.insecure_channel(f"unix://{self.socket}", [("grpc.default_authority", "localhost")]) as channel:
            ask: Any = channel.unary_unary(f"/runtime.v1.RuntimeService/{method}")
            return bytes(ask(data, timeout=20))

    def call_for_id(self, method: str, request: Any) -> str:
        """Of what was made."""
        return str(CRI.ById.FromString(self.call(method, request)).id)

    def ctr(self, *argv: str, namespace: str = "k8s.io") -> str:
        """In a namespace."""
        return daemons.run("ctr", "--address", str(self.socket), "--namespace", namespace, *argv)

    @contextmanager
    def task(self, namespace: str, container_id: str, *labels: str) -> Iterator[int]:
        """A container that no kubelet made: the pid of its process."""
        self.ctr("images", "import", "--snapshotter", "native", str(self.folder / "image.tar"), namespace=namespace)
        flags = [f"--label={label}" for label in labels]
        self.ctr("run", "--detach", "--snapshotter", "native", *flags, IMAGE, container_id, namespace=namespace)
        try:
            rows = [line.split() for line in self.ctr("tasks", "list", namespace=namespace).splitlines()]
            yield next(int(pid) for name, pid, *_ in rows if name == container_id)
        finally:
            self.ctr("tasks", "delete", "--force", container_id, namespace=namespace)
            self.ctr("containers", "delete", container_id, namespace=namespace)

    def pod(self, namespace: str, name: str) -> tuple[str, Any]:
        """A running sandbox and its config, as the kubelet would have it with cgroupfs."""
        config = CRI.PodSandboxConfig(
            metadata={"name": name, "uid": self.uid, "namespace": namespace},
            log_directory=str(self.folder / "logs"),
            linux={
                "cgroup_parent": f"/{PODS}/pod{self.uid}",
                "security_context": {"namespace_options": {"network": NODE}},
            },
        )
        return self.call_for_id("RunPodSandbox", CRI.RunPodSandboxRequest(config=config)), config

    def container(self, sandbox: tuple[str, Any], name: str, labels: dict[str, str]) -> str:
        """A running container that sleeps."""
        sandbox_id, sandbox_config = sandbox
        config = CRI.ContainerConfig(
            metadata={"name": name},
            image={"image": IMAGE, "user_specified_image": IMAGE},
            command=["/bin/sleep", "3600"],
            labels=[{"key": key, "value": value} for key, value in labels.items()],
            linux={"security_context": {"namespace_options": {"network": NODE}}},
        )
        request = CRI.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox_config)
        container_id = self.call_for_id("CreateContainer", request)
        self.call("StartContainer", CRI.ById(id=container_id))
        return container_id

    def pid(self, container_id: str) -> int:
        """Of the container's first process."""
        answer = self.call("ContainerStatus", CRI.ById(id=container_id, number=1))  # 1: verbose
        info = {pair.key: pair.value for pair in CRI.ContainerStatusResponse.FromString(answer).info}
        return int(json.loads(info["info"])["pid"])

    def clean(self) -> None:
        """Whatever happened before: no process, no mount, no socket of ours stays."""
        # A shim that is killed leaves its socket, which is not below our folder.
        sockets = [path.read_text().removeprefix("unix://") for path in self.folder.glob("state/*.task/*/*/address")]
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._daemon is not None and self._daemon.poll() is None:
            # The shims end themselves, with their sockets, when their containers are removed.
            with suppress(AssertionError, subprocess.TimeoutExpired):
                wait_until(lambda: "RUNNING" not in self.ctr("tasks", "list"))
                for task in self.ctr("tasks", "list", "--quiet").split():
                    self.ctr("tasks", "delete", "--force", task)
            daemons.stop(self._daemon)
        daemons.end_processes_under(self.folder)
        wait_until(lambda: not self._pids())
        daemons.unmount_under(self.folder)
        for path in sockets:
            Path(path).unlink(missing_ok=True)

    def _pids(self) -> list[int]:
        """The processes in the pod's cgroup, whose name is unique."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if self.uid in (entry / "cgroup").read_text():
                        found.append(int(entry.name))
        return found


@contextmanager
def a_containerd(folder: Path) -> Iterator[Containerd]:
    """A daemon that runs, with one image, whose archive is `image.tar` in the folder."""
    ours = [path for path in _cgroup_folders() if not path.exists()]
    server = Containerd(folder)
    try:
        server.start()
        archive = folder / "image.tar"
        archive.write_bytes(image_archive(images.busybox_tar()))
        server.ctr("images", "import", "--snapshotter", "native", str(archive))
        yield server
    finally:
        server.clean()
        for root in CGROUPS.glob(f"**/pod{server.uid}"):
            remove_tree(root)
        for path in ours:
            with suppress(OSError):  # it is not there, or in use by others by now
                path.rmdir()


def _cgroup_folders() -> list[Path]:
    """Where pods, and containers of a namespace of containerd, are in every cgroup hierarchy, the deepest first."""
    roots = [CGROUPS, *(folder for folder in CGROUPS.iterdir() if folder.is_dir())]
    return [root / name for name in (PODS, "kubepods", "default", "team-a") for root in roots]


def remove_tree(folder: Path) -> None:
    """Of cgroups, in which only folders can be removed."""
    for inside in folder.iterdir():
        if inside.is_dir():
            remove_tree(inside)
    with suppress(OSError):
        folder.rmdir()


def image_archive(layer: bytes) -> bytes:
    """An image as `docker save` writes it."""
    config = json.dumps({
        "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
        "os": "linux",
        "config": {"Entrypoint": ["/bin/sleep", "3600"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }).encode()  # fmt: skip
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]).encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in (("config.json", config), ("layer.tar", layer), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
