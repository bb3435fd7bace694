"""A node on which the kubelet's pod-resources socket is the only provider of names."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cli.running import surroundings
from tests.fakedriver import Gpu, Process, Scenario
from tests.owners.providers.kubelet_server import KubeletServer

UID = "8f3c2b7e-1d4a-4a8e-9c55-0e6a7d1b2c3d"
GPU = "GPU-5d2f6a0c-7b1e-4c3d-8a9f-1e2d3c4b5a69"
CONTAINER = "c4" * 32
TRAIN, SERVE = 7, 8
"""Pids of two processes of the pod."""


@dataclass(frozen=True)
class KubeletNode:
    """The flags and the environment of an exporter on this node."""

    flags: tuple[str, ...]
    env: Mapping[str, str]


@contextmanager
def kubelet_node(*pods: str) -> Iterator[KubeletNode]:
    """A GPU with two processes of one pod. The kubelet allocated the GPU to these pods of the namespace `ml`."""
    with tempfile.TemporaryDirectory() as name, KubeletServer(Path(name) / "kubelet.sock") as kubelet:
        folder = Path(name)
        for number, pod in enumerate(pods):
            kubelet.give("ml", pod, "main", "nvidia.com/gpu", f"{GPU}::{number}" if len(pods) > 1 else GPU)
        proc = folder / "proc"
        proc.mkdir()
        (proc / "stat").write_text("btime 1700000000\n")
        for pid in (TRAIN, SERVE):
            place = proc / str(pid)
            place.mkdir()
            (place / "stat").write_text(f"{pid} (python{pid}) S {' '.join(['0'] * 18)} 500 0 0\n")
            (place / "status").write_text(f"Name:\tpython{pid}\nUid:\t0\t0\t0\t0\n")
            (place / "cgroup").write_text(f"0::/kubepods/burstable/pod{UID}/{CONTAINER}\n")
        processes = [Process(0, TRAIN, sm=40), Process(0, SERVE, sm=20)]
        scenario = Scenario([Gpu(0, uuid=GPU, watts=300)], processes).write(folder / "scenario")
        flags = ("--environment=kubernetes", "--cri.socket=/nowhere/cri.sock", f"--pod-resources-socket={kubelet.path}")
        yield KubeletNode((*flags, f"--path.procfs={proc}"), surroundings(scenario))
