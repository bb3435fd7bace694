"""CUDA processes in cgroups of our choice. Needs root and a writable cgroup v2 tree."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
WORK = Path(__file__).with_name("workloads.py")
KUBEPODS = "kubepods.slice/kubepods-{qos}.slice/kubepods-{qos}-pod{uid}.slice/{scope}.scope"


def pod_cgroup(uid: str, scope: str, qos: str = "burstable") -> str:
    """Where the kubelet puts a container of a pod, with systemd's names."""
    return KUBEPODS.format(qos=qos, uid=uid.replace("-", "_"), scope=scope)


def start(where: str, kind: str, seconds: float, name: str) -> subprocess.Popen[bytes]:
    """Start a workload in a cgroup, under a command name; returns when it has begun to work."""
    folder = CGROUPS / where
    folder.mkdir(parents=True, exist_ok=True)

    def enter() -> None:
        (folder / "cgroup.procs").write_text(str(os.getpid()))

    code = (
        f"import ctypes, sys; ctypes.CDLL(None).prctl(15, {name!r}.encode(), 0, 0, 0); "
        f"sys.argv = ['x', {kind!r}, '{seconds}']; "
        f"exec(compile(open({str(WORK)!r}).read(), 'workloads.py', 'exec'))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], preexec_fn=enter, stdout=subprocess.PIPE)  # noqa: PLW1509
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    process.stdout.readline()  # ready
    return process


def remove(where: str) -> None:
    """Take away a cgroup, and those above it that are empty."""
    folder = CGROUPS / where
    while folder != CGROUPS:
        with suppress(OSError):
            folder.rmdir()
        folder = folder.parent
