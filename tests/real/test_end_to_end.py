"""From a real container's process to its name on /metrics, through everything that can happen to runtimes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from gpuledger.catalog.dialects import DIALECTS
from tests import fakedriver
from tests.checkout import ROOT
from tests.cli import running
from tests.cli.running import Running, serving, surroundings
from tests.components import program
from tests.fakedriver import Gpu, Process, Scenario
from tests.owners.providers.kubelet_server import KubeletServer, pod_labels
from tests.real.containerds import CRI, Containerd
from tests.real.dockers import IMAGE, Engine, Podman

pytestmark = pytest.mark.needs("prometheus")

GIB = 1 << 30
UUID = "GPU-00000000-0000-4000-8000-000000000000"
IDLE = "GPU-00000001-0000-4000-8000-000000000001"

POLLED_S = 25
"""A runtime that dies without a word is noticed when it is asked the next time, after 15 s at most."""
NOBODY_THERE = f'gpu_processes{{gpu="0",uuid="{UUID}"}} 0'

Exporter = Callable[..., AbstractContextManager["Node"]]


class Node:
    """The exporter on a fake driver that lists the pids the test names."""

    def __init__(self, scenario: Scenario, path: Path) -> None:
        self._scenario, self._path = scenario, path
        self.server: Running

    def run_on_gpu(self, *pids: int) -> None:
        """From now on these processes are on GPU 0, each with a GiB."""
        self._scenario.processes = [Process(gpu=0, pid=pid, memory=GIB, sm=20) for pid in pids]
        self._scenario.write(self._path)

    def use_unlisted(self, memory: int) -> None:
        """From now on, this much memory of GPU 0 is held by no listed process."""
        self._scenario.gpus[0].memory_used = memory
        self._scenario.write(self._path)

    def shows(self, line: str) -> str:
        """Wait for a line of the metrics."""
        return self.server.metrics(f"^{re.escape(line)}$", within_s=POLLED_S)


@pytest.fixture
def exporter(tmp_path: Path) -> Exporter:
    """Start an exporter with these flags."""

    @contextmanager
    def run(*flags: str) -> Iterator[Node]:
        scenario = Scenario(gpus=[Gpu(index=0, uuid=UUID), Gpu(index=1, uuid=IDLE)])
        path = scenario.write(tmp_path / "scenario")
        node = Node(scenario, path)
        with serving("serve", "--tick.interval=200ms", *flags, env=surroundings(path)) as server:
            node.server = server
            yield node

    return run


def container_line(name: str, container_id: str, *, processes: int = 1) -> str:
    """What a Docker or Podman container shows."""
    labels = f'container="{name}",container_id="{container_id}",namespace="",pod="",pod_uid="",gpu="0",uuid="{UUID}"'
    return f'container_gpu_memory_bytes{{{labels},method="nvml"}} {processes * GIB}'


def test_docker(engine: Engine, exporter: Exporter) -> None:
    """Name, image, two processes, a rename, a restart, the daemon killed and back, and a host process beside it."""
    container = engine.sleeper("first")
    pid = int(engine.cli("inspect", "--format", "{{.State.Pid}}", container))
    with exporter("--environment=none", f"--docker.host=unix://{engine.socket}") as node:
        node.run_on_gpu(pid, os.getpid())
        body = node.shows(container_line("first", container))
        assert f'runtime="docker",image="{IMAGE}"' in body
        assert f'gpu_process_memory_used_bytes{{pid="{os.getpid()}",gpu="0",uuid="{UUID}"' in body
        assert body.count("container_gpu_processes{") == 1

        engine.cli("rename", "first", "second")
        node.shows(container_line("second", container))

        engine.kill_dockerd()
        body = node.shows('gpuledger_provider_up{provider="docker"} 0')
        assert container_line("second", container) in body  # names outlive their provider
        engine.start_dockerd()
        node.shows('gpuledger_provider_up{provider="docker"} 1')

        engine.cli("restart", "second")
        pid = int(engine.cli("inspect", "--format", "{{.State.Pid}}", container))
        node.run_on_gpu(pid)
        process = rf'^gpu_process_memory_used_bytes{{pid="{pid}",.*,container="second",.*container_id="{container}"}}'
        body = node.server.metrics(process, within_s=POLLED_S)  # until then, the driver lists the process that ended
        assert container_line("second", container) in body

        engine.cli("rm", "--force", "second")
        node.run_on_gpu()
        assert "container_gpu_memory_bytes{" not in node.shows(NOBODY_THERE)


def test_new_container_is_named_within_seconds(engine: Engine, exporter: Exporter) -> None:
    """A container that starts after the exporter gets its name without waiting for the next poll."""
    with exporter("--environment=none", f"--docker.host=unix://{engine.socket}") as node:
        node.shows('gpuledger_provider_up{provider="docker"} 1')
        container = engine.sleeper("late")
        node.run_on_gpu(int(engine.cli("inspect", "--format", "{{.State.Pid}}", container)))
        node.shows(container_line("late", container))


def test_podman(podman: Podman, exporter: Exporter) -> None:
    """The same through Podman's socket."""
    container = podman.sleeper("web")
    pid = int(podman.cli("inspect", "--format", "{{.State.Pid}}", container))
    with exporter("--environment=none", f"--docker.host={podman.socket}") as node:
        node.run_on_gpu(pid)
        body = node.shows(container_line("web", container))
        assert f'image="localhost/{IMAGE}"' in body
        assert 'gpuledger_provider_up{provider="podman"} 1' in body


