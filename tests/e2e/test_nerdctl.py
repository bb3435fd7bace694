"""The name of a container that the real nerdctl created, from a real containerd to the metrics of gpuledger."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import serving, surroundings
from tests.e2e.build import built
from tests.fakedriver import Gpu, Process, Scenario
from tests.real import daemons
from tests.real.containerds import IMAGE, Containerd, a_containerd


class Nerdctl:
    """nerdctl on a containerd, with all its files below the folder of the daemon."""

    def __init__(self, containerd: Containerd) -> None:
        folder = containerd.folder
        self._argv = [
            str(built("nerdctl")), f"--address={containerd.socket}", "--snapshotter=native",
            f"--data-root={folder}/nerdctl", f"--cni-path={folder}/none", f"--cni-netconfpath={folder}/networks",
            "--cgroup-manager=cgroupfs",
        ]  # fmt: skip
        self.archive = folder / "image.tar"

    def __call__(self, *words: str) -> str:
        """What a command writes."""
        return daemons.run(*self._argv, *words)


@pytest.fixture
def nerdctl() -> Iterator[tuple[Nerdctl, Containerd]]:
    """On a containerd of its own; a short path, because that of a socket may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="nerdctl-") as folder, a_containerd(Path(folder)) as containerd:
        yield Nerdctl(containerd), containerd


@pytest.mark.parametrize("namespace", ["default", "team-a"])
def test_name_of_a_container(namespace: str, nerdctl: tuple[Nerdctl, Containerd], tmp_path: Path) -> None:
    """`nerdctl run --name web`: the process on the GPU has the name, the id and the image of the container."""
    run, containerd = nerdctl
    run("--namespace", namespace, "load", "--input", str(run.archive))
    # There are no CNI plugins for a network.
    container_id = run("--namespace", namespace, "run", "--detach", "--net=none", "--name=web", IMAGE)
    try:
        pid = int(run("--namespace", namespace, "inspect", "--format={{.State.Pid}}", "web"))
        scenario = Scenario(gpus=[Gpu(0)], processes=[Process(gpu=0, pid=pid)]).write(tmp_path / "scenario")
        flags = ("--environment=containerd", f"--cri.socket={containerd.socket}", "--tick.interval=200ms")
        with serving("serve", *flags, env=surroundings(scenario)) as exporter:
            body = exporter.metrics(f'^gpu_process_memory_used_bytes{{pid="{pid}",.*container="web"')
    finally:
        run("--namespace", namespace, "rm", "--force", "web")

    assert f'container="web",pod_uid="",container_id="{container_id}"}}' in body
    assert f'gpu_owner_info{{container="web",container_id="{container_id}"' in body
    assert f'image="{IMAGE}"' in body
