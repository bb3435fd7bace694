"""What an exporter may see of its host, and whether it says what to do about the rest."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuledger.owners.kernel import access
from gpuledger.owners.kernel.access import DAC_READ_SEARCH, INIT_PID_NAMESPACE, SYS_PTRACE, Access, announce, probe
from tests.cli.running import COMMAND, surroundings
from tests.components import NAMESPACE
from tests.fakedriver import Gpu, Process, Scenario

ALL = Access(host_pid_namespace=True, cgroup=True, maps=True, environ=True)
PROBE = "from gpuledger.owners.kernel.access import probe; from pathlib import Path; print(probe(Path('/proc')))"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc of which everything may be read; what the exporter sees of itself is there too."""
    monkeypatch.setattr(access, "Path", lambda name: tmp_path / name.lstrip("/"))
    root = tmp_path / "proc"
    (root / "self" / "ns").mkdir(parents=True)
    (root / "self" / "ns" / "pid").symlink_to(INIT_PID_NAMESPACE)
    (root / "self" / "status").write_text("Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t000001ffffffffff\n")
    (root / "1").mkdir()
    (root / "1" / "cgroup").write_text("0::/init.scope\n")
    return root


def test_everything(host: Path) -> None:
    """Root in the host's namespace sees all."""
    assert probe(host) == ALL


@pytest.mark.parametrize(
    ("capabilities", "maps", "environ"),
    [
        (0, False, False),
        (SYS_PTRACE, True, False),
        (DAC_READ_SEARCH, False, False),
        (SYS_PTRACE | DAC_READ_SEARCH, True, True),
        (~(SYS_PTRACE | DAC_READ_SEARCH) & (1 << 41) - 1, False, False),
    ],
)
def test_capabilities(host: Path, *, capabilities: int, maps: bool, environ: bool) -> None:
    """The effective ones decide; an environment needs two of them."""
    status = f"CapPrm:\t000001ffffffffff\nCapEff:\t{capabilities:016x}\nCapBnd:\t000001ffffffffff\n"
    (host / "self" / "status").write_text(status)

    found = probe(host)

    assert (found.cgroup, found.maps, found.environ) == (True, maps, environ)
    assert found.readable == (("cgroup", 1), ("maps", int(maps)), ("environ", int(environ)))


@pytest.mark.parametrize("status", [None, "", "CapEff:", "CapEff:\tmany\n", "CapPrm:\t000001ffffffffff\n"])
def test_capabilities_that_cannot_be_read_are_none(host: Path, status: str | None) -> None:
    """Claiming too little costs a hint in the log, claiming too much a number that is wrong."""
    (host / "self" / "status").unlink()
    if status is not None:
        (host / "self" / "status").write_text(status)

    assert probe(host) == Access(host_pid_namespace=True, cgroup=True, maps=False, environ=False)


def test_namespace_of_its_own(host: Path) -> None:
    """Every namespace but the first has another number."""
    (host / "self" / "ns" / "pid").unlink()
    (host / "self" / "ns" / "pid").symlink_to("pid:[4026532178]")

    assert not probe(host).host_pid_namespace


def test_an_unreadable_namespace(host: Path) -> None:
    """A kernel without PID namespaces, or a sandbox that hides them: better a warning too many."""
    (host / "self" / "ns" / "pid").unlink()

    assert not probe(host).host_pid_namespace


def test_cgroups_that_cannot_be_read(host: Path) -> None:
    """No pid 1 where the host's /proc should be."""
    (host / "1" / "cgroup").unlink()

    assert not probe(host).cgroup


def test_root_is_where_the_host_is_mounted(host: Path, tmp_path: Path) -> None:
    """--path.procfs moves the processes that are looked at, never the exporter itself."""
    mounted = tmp_path / "host"
    (mounted / "1").mkdir(parents=True)
    (mounted / "1" / "cgroup").write_text("0::/\n")
    (host / "1" / "cgroup").unlink()

    assert probe(mounted) == ALL


@pytest.mark.parametrize(
    ("seen", "messages"),
    [
        (ALL, []),
        (
            Access(host_pid_namespace=False, cgroup=True, maps=True, environ=True),
            [("WARNING", "its own PID namespace", "--pid=host (Docker, Podman) or hostPID: true (Kubernetes)")],
        ),
        (
            Access(host_pid_namespace=True, cgroup=False, maps=True, environ=True),
            [("WARNING", "cannot read /host/proc/1/cgroup", "mount the host's /proc there")],
        ),
        (
            Access(host_pid_namespace=True, cgroup=True, maps=False, environ=False),
            [("INFO", "memory maps", "SYS_PTRACE"), ("INFO", "environments", "SYS_PTRACE and DAC_READ_SEARCH")],
        ),
        (
            Access(host_pid_namespace=True, cgroup=True, maps=True, environ=False),
            [("INFO", "environments", "SYS_PTRACE and DAC_READ_SEARCH")],
        ),
    ],
)
def test_what_is_said(seen: Access, messages: Sequence[tuple[str, str, str]], caplog: pytest.LogCaptureFixture) -> None:
    """What costs all owners is a warning, what costs a detail is not. Each says what to do; all well says nothing."""
    caplog.set_level(logging.DEBUG, "gpuledger")

    announce(seen, Path("/host/proc"))

    assert len(caplog.records) == len(messages)
    for record, (level, what, remedy) in zip(caplog.records, messages, strict=True):
        assert record.levelname == level
        assert what in record.getMessage()
        assert remedy in record.getMessage()


def _once(tmp_path: Path, *before: str) -> subprocess.CompletedProcess[str]:
    scenario = Scenario([Gpu(0, uuid="GPU-a")], [Process(0, os.getpid())]).write(tmp_path / "scenario")
    command = [*before, *COMMAND, "once", "--environment=none", "--tick.interval=100ms"]
    return subprocess.run(command, env=surroundings(scenario), capture_output=True, text=True, timeout=30, check=False)


def _value(text: str, series: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{series} ")]
    return line.rpartition(" ")[2]


@pytest.mark.needs("pid-namespaces")
def test_nested_namespace_is_said_loudly(tmp_path: Path) -> None:
    """A container without hostPID sees no processes: the log has the fix, and a metric the state."""
    done = _once(tmp_path, *NAMESPACE)

    warnings = [line for line in done.stderr.splitlines() if "level=warn" in line]
    assert done.returncode == 0, done.stderr
    assert len(warnings) == 1
    assert "lists no processes of the host" in warnings[0]
    assert "--pid=host" in warnings[0]
    assert "hostPID: true" in warnings[0]
    assert _value(done.stdout, "gpuledger_host_pid_namespace") == "0"


@pytest.mark.needs("host-pids")
def test_the_hosts_namespace_is_not_warned_about(tmp_path: Path) -> None:
    """On the host itself there is nothing to say."""
    done = _once(tmp_path)

    assert "level=warn" not in done.stderr
    assert _value(done.stdout, "gpuledger_host_pid_namespace") == "1"


@pytest.mark.needs("ptrace", "setpriv")
@pytest.mark.parametrize(
    ("dropped", "told"),
    [
        ("-sys_ptrace", "maps=False, environ=False"),
        ("-dac_read_search", "maps=True, environ=False"),
        ("-sys_ptrace,-dac_read_search", "maps=False, environ=False"),
    ],
)
def test_capabilities_as_the_kernel_tells_them(dropped: str, told: str) -> None:
    """Taken away for real, as a container runtime does."""
    limit = ["setpriv", f"--bounding-set={dropped}"]

    done = subprocess.run([*limit, sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)

    assert told in done.stdout