def test_kubernetes(containerd: Containerd, tmp_path: Path, exporter: Exporter) -> None:
    """A pod of a real containerd, devices from a kubelet's socket, through restarts of both."""
    kubelet = KubeletServer(tmp_path / "kubelet.sock")
    kubelet.give("ml", "train", "main", "nvidia.com/gpu", f"{UUID}::0")
    kubelet.give("ml", "waiting", "main", "nvidia.com/gpu", IDLE)
    kubelet.start()
    sandbox = containerd.pod("ml", "train")
    main = containerd.container(sandbox, "main", pod_labels("ml", "train", containerd.uid, "main"))
    flags = (
        "--environment=kubernetes",
        f"--cri.socket={containerd.socket}",
        f"--pod-resources-socket={tmp_path}/kubelet.sock",
    )
    owner = f'container="main",container_id="{main}",namespace="ml",pod="train",pod_uid="{containerd.uid}"'
    line = f'container_gpu_memory_bytes{{{owner},gpu="0",uuid="{UUID}",method="nvml"}} {GIB}'
    grant = 'gpu_pod_allocation_info{{gpu="{}",uuid="{}",namespace="ml",pod="{}",container="main",resource="nvidia.com/gpu",replica="{}"}} 1'  # noqa: E501
    try:
        with exporter(*flags) as node:
            node.run_on_gpu(containerd.pid(main))
            node.shows(line)
            node.shows(grant.format(0, UUID, "train", "0"))
            node.shows(grant.format(1, IDLE, "waiting", ""))  # nobody works on it, and it still shows its pod

            containerd.kill()
            kubelet.stop()
            body = node.shows('gpuledger_provider_up{provider="cri"} 0')
            assert line in body
            containerd.start()
            kubelet.start()
            node.shows('gpuledger_provider_up{provider="cri"} 1')
            node.shows('gpuledger_provider_up{provider="podresources"} 1')

            containerd.call("StopContainer", CRI.ById(id=main))
            node.run_on_gpu()
            body = node.shows(NOBODY_THERE)
            assert grant.format(0, UUID, "train", "0") in body
    finally:
        kubelet.stop()


