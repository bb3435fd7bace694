"""The real components that tests use, and which of them this machine lacks.

`python3 tests/components.py` lists the missing ones and the tests that are left out. It needs nothing but Python, so
that `make test` can begin with it. A test declares what it needs: `needs("dockerd", "root")`. With STRICT=1, a missing
component fails its tests instead.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

TESTS = Path(__file__).parent
PATH = "/usr/bin:/usr/sbin:/bin:/sbin:" + os.environ.get("PATH", "")
"""The distribution's own programs first: its parts fit together."""
PACKAGES = {
    "bash": "bash",
    "busybox": "busybox-static",
    "chromium": "chromium",
    "containerd": "containerd",
    "ctr": "containerd",
    "curl": "curl",
    "docker": "docker.io",
    "dockerd": "docker.io",
    "git": "git",
    "make": "make",
    "munged": "munge",
    "openssl": "openssl",
    "pgrep": "procps",
    "podman": "podman",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "runc": "runc",
    "sbatch": "slurm-client",
    "setpriv": "util-linux",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "systemd-analyze": "systemd",
    "tmux": "tmux",
    "victoria-metrics": "victoria-metrics",
}
"""Programs, each with its package in Debian."""
ROOT, CGROUPS, NETWORK = "root", "cgroups", "network"
INDEX = ("pypi.org", 443)
CGROUP_FILES = ("/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/cgroup.procs")
"""Of version 2 and version 1."""
SYS_ADMIN = 21
"""Number of the capability."""
MARK = re.compile(r"\bneeds\(([^)]*)\)")


def find(name: str) -> str | None:
    """The path of a program; None if it is missing."""
    return shutil.which(name, path=PATH)


def is_here(name: str) -> bool:
    """Whether this machine has a program, or root's rights, cgroups that tests can create, or a way to PyPI."""
    if name == ROOT:
        return os.geteuid() == 0 and bool(_capabilities() >> SYS_ADMIN & 1)
    if name == CGROUPS:
        return is_here(ROOT) and any(os.access(path, os.W_OK) for path in CGROUP_FILES)
    if name == NETWORK:
        return _can_connect()
    return find(name) is not None


@cache
def _can_connect() -> bool:
    try:
        socket.create_connection(INDEX, timeout=3).close()
    except OSError:
        return False
    return True


def _capabilities() -> int:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(re.findall(r"^CapEff:\s*(\w+)$", status, re.MULTILINE)[0], 16)


def is_strict() -> bool:
    """Whether a missing component is a failure."""
    return os.environ.get("STRICT", "") not in ("", "0")


def leave_out(name: str) -> NoReturn:
    """Skip the running test, or fail it."""
    import pytest

    reason = f"{describe(name)} is missing"
    if is_strict():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def program(name: str) -> str:
    """The path of a program; if it is missing, the running test is left out."""
    found = find(name)
    if found is None:
        leave_out(name)
    return found


def compiler() -> list[str]:
    """The command of a C compiler: CC, the system's own, or that of the package ziglang."""
    found = shutil.which(os.environ.get("CC", "cc"))
    if found is not None:
        return [found]
    if find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    raise RuntimeError("no C compiler: install gcc or clang, set CC, or `pip install ziglang`")


def describe(name: str) -> str:
    """The component and how to get it."""
    if name == ROOT:
        return "root (with CAP_SYS_ADMIN)"
    if name == CGROUPS:
        return "a writable cgroup hierarchy"
    if name == NETWORK:
        return "a connection to PyPI"
    package = PACKAGES.get(name)
    return f"{name} (apt install {package})" if package else name


def files_by_component() -> dict[str, list[str]]:
    """The test files that need each component, by the text of their marks."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        marks = MARK.findall(path.read_text())
        for name in sorted({name for mark in marks for name in re.findall(r'"([\w-]+)"', mark)}):
            found.setdefault(name, []).append(str(path.relative_to(TESTS.parent)))
    return found


def main() -> int:
    """List the missing components; with STRICT=1, return 1 if there are any."""
    missing = {name: files for name, files in files_by_component().items() if not is_here(name)}
    if not missing:
        print("This machine has every component that the tests need.")
        return 0
    print("This machine lacks components. Tests that need them " + ("fail:" if is_strict() else "are left out:"))
    for name, files in missing.items():
        print(f"  {describe(name)}: {', '.join(files)}")
    return int(is_strict())


if __name__ == "__main__":
    sys.exit(main())
