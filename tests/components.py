"""The real components that tests use, and which of them this machine lacks.

`python3 tests/components.py` lists the missing ones and the tests that are left out. It needs nothing but Python, so
that `make test` can begin with it. A test declares what it needs: `needs("dockerd", "root")`; nothing else skips
a test. With STRICT=1, a missing component fails its tests instead.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

TESTS = Path(__file__).parent
PATH = "/usr/bin:/usr/sbin:/bin:/sbin:" + os.environ.get("PATH", "")
"""The distribution's own programs first: its parts fit together."""
PACKAGES = {
    "bash": "bash",
    "busybox": "busybox-static",
    "cc": "gcc",
    "chromium": "chromium",
    "containerd": "containerd",
    "ctr": "containerd",
    "curl": "curl",
    "docker": "docker.io",
    "dockerd": "docker.io",
    "dpkg-deb": "dpkg",
    "git": "git",
    "lintian": "lintian",
    "make": "make",
    "mariadbd": "mariadb-server",
    "munged": "munge",
    "openssl": "openssl",
    "pgrep": "procps",
    "podman": "podman",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "rpmbuild": "rpm",
    "rpmlint": "rpmlint",
    "runc": "runc",
    "sbatch": "slurm-client",
    "setpriv": "util-linux",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "systemd-analyze": "systemd",
    "tmux": "tmux",
    "unshare": "util-linux",
    "victoria-metrics": "victoria-metrics",
}
"""Programs, each with its package in Debian."""
ROOT, CGROUPS, NETWORK = "root", "cgroups", "network"
PTRACE, HOST_PIDS, NAMESPACES, USERS = "ptrace", "host-pids", "pid-namespaces", "user-namespaces"
INDEX = "https://pypi.org/simple"
PIP_FILES = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
CONNECT_S = 1.0
PATIENT_S = 5.0
"""With STRICT=1, a slow name server must not fail a test."""
CGROUP_FILES = ("/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/cgroup.procs")
"""Of version 2 and version 1."""
DAC_READ_SEARCH, SYS_PTRACE, SYS_ADMIN = 2, 19, 21
"""Numbers of capabilities."""
INIT_PID_NAMESPACE = "pid:[4026531836]"
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")
USER_NAMESPACE = ("unshare", "--user", "--map-root-user")
SEPARATE = {
    "image": "make image-test",
    "e2e": "make e2e",
    "mock": "make mock",
    "conformance": "make conformance",
}
"""Folders of tests that `make test` does not run, and the command that does."""
MARK = re.compile(r"\bneeds\(([^)]*)\)")


def find(name: str) -> str | None:
    """The path of a program; None if it is missing."""
    return shutil.which(name, path=PATH)


def is_here(name: str) -> bool:
    """Whether this machine has a program or one of the other components."""
    check = CHECKS.get(name)
    return find(name) is not None if check is None else check()


def _is_root() -> bool:
    return os.geteuid() == 0 and _has(SYS_ADMIN)


def _can_trace() -> bool:
    return os.geteuid() == 0 and _has(SYS_PTRACE) and _has(DAC_READ_SEARCH)


def _has_cgroups() -> bool:
    return _is_root() and any(os.access(path, os.W_OK) for path in CGROUP_FILES)


def _has_host_pids() -> bool:
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == INIT_PID_NAMESPACE
    except OSError:
        return False


@cache
def _works(*command: str) -> bool:
    if find(command[0]) is None:
        return False
    return subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0


@cache
def _has_index() -> bool:
    """Whether pip's package index, or the proxy before it, accepts a connection within a limit."""
    url = index_url(os.environ, PIP_FILES)
    if urlsplit(url).hostname is None:
        return True
    return _within(PATIENT_S if is_strict() else CONNECT_S, lambda: _connect(proxy_of(url, os.environ) or url))


def index_url(env: Mapping[str, str], files: Iterable[str]) -> str:
    """The index that pip is configured to use: by its variable, or by the last file that names one."""
    config = ConfigParser(interpolation=None)
    for name in (*files, env.get("PIP_CONFIG_FILE", "")):
        try:
            config.read(Path(name).expanduser())
        except (ConfigParserError, OSError, UnicodeDecodeError):
            continue
    configured = [config.get(section, "index-url", fallback="") for section in ("install", "global")]
    return next(filter(None, (env.get("PIP_INDEX_URL", ""), *configured)), INDEX)


