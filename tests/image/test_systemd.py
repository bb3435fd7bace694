"""deploy/systemd, installed as in docs/host.md and started by a real systemd on a clean Debian."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakedriver import Gpu, Process, Scenario, build
from tests.image.conftest import BASE
from tests.image.hosts import Host, booted
from tests.real.dockers import Engine

STEPS = f"""
FROM {BASE}
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends systemd python3-venv >/dev/null
COPY . /release
RUN python3 -m venv /opt/gpuledger \\
 && /opt/gpuledger/bin/pip install -q --no-index --find-links /release/wheels /release/*.whl \\
 && ln -s /opt/gpuledger/bin/gpuledger /usr/local/bin/gpuledger \\
 && cp /release/gpuledger.service /release/gpuledger.socket /etc/systemd/system/ \\
 && cp /release/default /etc/default/gpuledger && cp -r /release/driver /usr/local/lib/driver \\
 && systemctl enable gpuledger.service gpuledger.socket
"""
SYS_PTRACE = 1 << 19


@pytest.fixture(scope="module")
def host(clean_debian: Engine, sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Debian with the wheel, the units and a fake driver with pid 1 on one GPU."""
    release = tmp_path_factory.mktemp("release")
    environment = {"PATH": os.environ["PATH"], "SOURCE_COMMIT": "c0ffee"}
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(release)], cwd=sources,
                   env=environment, check=True, capture_output=True)  # fmt: skip
    shutil.copytree(sources / "deploy/wheels", release / "wheels")
    for unit in (sources / "deploy/systemd").iterdir():
        shutil.copy(unit, release)
    shutil.copytree(build(), release / "driver")
    scenario = Scenario(gpus=[Gpu(index=0, watts=100)], processes=[Process(gpu=0, pid=1, memory=1 << 30)])
    scenario.write(release / "driver" / "scenario")
    at = "/usr/local/lib/driver"
    (release / "default").write_text(f"LD_LIBRARY_PATH={at}\nFAKE_NVML_SCENARIO={at}/scenario\n")
    with booted(clean_debian, release, STEPS) as host:
        yield host


def test_the_unit_starts_and_reads_the_driver(host: Host) -> None:
    """The sandbox of the unit permits the driver library, /proc and the journal."""
    body = host.shows(r"^gpuledger_up 1$")

    assert re.search(r'^gpu_process_memory_used_bytes\{[^}]*pid="1"', body, re.MULTILINE)
    assert '\ngpuledger_procfs_readable{file="maps"} 1\n' in body
    assert host.run("systemctl", "is-active", "gpuledger.service", "gpuledger.socket").split() == ["active", "active"]


def test_the_unit_is_hardened(host: Host) -> None:
    """Not root, one capability, no new privileges, a system call filter, and only the journal is writable."""
    host.shows(r"^gpuledger_up 1$")
    pid = host.run("systemctl", "show", "--value", "--property", "MainPID", "gpuledger")
    status = dict(re.findall(r"^(\w+):\t(.*)$", host.run("cat", f"/proc/{pid}/status"), re.MULTILINE))
    mounts = host.run("cat", f"/proc/{pid}/mounts")

    assert int(status["Uid"].split()[0]) > 60_000  # range of dynamic users
    assert {name: int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == dict.fromkeys(
        ("CapEff", "CapPrm", "CapBnd", "CapAmb"), SYS_PTRACE
    )
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert re.search(r" / \w+ ro[, ]", mounts)
    assert host.run("sh", "-c", "ls /run/gpuledger/").split() == ["journal", "journal.lock"]


def test_a_restart_keeps_totals_and_port(host: Host) -> None:
    """The journal survives a restart, and systemd keeps the port open: a scrape waits for the new process."""
    body = host.shows(r"^gpuledger_up 1$")

    host.run("systemctl", "stop", "gpuledger.service")
    stopped = host.run("systemctl", "show", "--value", "--property", "MainPID", "gpuledger")
    answered = host.ask("/healthz")
    after = host.shows(r"^gpuledger_up 1$")

    assert (stopped, answered) == ("0", "ok")
    energy = re.compile(r"^gpu_energy_joules_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)
    before_j, after_j = (float(energy.findall(text)[0]) for text in (body, after))
    assert after_j >= before_j > 0
