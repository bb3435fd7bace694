"""Daemons of many users of one host, which together must not take more than one of root may."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.hostile.tenants import exporter
from tests.owners.providers.docker_server import FakeDocker, http

pytestmark = pytest.mark.needs("root")

USERS = range(54330, 54338)
MOST_MB = 128.0
"""Half of the limit in the chart."""
SECONDS = 15
INTERVAL_S = 0.2


@contextmanager
def daemon(uid: int, containers: int) -> Iterator[str]:
    """A daemon of a user that lists so many containers."""
    with tempfile.TemporaryDirectory(prefix="daemon-") as text:
        os.chown(text, uid, uid)
        listed = [{"Id": secrets.token_hex(32), "Names": [f"/c{n}"], "Image": "i", "Labels": {"a": "b" * 1500}}
                  for n in range(containers)]  # fmt: skip
        answers = {"/version": http({"ApiVersion": "1.45"}), "/containers/json": http(listed), "/json": http({})}
        server = FakeDocker(Path(text), answers)
        try:
            yield f"unix://{server.path}"
        finally:
            server.close()


def peak_mb(pid: int) -> float:
    """The largest resident memory of a process so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def test_daemons_of_many_users() -> None:
    """Eight users start daemons that list 9,000 containers each: memory stays within 128 MB, and ticks go on."""
    with ExitStack() as stack:
        urls = [stack.enter_context(daemon(uid, 9000)) for uid in USERS]
        running = stack.enter_context(exporter(*(f"--docker.host={url}" for url in urls)))
        running.metrics('^gpuledger_provider_failures_total{provider="docker-8"} [1-9]', within_s=30)
        time.sleep(SECONDS)
        body = running.get("/metrics")
        used_mb = peak_mb(running.process.pid)

    ticks = float(body.partition("\ngpuledger_ticks_total ")[2].split()[0])
    assert used_mb < MOST_MB
    assert ticks > 0.9 * SECONDS / INTERVAL_S


def test_a_daemon_of_one_user() -> None:
    """A user has 500 containers in an own daemon: all are read."""
    with daemon(USERS[0], 500) as url, exporter(f"--docker.host={url}") as running:
        running.metrics('^gpuledger_provider_up{provider="docker"} 1', within_s=30)
