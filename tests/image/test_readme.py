"""The commands of the README for Docker hosts, `docker build` and `docker run`, against a real daemon.

Different from a user's host: tests pull no image, so that the base image is a bare Debian under its tag; the daemon has
no bridge, so that the build uses the host's network and the container publishes no port; and a fake driver is mounted,
as `--gpus all` mounts that of NVIDIA.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import checkout, fakedriver
from tests.fakedriver import Gpu, Process, Scenario
from tests.image.conftest import BASE, docker
from tests.real.dockers import Engine
from tests.waiting import wait_until

README = (checkout.ROOT / "README.md").read_text()
COMMANDS = re.search(r"^(docker build .*)\n(docker run (?:.*\\\n)*.*)$", README, re.MULTILINE)
AUTHORITIES = Path("/usr/local/share/ca-certificates")
"""Certificates that the host trusts in addition to Debian's, such as that of a proxy that inspects TLS."""
METRICS = "from urllib.request import urlopen; print(urlopen('http://localhost:9400/metrics').read().decode())"


@pytest.fixture(scope="module")
def engine(clean_debian: Engine, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A daemon with the image that the Dockerfile starts from."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "certificates").mkdir()
    for path in AUTHORITIES.glob("*.crt"):
        shutil.copy(path, folder / "certificates")
    (folder / "Dockerfile").write_text(f"FROM {BASE}\nCOPY certificates {AUTHORITIES}\n")
    base = re.search(r"^ARG BASE=(\S+)$", (checkout.ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert base is not None
    docker(clean_debian, "build", "--tag", base[1], str(folder))
    return clean_debian


def run(engine: Engine, words: list[str], folder: Path) -> str:
    """A command of the README in a folder."""
    environment = os.environ | {"DOCKER_HOST": f"unix://{engine.socket}"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout.strip()


def test_commands_of_the_readme(engine: Engine, tmp_path: Path) -> None:
    """The image is built from a clone, and the exporter names the container of a process on a GPU."""
    assert COMMANDS is not None
    build, start = (shlex.split(command.replace("\\\n", "")) for command in COMMANDS.groups())
    clone = tmp_path / "clone"
    checkout.copy_to(clone)
    assert build == ["docker", "build", "-t", "gpuledger", "."]
    run(engine, [*build[:2], "--network=host", *build[2:]], clone)

    engine.sleeper("trainer")
    pid = int(engine.cli("inspect", "--format={{.State.Pid}}", "trainer"))
    scenario = Scenario(gpus=[Gpu(0)], processes=[Process(gpu=0, pid=pid)]).write(tmp_path / "scenario")
    for option in ("--gpus", "-p"):
        del start[start.index(option) : start.index(option) + 2]
    start = [word.replace("/var/run/docker.sock:", f"{engine.socket}:", 1) for word in start]
    mounts = ("-v", f"{fakedriver.build()}:/driver:ro", "-v", f"{scenario}:/scenario:ro")
    found = ("-e", "LD_LIBRARY_PATH=/driver", "-e", "FAKE_NVML_SCENARIO=/scenario", "--network=none")
    run(engine, [*start[:-1], *mounts, *found, start[-1]], clone)

    def body() -> str:
        try:
            return docker(engine, "exec", "gpuledger", "python3", "-c", METRICS)
        except AssertionError:  # not listening yet
            return ""

    try:
        named = re.compile(rf'^gpu_process_memory_used_bytes{{pid="{pid}",.*container="trainer"', re.MULTILINE)
        wait_until(lambda: named.search(body()) is not None, 60, every_s=0.5)
        shown = body()
    finally:
        docker(engine, "rm", "--force", "gpuledger", "trainer")
    assert "\ngpuledger_host_pid_namespace 1\n" in shown
    assert '\ngpuledger_provider_up{provider="docker"} 1\n' in shown
