"""A container that runs systemd."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.image.conftest import docker
from tests.real.dockers import Engine
from tests.waiting import wait_until

BOOT = "CMD mount -o remount,rw /sys/fs/cgroup; mount -o remount,rw /sys/fs/cgroup/systemd; exec /lib/systemd/systemd\n"
URL = "http://localhost:9400"


class Host:
    """A container with systemd."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name

    def run(self, *words: str) -> str:
        """Output of a command in the container; empty if it fails."""
        try:
            return docker(self._engine, "exec", self._name, *words)
        except AssertionError:
            return ""

    def ask(self, path: str) -> str:
        """One HTTP request through systemd's socket."""
        return self.run(
            "python3", "-c", f"from urllib.request import urlopen as u; print(u('{URL}{path}').read().decode())"
        )

    def metrics(self) -> str:
        """One scrape."""
        return self.ask("/metrics")

    def shows(self, line: str) -> str:
        """Wait for a line of the metrics."""
        wait_until(lambda: re.search(line, self.metrics(), re.MULTILINE) is not None, 60)
        return self.metrics()


@contextmanager
def booted(engine: Engine, folder: Path, steps: str) -> Iterator[Host]:
    """A container of an image with these steps, which runs systemd."""
    (folder / "Dockerfile").write_text(steps + BOOT)
    docker(engine, "build", "--network", "host", "--tag", "gpuledger:systemd", str(folder))
    # Without --privileged, which needs all capabilities; a virtual machine may lack one.
    name = docker(engine, "run", "--detach", "--network", "none", "--cgroupns", "private", "--tmpfs", "/run",
                  "--cap-add", "SYS_ADMIN", "--cap-add", "SYS_PTRACE", "--security-opt", "seccomp=unconfined",
                  "--security-opt", "apparmor=unconfined", "--security-opt", "systempaths=unconfined",
                  "--env", "container=docker", "gpuledger:systemd")  # fmt: skip
    try:
        host = Host(engine, name)
        wait_until(lambda: host.run("systemctl", "is-active", "multi-user.target") == "active", 60)
        yield host
    finally:
        print(Host(engine, name).run("journalctl", "--no-pager", "-n", "40"))
        docker(engine, "rm", "--force", name)
