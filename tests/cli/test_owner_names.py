"""The API, `top` and `explain` name the owner of a process in the same way."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.running import gpuledger, surroundings
from tests.fakedriver import Gpu, Process, Scenario

C = "a42d519714d616e9411dbceec4b52808bd6b1ee53e6f6497a281d655357d8b71"
UID = "7f2c1f0e-1b2a-4c3d-9e8f-001122334455"
POD = f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"
OWNERS = {
    11: ("0::/\n", "host"),
    12: (f"0::/system.slice/docker-{C}.scope\n", C[:12]),
    13: (f"0::/{POD}/cri-containerd-{C}.scope\n", f"pod {UID}/{C[:12]}"),
    14: ("0::/system.slice/ollama.service\n", "ollama.service"),
    15: ("0::/system.slice/slurmstepd.scope/job_211/step_0/user/task_0\n", "slurm/211"),
}
"""The cgroup and the owner of each process."""


def put_proc(root: Path) -> Path:
    """A /proc with these processes."""
    for pid, (cgroup, _) in {1: ("0::/init.scope\n", ""), **OWNERS}.items():
        place = root / str(pid)
        place.mkdir(parents=True)
        (place / "stat").write_text(f"{pid} (python3) S {' '.join(['0'] * 18)} 500 0 0\n")
        (place / "status").write_text("Name:\tpython3\nUid:\t0\t0\t0\t0\n")
        (place / "cgroup").write_text(cgroup)
    (root / "stat").write_text("btime 1700000000\n")
    return root


def test_all_name_the_owner_alike(tmp_path: Path) -> None:
    """A host process, a container without a name, a pod known only by its uid, a systemd unit, a batch job."""
    scenario = Scenario([Gpu(0, uuid="GPU-a")], [Process(0, pid, memory=1 << 30) for pid in OWNERS])
    env = surroundings(scenario.write(tmp_path / "scenario"), COLUMNS="400")
    flags = ("--environment=none", f"--path.procfs={put_proc(tmp_path / 'proc')}", "--interval=100ms")
    expected = {pid: owner for pid, (_, owner) in OWNERS.items()}

    snapshot = json.loads(gpuledger("top", "--json", *flags, env=env).stdout)
    assert {row["pid"]: row["owner"] for row in snapshot["processes"]} == expected

    lines = gpuledger("top", "--once", *flags, env=env).stdout.splitlines()
    for pid, owner in expected.items():
        assert any(f" {pid} {owner} " in line for line in lines)
        explained = gpuledger("explain", str(pid), *flags[:2], env=env).stdout
        assert f"\n6. its owner      {owner}\n" in explained
