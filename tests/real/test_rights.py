"""What the exporter sees with exactly the rights that docs/permissions.md names, and what it never tells."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli import running
from tests.cli.running import serving, surroundings
from tests.fakedriver import Gpu, Process, Scenario
from tests.owners.providers.kubelet_server import CriServer, KubeletServer, pod_labels
from tests.real.containerds import CGROUPS
from tests.real.dockers import Engine

ROOT = Path(__file__).parents[2]
TABLE = re.compile(r"^\| (nobody|root) \|.*$", re.MULTILINE)
PAGE = (ROOT / "docs/permissions.md").read_text().partition("## Tested combinations")[2].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in row.strip("|").split("|")] for row in
        (found[0] for found in TABLE.finditer(PAGE))]  # fmt: skip
pytestmark = pytest.mark.needs("root", "cgroups", "dockerd", "containerd", "runc", "busybox", "openssl")
UUID = "GPU-00000000-0000-4000-8000-000000000000"
GIB = 1 << 30
NOBODY, SOMEBODY, DOCKERS = 65534, 54321, 54322
"""Users and a group that own nothing else here."""
LISTED, MAPS, ENVIRON = (secrets.token_hex(32) for _ in range(3))
SECRET = "hunter2-do-not-tell"

WORKLOAD = """
import ctypes, mmap, os, sys, time
libc = ctypes.CDLL(None)
if sys.argv[1] == "maps":
    assert libc.unshare(0x00020000) == 0 and libc.mount(b"none", b"/", None, 0x44000, None) == 0  # our mounts are ours
    assert libc.mount(b"tmpfs", b"/dev", b"tmpfs", 0, None) == 0
    with open("/dev/nvidia0", "wb+") as file:
        file.truncate(4096)
        kept = mmap.mmap(file.fileno(), 4096)
