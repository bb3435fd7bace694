"""Names that tenants choose: they must not command a terminal, turn text around, or fill the memory."""

from __future__ import annotations

import pwd
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuledger.net.protobuf import Message
from gpuledger.owners.kernel.procfs import MOST_ENDED, Procfs
from tests.cli.running import gpuledger, serving, surroundings
from tests.fakedriver import Gpu, Process, Scenario
from tests.owners.kernel.fakeproc import Proc
from tests.owners.providers.docker_server import FakeDocker, http, listed

C = "4be1" * 16
NAMES = [
    "\x1b[2J\x1b]0;x\x07",
    "\x9b31mred",
    "\u202egnp.exe",
    "a\x0cb\x0b\r",
    "\x7f\x08x",
    "\u2066x\u2069",
    "\u2028",
]
HARMLESS = "\ufffd[2J\ufffd]0;x\ufffd"
FAST = "--tick.interval=100ms"


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """A /proc with a process of each name, in the container and outside."""
    (tmp_path / "proc").mkdir()
    proc = Proc(tmp_path / "proc")
    for pid, name in enumerate(NAMES, 71):
        cgroup = f"system.slice/docker-{C}.scope" if pid % 2 else f"machine.slice/machine-qemu-1-{name}.scope"
        proc.add(pid, name=name.encode(), cgroup=f"0::/{cgroup}\n")
    return proc


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[FakeDocker]:
    """A daemon whose container has a name and an image with escape sequences."""
    container = listed(
        C, f"c{NAMES[0]}{NAMES[2]}", Image="".join(NAMES), Labels={"com.docker.compose.service": NAMES[0]}
    )
    server = FakeDocker(
        tmp_path,
        {"/version": http({"ApiVersion": "1.45"}), "/containers/json": http([container]), "/containers/": http({})},
    )
    yield server
    server.close()


def assert_harmless(text: str) -> None:
    """Every line is printable."""
    assert [line for line in text.split("\n") if not line.isprintable()] == []


def test_names_on_every_page(tmp_path: Path, proc: Proc, docker: FakeDocker) -> None:
    """A tenant names processes, containers and images with escapes and bidi overrides: no page and no log has them."""
    scenario = Scenario([Gpu(0, uuid="GPU-a")], [Process(0, pid, sm=5) for pid in range(71, 71 + len(NAMES))])
    env = surroundings(scenario.write(tmp_path / "scenario"))
    flags = (FAST, f"--path.procfs={proc.root}", f"--docker.host=unix://{docker.path}", "--log.level=debug")
    with serving("serve", *flags, env=env) as server:
        metrics = server.metrics(rf'^gpu_process_info{{.*process_name="{HARMLESS}"'.replace("[", "\\["))
        server.metrics(r'container="c')
        for path in ("/metrics", "/api/v1/snapshot", "/metrics?dialect=dcgm", "/metrics?dialect=process"):
            assert_harmless(server.get(path))
        assert_harmless(server.stop()[2])
    assert metrics.count("\ngpu_process_info{") == len(NAMES)
    for command in (["once", *flags], ["once", "--format=json", *flags], ["top", "--once", *flags[1:3]]):
        assert_harmless(gpuledger(*command, env=env).stdout)


def test_names_from_the_container_runtime() -> None:
    """The CRI or the kubelet reports such names: they are made harmless where they are read."""
    data = NAMES[0].encode()
    message = Message(bytes([10, len(data)]) + data)

    assert (message.text(1), message.texts(1)) == (HARMLESS, [HARMLESS])


def test_user_names(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user in a directory has such a name: it is made harmless, too."""
    monkeypatch.setattr(pwd, "getpwuid", lambda _: type("Entry", (), {"pw_name": NAMES[0]}))

    facts = Procfs(proc.root).look(71, timeout_s=20)

    assert facts is not None
    assert facts.user == HARMLESS


def test_cgroups_are_not_kept(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant starts processes in ever new cgroups: no name is interned, because Python 3.12 never frees it."""
    procfs = Procfs(proc.root)
    interned: list[str] = []

    def intern(text: str) -> str:
        interned.append(text)
        return text

    for pid in range(1000, 1000 + 2 * MOST_ENDED):
        proc.add(pid, cgroup=f"0::/{'x' * 200}/{pid}\n")
        (proc.root / str(pid) / "maps").touch()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "intern", intern)
            assert procfs.facts([pid])[pid].cgroup.endswith(f"/{pid}\n")
            assert (procfs.mapped_gpus(pid), procfs.visible_devices(pid)) == ((), "")
        proc.end(pid)

    assert interned == []
    assert len(procfs._cgroups) <= MOST_ENDED + 1


def test_processes_of_a_container_share_the_text(proc: Proc) -> None:
    """A container has a thousand processes: they share one text."""
    facts = Procfs(proc.root).facts([71, 73])

    assert facts[71].cgroup is facts[73].cgroup
