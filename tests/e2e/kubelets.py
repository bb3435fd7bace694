"""A real kubelet. In standalone mode there is no API server, and its pods are files in a folder."""

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
from tests.real.prometheus import free_port

NODE = "node1"
KEPT_FROM_IT = (
    "kernel/keys/root_maxbytes kernel/keys/root_maxkeys kernel/panic kernel/panic_on_oops "
    "vm/overcommit_memory vm/panic_on_oom"
)
"""What a kubelet sets under /proc/sys, whoever's machine it is."""
PRIVATE = """
set -eu
for path in /var/lib /var/log; do mkdir -p "$1$path"; mount --bind "$1$path" "$path"; done
for path in $2; do
  mkdir -p "$1/$(dirname "$path")"; cat "/proc/sys/$path" > "$1/$path"; mount --bind "$1/$path" "/proc/sys/$path"
done
shift 2
exec "$@"
"""
"""It has /var/lib/kubelet/device-plugins in its code: in a mount namespace of its own, all of that is the test's."""


@dataclass(frozen=True)
class StaticPod:
    """A pod that a file on the node asks for. Each of its containers sleeps."""

    namespace: str
    name: str
    containers: dict[str, dict[str, int]]
    """By name, with how many of which resource each wants."""
    version: int = 1
    """Another one makes it another pod of the same name: its uid is a hash of its file."""

    @property
    def shown_as(self) -> str:
        """The kubelet adds the node's name."""
        return f"{self.name}-{NODE}"

    def manifest(self) -> dict[str, Any]:
        """What the file says."""
        metadata = {"name": self.name, "namespace": self.namespace, "annotations": {"version": str(self.version)}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec(self.containers)}


def pod_spec(containers: dict[str, dict[str, int]]) -> dict[str, Any]:
    """There is no CNI, so it uses the node's network; there is no registry, so its image is here already."""
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
    """The daemon, with everything it owns below one folder and one cgroup."""

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
            # Pods of others on this machine are not its own to clean up.
            "cgroupRoot": f"/{self._cgroup}",
            "cgroupDriver": "cgroupfs",
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "failCgroupV1": False,
            # Nobody calls it.
            "enableServer": False,
            "authentication": {"webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": self._health_port,
            # The rest of the machine is none of its business: a full disk evicts no pod and removes no image.
            "makeIPTablesUtilChains": False,
            "localStorageCapacityIsolation": False,
            "evictionHard": {"memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100,
        }

    def start(self) -> None:
        """Until it is healthy and its sockets are there; pods that ran before go on."""
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
        """Without a goodbye; its pods go on."""
        assert self._daemon is not None
        daemons.kill(self._daemon)

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._daemon is not None and self._daemon.poll() is None

    def stop(self) -> None:
        """It leaves its pods running; who runs them has to end them."""
        if self._daemon is not None:
            daemons.stop(self._daemon)

    def remove_cgroups(self) -> None:
        """Once all pods have ended."""
        for hierarchy in _hierarchies():
            if (hierarchy / self._cgroup).exists():
                remove_tree(hierarchy / self._cgroup)

    def set_pods(self, *pods: StaticPod) -> list[StaticPod]:
        """From now on these pods are to run and no others; those of them that were to run otherwise until now."""
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
    """Where cgroups can be made: one place with v2, one for each controller with v1."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [folder for folder in CGROUPS.iterdir() if folder.is_dir() and not folder.is_symlink()]
