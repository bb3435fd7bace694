"""A real kubelet. In standalone mode it has no API server, and its pods are files in a directory."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from tests.e2e.build import built
from tests.real import daemons
from tests.real.containerds import CGROUPS, IMAGE, remove_tree
from tests.waiting import free_port

NODE = "node1"
KEPT_FROM_IT = (
    "kernel/keys/root_maxbytes kernel/keys/root_maxkeys kernel/panic kernel/panic_on_oops "
    "vm/overcommit_memory vm/panic_on_oom"
)
"""Files below /proc/sys that a kubelet writes."""
PRIVATE = """
set -eu
for path in /var/lib /var/log; do mkdir -p "$1$path"; mount --bind "$1$path" "$path"; done
for path in $2; do
  mkdir -p "$1/$(dirname "$path")"; cat "/proc/sys/$path" > "$1/$path"; mount --bind "$1/$path" "/proc/sys/$path"
done
shift 2
exec "$@"
"""
"""Script that gives the kubelet its own mount namespace, because /var/lib/kubelet/device-plugins is hard-coded."""


@dataclass(frozen=True)
class StaticPod:
    """Static pod with sleeping containers."""

    namespace: str
    name: str
    containers: dict[str, dict[str, int]]
    """Containers by name, with the resources that each requests."""
    version: int = 1
    """A different value creates another pod with the same name: the uid is a hash of the file."""

    @property
    def shown_as(self) -> str:
        """Name in the API: the kubelet appends the node's name."""
        return f"{self.name}-{NODE}"

    def manifest(self) -> dict[str, Any]:
        """Manifest of the pod."""
        metadata = {"name": self.name, "namespace": self.namespace, "annotations": {"version": str(self.version)}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec(self.containers)}


def pod_spec(containers: dict[str, dict[str, int]]) -> dict[str, Any]:
    """Pod spec with the node's network, because there is no CNI, and a local image, because there is no registry."""
    return {
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": name,
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "command": ["/bin/sleep", "3600"],
                "resources": {"limits": {resource: str(count) for resource, count in wanted.items()}},
            }
            for name, wanted in containers.items()
        ],
    }


class Kubelet:
    """The kubelet, with all files in one directory and all pods in one cgroup."""

    def __init__(self, folder: Path, runtime: Path, cgroup: str, kubeconfig: Path | None = None) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.pod_resources = folder / "root/pod-resources/kubelet.sock"
        self.device_plugins = folder / "private/var/lib/kubelet/device-plugins"
        self.plugins = folder / "root/plugins_registry"
        self._cgroup = cgroup
        self._kubeconfig = kubeconfig
        self._manifests = folder / "manifests"
        self._manifests.mkdir(parents=True)
        self._health_port = free_port()
        (folder / "config.json").write_text(json.dumps(self._settings(runtime)))
        self._daemon: subprocess.Popen[bytes] | None = None

    def _settings(self, runtime: Path) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{runtime}",
            "staticPodPath": str(self._manifests),
            "podLogsDir": str(self.folder / "pod-logs"),
            "volumePluginDir": str(self.folder / "volume-plugins"),
            "fileCheckFrequency": "1s",
            # The kubelet must not clean up other pods on this machine.
            "cgroupRoot": f"/{self._cgroup}",
            "cgroupDriver": "cgroupfs",
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "failCgroupV1": False,
            # No client needs these ports.
            "enableServer": False,
            "authentication": {"webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": self._health_port,
            # A full disk of this machine must not evict pods or remove images.
            "makeIPTablesUtilChains": False,
            "localStorageCapacityIsolation": False,
            "evictionHard": {"memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100,
        }

    def start(self) -> None:
        """Start and wait until it is healthy and its sockets exist. Running pods continue."""
        for hierarchy in _hierarchies():
            (hierarchy / self._cgroup).mkdir(exist_ok=True)
        kubelet = [str(built("kubelet")), "--config", str(self.folder / "config.json"),
                   "--root-dir", str(self.folder / "root"), "--hostname-override", NODE]  # fmt: skip
        if self._kubeconfig is not None:
            kubelet += ["--kubeconfig", str(self._kubeconfig)]
        private = ["sh", "-c", PRIVATE, "sh", str(self.folder / "private"), KEPT_FROM_IT]
        argv = ["unshare", "--mount", "--propagation", "slave", *private, *kubelet]
        self._daemon = daemons.start(argv, self.log, self._is_ready, timeout_s=60)

    def kill(self) -> None:
        """Kill with SIGKILL. Its pods continue."""
        assert self._daemon is not None
        daemons.kill(self._daemon)

    @property
    def is_running(self) -> bool:
        """Whether the kubelet runs."""
        return self._daemon is not None and self._daemon.poll() is None

    def stop(self) -> None:
        """Stop the kubelet. Its pods keep running."""
        if self._daemon is not None:
            daemons.stop(self._daemon)

    def remove_cgroups(self) -> None:
        """Remove its files and cgroups, after all pods have ended."""
        for hierarchy in _hierarchies():
            if (hierarchy / self._cgroup).exists():
                remove_tree(hierarchy / self._cgroup)

    def set_pods(self, *pods: StaticPod) -> list[StaticPod]:
        """Run exactly these pods; returns those whose manifest changed."""
        wanted = {self._manifests / f"{pod.namespace}-{pod.name}.json": pod for pod in pods}
        for path in set(self._manifests.iterdir()) - wanted.keys():
            path.unlink()
        changed = []
        for path, pod in wanted.items():
            text = json.dumps(pod.manifest())
            if path.exists() and path.read_text() != text:
                changed.append(pod)
            unfinished = self.folder / "unfinished.json"
            unfinished.write_text(text)
            unfinished.replace(path)
        return changed

    def _is_ready(self) -> bool:
        sockets = (self.pod_resources, self.device_plugins / "kubelet.sock")
        try:
            with urlopen(f"http://127.0.0.1:{self._health_port}/healthz", timeout=2):
                return all(daemons.answers(path)() for path in sockets)
        except (URLError, OSError):
            return False


def _hierarchies() -> list[Path]:
    """Cgroup roots: one with v2, one per controller with v1."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [folder for folder in CGROUPS.iterdir() if folder.is_dir() and not folder.is_symlink()]