def proxy_of(url: str, env: Mapping[str, str]) -> str | None:
    """The proxy for this URL, as pip finds it."""
    name = f"{urlsplit(url).scheme}_proxy"
    return env.get("PIP_PROXY") or env.get(name) or env.get(name.upper()) or None


def _connect(url: str) -> None:
    place = urlsplit(url if "//" in url else f"//{url}")
    port = place.port or (80 if place.scheme == "http" else 443)
    socket.create_connection((place.hostname or "", port), timeout=PATIENT_S).close()


def _within(limit_s: float, connect: Callable[[], None]) -> bool:
    connected = threading.Event()

    def attempt() -> None:
        try:
            connect()
        except OSError:
            return
        connected.set()

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(limit_s)
    return connected.is_set()


def _has(capability: int) -> bool:
    return bool(_capabilities() >> capability & 1)


def _capabilities() -> int:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(re.findall(r"^CapEff:\s*(\w+)$", status, re.MULTILINE)[0], 16)


def _has_compiler() -> bool:
    """Of the system, or from `make zig`, also before the tests run in the virtual environment."""
    environment = (TESTS.parent / ".venv").glob("lib/python*/site-packages/ziglang")
    return bool(shutil.which(os.environ.get("CC", "cc")) or find_spec("ziglang") or list(environment))


CHECKS: dict[str, Callable[[], bool]] = {
    "cc": _has_compiler,
    ROOT: _is_root,
    PTRACE: _can_trace,
    CGROUPS: _has_cgroups,
    HOST_PIDS: _has_host_pids,
    NAMESPACES: lambda: _works(*NAMESPACE),
    USERS: lambda: _works(*USER_NAMESPACE),
    NETWORK: _has_index,
}
DESCRIPTIONS = {
    ROOT: "root (with CAP_SYS_ADMIN)",
    PTRACE: "root with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
    CGROUPS: "a writable cgroup hierarchy",
    HOST_PIDS: "the host's PID namespace",
    NAMESPACES: "the right to create a PID namespace",
    USERS: "the right to create a user namespace",
    NETWORK: "a connection to pip's package index",
}


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
    if not _has_compiler():
        leave_out("cc")
    return [sys.executable, "-m", "ziglang", "cc"]


def describe(name: str) -> str:
    """The component and how to get it."""
    if name in DESCRIPTIONS:
        return DESCRIPTIONS[name]
    package = PACKAGES.get(name)
    other = " or make zig" if name == "cc" else ""
    return f"{name} (apt install {package}{other})" if package else name


def files_by_component() -> dict[str, list[str]]:
    """The test files that need each component, by the text of their marks."""
    found = {"cc": ["every test of the fake driver"]}
    for path in sorted(TESTS.rglob("test_*.py")):
        if path.relative_to(TESTS).parts[0] in SEPARATE:
            continue
        marks = MARK.findall(path.read_text())
        for name in sorted({name for mark in marks for name in re.findall(r'"([\w-]+)"', mark)}):
            found.setdefault(name, []).append(str(path.relative_to(TESTS.parent)))
    return found


def summary() -> str:
    """What was left out, after the tests, with one line to install it; empty if this machine has everything."""
    missing = [name for name in files_by_component() if not is_here(name)]
    packages = sorted({PACKAGES[name] for name in missing if name in PACKAGES})
    others = [DESCRIPTIONS[name] for name in missing if name in DESCRIPTIONS]
    lines = ["Tests were left out, because this machine lacks: " + ", ".join(missing)] if missing else []
    lines += ["Install with: apt install " + " ".join(packages)] if packages else []
    lines += ["Other needs: " + ", ".join(others)] if others else []
    return "\n".join(lines)


def main() -> int:
    """List the missing components, the network last, because it is slow; with STRICT=1, return 1 if there are any."""
    needed = files_by_component()
    print("Not part of make test: " + ", ".join(f"tests/{folder} ({command})" for folder, command in SEPARATE.items()))
    missing = 0
    for name in sorted(needed, key=lambda name: name == NETWORK):
        if not is_here(name):
            if not missing:
                print("This machine lacks components. Tests that need them " + _consequence())
            print(f"  {describe(name)}: {', '.join(needed[name])}", flush=True)
            missing += 1
    if not missing:
        print("This machine has every component that the tests need.")
    return int(is_strict() and missing > 0)


def _consequence() -> str:
    return "fail:" if is_strict() else "are left out:"


if __name__ == "__main__":
    if "--summary" in sys.argv:
        print(summary() or "No test was left out.")
    else:
        sys.exit(main())
