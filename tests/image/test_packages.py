"""The .deb and the .rpm, installed on a clean Debian with systemd."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuledger import __version__
from tests.fakedriver import Gpu, Scenario, build
from tests.image.conftest import BASE
from tests.image.hosts import Host, booted
from tests.real.dockers import Engine
from tools import packages

STEPS = f"""
FROM {BASE}
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends man-db rpm systemd >/dev/null
COPY . /release
RUN cp /release/default /etc/default/gpuledger && cp -r /release/driver /usr/local/lib/driver \\
 && apt-get install -y -qq --no-install-recommends /release/*.deb >/dev/null
"""
AT = "/usr/local/lib/driver"


@pytest.fixture(scope="module")
def host(clean_debian: Engine, sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Debian with the .deb and a fake driver; the .rpm lies in /release."""
    release = tmp_path_factory.mktemp("release")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(release)]
    subprocess.run(argv, cwd=sources, check=True, capture_output=True)
    (wheel,) = release.glob("*.whl")
    packages.deb(wheel, release)
    packages.rpm(wheel, release)
    wheel.unlink()
    shutil.copytree(build(), release / "driver")
    Scenario(gpus=[Gpu(index=0, watts=100)]).write(release / "driver/scenario")
    (release / "default").write_text(f"LD_LIBRARY_PATH={AT}\nFAKE_NVML_SCENARIO={AT}/scenario\n")
    with booted(clean_debian, release, STEPS) as host:
        yield host


def test_the_deb_serves(host: Host) -> None:
    """It is not started by itself; once enabled, it serves through its unit, and `man` and completion find it."""
    assert host.run("systemctl", "is-active", "gpuledger.service", "gpuledger.socket") == ""
    host.run("systemctl", "enable", "--now", "gpuledger.socket", "gpuledger.service")

    host.shows(r"^gpuledger_up 1$")

    assert host.run("gpuledger", "--version").startswith(f"gpuledger {__version__}")
    assert host.run("systemctl", "is-enabled", "gpuledger.service", "gpuledger.socket").split() == ["enabled"] * 2
    assert host.run("dpkg", "--verify", "gpuledger") == ""
    assert host.run("systemctl", "show", "--property", "LoadState", "gpuledger-bill.timer") == "LoadState=loaded"
    assert "/usr/bin/gpuledger" in host.run("systemctl", "cat", "gpuledger-bill.service")
    assert (
        host.run("sh", "-c", "man -w gpuledger; ls /usr/share/bash-completion/completions/gpuledger").count("\n") == 1
    )
    assert host.run("sh", "-c", "ls /usr/share/gpuledger/gpuledger/__pycache__/loop.*.pyc").endswith(".pyc")


def test_the_rpm_replaces_it(host: Host) -> None:
    """Purged, the .deb leaves nothing behind; then the .rpm works, is complete, and leaves nothing behind either."""
    left = "ls -d /usr/share/gpuledger /usr/bin/gpuledger /usr/lib/systemd/system/gpuledger*; true"
    host.run("apt-get", "purge", "-y", "gpuledger")
    assert host.run("sh", "-c", left) == ""

    host.run("sh", "-c", "rpm --install --nodeps /release/*.rpm")  # Debian's Python is in no RPM
    assert host.run("gpuledger", "--version").startswith(f"gpuledger {__version__}")
    assert host.run("rpm", "--verify", "--nodeps", "gpuledger") == ""
    host.run("rpm", "--erase", "gpuledger")
    assert host.run("sh", "-c", left) == ""
