"""Servers that the exporter reads: secrets in their addresses, and answers that would fill its memory."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests import fakedriver
from tests.cli.running import Running, gpuledger, serving, surroundings

SECRET = "hunter2"


def read(exporter: Running, path: str) -> str:
    """The body of a page, whatever its status is."""
    try:
        with urllib.request.urlopen(exporter.url + path, timeout=10) as response:
            return str(response.read().decode())
    except HTTPError as error:
        with error:
            return error.read().decode()


def test_tokens_in_addresses(tmp_path: Path) -> None:
    """A client reads all pages while the dcgm-exporter cannot be reached; none contains the token in its URL."""
    scenario = fakedriver.h200_node(gpus=1, processes=0).write(tmp_path / "scenario")
    url = f"--dcgm-exporter.url=http://127.0.0.1:1/metrics?token={SECRET}&{SECRET}"
    with serving("serve", url, "--log.level=debug", env=surroundings(scenario)) as exporter:
        exporter.metrics("^gpuledger_upstream_failures_total.* [1-9]")
        pages = [read(exporter, path) for path in ("/gpu/metrics", "/api/v1/snapshot", "/api/v1/history", "/metrics")]
        _, _, log = exporter.stop()

    assert "http://127.0.0.1:1/metrics?token=***&***: Connection refused" in pages[0]
    assert "token=***" in log
    assert SECRET not in "".join(pages) + log


@pytest.mark.parametrize(
    "flag",
    [
        f"--docker.host=tcp://user:{SECRET}@127.0.0.1:2375",
        f"--docker.host=tcp://{SECRET}@127.0.0.1:2375",
        f"--docker.host=tcp://127.0.0.1:2375?token={SECRET}",
        f"--dcgm-exporter.url=http://user:{SECRET}@127.0.0.1:9400/metrics",
        f"--dcgm-exporter.url=http://user:/{SECRET}@127.0.0.1:9400/metrics",
        f"--dcgm-exporter.url=htp://127.0.0.1:9400/metrics?token={SECRET}",
    ],
)
def test_passwords_in_addresses(flag: str) -> None:
    """Credentials that cannot be used are refused at the start, by a message that does not contain them."""
    done = gpuledger("serve", flag, "--web.listen-address=127.0.0.1:0")

    assert done.returncode == 2
    assert "***" in done.stderr
    assert SECRET not in done.stderr


def test_passwords_in_docker_host(tmp_path: Path) -> None:
    """Credentials in DOCKER_HOST appear neither in the log nor on a page."""
    scenario = fakedriver.h200_node(gpus=1, processes=0).write(tmp_path / "scenario")
    env = surroundings(scenario, DOCKER_HOST=f"tcp://user:{SECRET}@127.0.0.1:1")
    with serving("serve", "--environment=docker", "--log.level=debug", env=env) as exporter:
        exporter.metrics("^gpuledger_up 1")
        pages = [read(exporter, path) for path in ("/api/v1/snapshot", "/metrics")]
        _, _, log = exporter.stop()

    assert SECRET not in "".join(pages) + log