os.setresgid(USER, USER, USER)
os.setresuid(USER, USER, USER)
assert libc.prctl(4, 1) == 0  # as after exec: the files in /proc are the new user's
print("ready", flush=True)
time.sleep(1000)
""".replace("USER", str(SOMEBODY))


@dataclass
class Node:
    """A host with containers of another user, a Docker and a kubelet."""

    engine: Engine
    docker: str
    """A container of it: its id."""
    kubelet: Path
    cri: Path
    scenario: Path


@contextmanager
def workload(container: str, kind: str = "", **environment: str) -> Iterator[int]:
    """A process of another user in a container's cgroup."""
    hierarchy = CGROUPS if (CGROUPS / "cgroup.procs").exists() else CGROUPS / "pids"
    folder = hierarchy / "docker" / container
    ours = not folder.parent.exists()
    folder.mkdir(parents=True)
    argv = [sys.executable, "-c", WORKLOAD, kind, f"--token={SECRET}"]
    try:
        with subprocess.Popen(argv, env=environment | {"TOKEN": SECRET}, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            (folder / "cgroup.procs").write_text(str(process.pid))
            yield process.pid
            process.kill()
    finally:
        folder.rmdir()
        if ours:
            folder.parent.rmdir()


@pytest.fixture(scope="module")
def node(engine: Engine) -> Iterator[Node]:
    """The whole node; every user may enter its folders, and its sockets are open to permitted users only."""
    named = engine.sleeper("named")
    pid = int(engine.cli("inspect", "--format", "{{.State.Pid}}", named))
    engine.folder.chmod(0o711)
    os.chown(engine.socket, 0, DOCKERS)
    engine.socket.chmod(0o660)
    with tempfile.TemporaryDirectory(prefix="rights-") as text, workload(LISTED) as listed:
        folder = Path(text)
        folder.chmod(0o711)
        kubelet = KubeletServer(folder / "kubelet.sock")
        kubelet.give("ml", "train-0", "main", "nvidia.com/gpu", UUID)
        cri = CriServer(folder / "cri.sock")
        cri.add(LISTED, labels=pod_labels("ml", "train-0", "u-1", "main"))
        with kubelet, cri, workload(MAPS, "maps"), workload(ENVIRON, NVIDIA_VISIBLE_DEVICES=UUID):
            for server in (kubelet, cri):
                server.path.chmod(0o600)
            on_gpu = [Process(gpu=0, pid=one, memory=GIB, sm=20) for one in (pid, listed)]
            scenario = Scenario(gpus=[Gpu(index=0, uuid=UUID, memory_used=20 * GIB)], processes=on_gpu)
            path = scenario.write(folder / "scenario")
            path.chmod(0o644)
            yield Node(engine, named, kubelet.path, cri.path, path)


@pytest.fixture(scope="module")
def interpreter() -> Iterator[list[str]]:
    """The program where every user may read it: that of the tests may lie in a home directory."""
    with tempfile.TemporaryDirectory(prefix="program-") as text:
        folder = Path(text)
        shutil.copytree(ROOT / "src" / "gpuledger", folder / "gpuledger", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("yaml", "h2", "hpack", "hyperframe"):
            module = __import__(name)
            place = Path(str(module.__file__))
            if place.name == "__init__.py":
                shutil.copytree(place.parent, folder / name)
            else:
                shutil.copy(place, folder / place.name)
        subprocess.run(["chmod", "-R", "a+rX", text], check=True)
        for python in (sys.executable, "/usr/bin/python3"):
            argv = ["env", f"PYTHONPATH={text}", python, "-B"]
            limited = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
            if subprocess.run([*limited, *argv, "-c", "import gpuledger, yaml"], check=False).returncode == 0:
                yield argv
                return
    pytest.fail("nobody may run a Python here; install python3")


def rights(user: str, capabilities: str, sockets: str) -> list[str]:
    """The command that gives these and no others."""
    uid = 0 if user == "root" else NOBODY
    groups = f"--groups={DOCKERS}" if "group" in sockets else "--clear-groups"
    kept = "".join(f",+{name.lower()}" for name in re.findall(r"[A-Z_]{4,}", capabilities))
    sets = [f"--{name}=-all{kept}" for name in ("inh-caps", "ambient-caps", "bounding-set")]
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", groups, *sets, "--no-new-privs"]


def line(name: str, container: str, value: str = "1", more: str = "") -> str:
    """A pattern for a metric of a container."""
    return rf'^{name}\{{.*container_id="{container}".*{more}.*\}} {value}$'


@pytest.mark.parametrize("row", ROWS, ids=lambda row: ", ".join(row[:3]))
def test_rights(node: Node, interpreter: list[str], row: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly what the row says is seen, and the numbers that need no rights are always there."""
    user, capabilities, sockets, *expected = row
    monkeypatch.setattr(running, "COMMAND", [*rights(user, capabilities, sockets), *interpreter, "-m", "gpuledger"])
    environment = "kubernetes" if "kubelet" in sockets else "none"
    flags = [f"--environment={environment}", "--tick.interval=200ms"]
    flags.append(f"--cri.socket={node.cri if 'CRI' in sockets else ''}")
    if "Docker" in sockets:
        flags.append(f"--docker.host=unix://{node.engine.socket}")
    if "kubelet" in sockets:
        flags.append(f"--pod-resources-socket={node.kubelet}")
    patterns = [
        line("container_gpu_memory_bytes", LISTED, str(GIB)),
        line("container_gpu_memory_bytes", node.docker, str(GIB)).replace(".*", '.*container="named",', 1),
        line("container_gpu_memory_bytes", LISTED, more='namespace="ml",pod="train-0"', value=str(GIB)),
        r'^gpu_pod_allocation_info\{.*namespace="ml",pod="train-0"',
        line("container_gpu_detected", MAPS, more='evidence="maps"'),
        line("container_gpu_detected", ENVIRON, more='evidence="environment"'),
    ]
    with serving("serve", *flags, env=surroundings(node.scenario)) as server:
        for pattern in (pattern for pattern, told in zip(patterns, expected, strict=True) if told == "yes"):
            server.metrics(pattern)
        body = server.metrics(r"^gpuledger_ticks_total (1[5-9]|[2-9]\d)$")  # time for what must not be seen, too
    seen = ["yes" if re.search(pattern, body, re.MULTILINE) else "no" for pattern in patterns]
    assert seen == expected, body


def test_a_pid_namespace_of_its_own(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, with what to do, and the devices are there all the same."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *running.COMMAND]
    monkeypatch.setattr(running, "COMMAND", command)
    with serving("serve", "--environment=none", env=surroundings(node.scenario)) as server:
        body = server.metrics("^gpuledger_host_pid_namespace 0$")
        assert "hostPID: true" in server.log.read_text()
    assert f'gpu_memory_used_bytes{{gpu="0",uuid="{UUID}"}} {20 * GIB}' in body


def test_secrets_of_others_are_never_told(node: Node) -> None:
    """Command lines and environments hold them; no page and no log line does, with all rights there are."""
    flags = ["--log.level=debug", "--environment=none", f"--docker.host=unix://{node.engine.socket}"]
    with serving("serve", *flags, "--tick.interval=200ms", env=surroundings(node.scenario)) as server:
        server.metrics(line("container_gpu_detected", MAPS, more='evidence="maps"'))
        pages = ("/", "/metrics", "/dcgm/metrics", "/gpu/metrics", "/api/v1/fingerprints", "/metrics?dialect=process")
        told = [server.get(page) for page in pages] + [server.log.read_text()]

    assert not [text for text in told if SECRET in text]
