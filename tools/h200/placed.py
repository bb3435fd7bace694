"""CUDA processes in given cgroups. Needs root and a writable cgroup v2 hierarchy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
WORK = Path(__file__).with_name("workloads.py")
SHORT = Path(__file__).with_name("short.py")
KUBEPODS = "kubepods.slice/kubepods-{qos}.slice/kubepods-{qos}-pod{uid}.slice/{scope}.scope"


def pod_cgroup(uid: str, scope: str, qos: str = "burstable") -> str:
    """Cgroup of a pod's container with the systemd driver of the kubelet."""
    return KUBEPODS.format(qos=qos, uid=uid.replace("-", "_"), scope=scope)


def start(where: str, kind: str, seconds: float, name: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a workload in a cgroup with a command name; returns when it works."""
    folder = CGROUPS / where
    folder.mkdir(parents=True, exist_ok=True)

    def enter() -> None:
        (folder / "cgroup.procs").write_text(str(os.getpid()))

    code = (
        f"import ctypes, sys; ctypes.CDLL(None).prctl(15, {name!r}.encode(), 0, 0, 0); "
        f"sys.argv = ['x', {kind!r}, '{seconds}']; "
        f"exec(compile(open({str(WORK)!r}).read(), 'workloads.py', 'exec'))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        preexec_fn=enter,  # noqa: PLW1509
        stdout=subprocess.PIPE,
        env=os.environ | environment,
    )
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    process.stdout.readline()  # ready
    return process


@contextmanager
def mps(folder: Path) -> Iterator[dict[str, str]]:
    """Run an MPS server; yields the environment for its clients. Does not change the mode of the GPU."""
    environment = {f"CUDA_MPS_{name}_DIRECTORY": str(folder / name.lower()) for name in ("PIPE", "LOG")}
    for path in environment.values():
        Path(path).mkdir()
    subprocess.run(["nvidia-cuda-mps-control", "-d"], env=os.environ | environment, check=True)  # noqa: S607
    try:
        yield environment
    finally:
        subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", env=os.environ | environment, check=False)  # noqa: S607


def remove(where: str) -> None:
    """Remove a cgroup and its empty parents."""
    folder = CGROUPS / where
    while folder != CGROUPS:
        with suppress(OSError):
            folder.rmdir()
        folder = folder.parent