def test_memory_that_no_listed_process_holds(engine: Engine, exporter: Exporter) -> None:
    """Used memory without a listed process is inferred to the container that has the GPU, and shown as inferred."""
    container = engine.sleeper("ollama", "--runtime", "nvidia", "--env", f"NVIDIA_VISIBLE_DEVICES={UUID}")
    with exporter("--environment=none", f"--docker.host=unix://{engine.socket}") as node:
        node.shows('gpuledger_provider_up{provider="docker"} 1')
        node.use_unlisted(3 * GIB)
        body = node.shows(container_line("ollama", container, processes=3).replace('"nvml"', '"inference"'))
        device = f'{{gpu="0",uuid="{UUID}"}}'
        for line in (
            f"gpu_memory_known_bytes{device} 0",
            f"gpu_memory_unknown_bytes{device} {3 * GIB}",
            f"gpu_inference_active{device} 1",
            f"gpu_inference_candidates{device} 1",
            f"gpu_in_use{device} 1",
        ):
            assert f"\n{line}\n" in body
        assert re.search(r'^container_gpu_detected{container="ollama",.*evidence="environment"} 1$', body, re.MULTILINE)
        assert 'method="nvml"' not in body


@pytest.mark.parametrize(
    ("namespace", "asked"),
    [("private", ("runtime", "runtime")), ("host", ("runtime", "gpus")),
     ("private", ("gpus", "runtime")), ("host", ("gpus", "gpus"))],
)  # fmt: skip
def test_exporter_in_a_container(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str, asked: tuple[str, str]
) -> None:
    """Unlisted memory belongs to the other container alone, also if the exporter has its own cgroup namespace.

    So do the series of the GPU in the dialects. Another exporter is ignored by its name. The options are those of the
    README, but for one GPU instead of all: it is unknown to containers of tests that run at the same time.
    """
    uuid = IDLE.replace("1", str(2 + 2 * (asked[0] == "gpus") + (asked[1] == "gpus")))
    options_of = {
        "runtime": ("--runtime", "nvidia", "--env", f"NVIDIA_VISIBLE_DEVICES={uuid}"),
        "gpus": ("--gpus", f"device={uuid}"),
    }
    gpus = options_of[asked[0]]
    user = engine.sleeper("user-of-gpu", *options_of[asked[1]])
    engine.sleeper("dcgm-exporter", *gpus)
    scenario = Scenario(gpus=[Gpu(index=0, uuid=uuid, memory_used=3 * GIB)]).write(tmp_path / "scenario")
    variables = {"PYTHONPATH": f"{ROOT}/src", **fakedriver.environment(scenario)}
    folders = {"/usr", "/lib", "/lib64", sys.base_prefix, sys.prefix, str(ROOT), str(tmp_path), str(engine.folder)}
    options = ["--name=gpuledger", *gpus, "--pid=host", "--user=0", "--cap-drop=ALL", "--cap-add=SYS_PTRACE"]
    options += ["--read-only", "--security-opt=no-new-privileges", "--network=host", f"--cgroupns={namespace}"]
    options += [f"--volume={folder}:{folder}" for folder in (*folders, fakedriver.build())]
    options += [f"--env={name}={value}" for name, value in variables.items()]
    docker = [program("docker"), "--host", f"unix://{engine.socket}", "run", *options, IMAGE]
    monkeypatch.setattr(running, "COMMAND", [*docker, *running.PROGRAM])
    try:
        flags = ("--tick.interval=200ms", "--environment=none", f"--docker.host=unix://{engine.socket}")
        ignored = "--owners.ignore=dcgm-exporter"
        with serving("serve", *flags, ignored, env=surroundings()) as server:
            line = container_line("user-of-gpu", user, processes=3).replace('"nvml"', '"inference"')
            body = server.metrics(f"^{re.escape(line.replace(UUID, uuid))}$", within_s=POLLED_S)
            dcgm = server.get(DIALECTS["dcgm"].path)
    finally:
        engine.cli("rm", "--force", "gpuledger", "user-of-gpu", "dcgm-exporter")
    assert f'gpu_inference_candidates{{gpu="0",uuid="{uuid}"}} 1' in body
    assert 'container="gpuledger"' not in body
    assert re.search('^DCGM_FI_DEV_FB_USED{.*container="user-of-gpu"', dcgm, re.MULTILINE)
