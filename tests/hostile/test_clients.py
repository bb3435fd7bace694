"""Clients that try to lock out probes, scrapers and users."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import bcrypt
import pytest

from tests import fakedriver
from tests.cli.running import Running, serving, surroundings
from tests.hostile.clients import PROBE_S, SCRAPE_S, busy_exporter, port, status
from tests.hostile.slow import slow_readers
from tests.web.logins import basic


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Running]:
    """An exporter with a large page."""
    with busy_exporter(tmp_path) as exporter:
        yield exporter


@pytest.mark.parametrize(
    ("sources", "count"), [(("127.0.0.1",), 200), (("127.0.0.2",), 400), (("127.0.0.2", "127.0.0.3"), 200)]
)
def test_slow_readers(busy: Running, sources: tuple[str, ...], count: int) -> None:
    """Hundreds of clients do not read their responses and reconnect when evicted: all probes and scrapes succeed."""
    with ExitStack() as stack:
        for source in sources:
            stack.enter_context(slow_readers(port(busy), source, count))
        for _ in range(8):
            assert [status(busy, "/healthz", PROBE_S) for _ in range(3)] == [200] * 3
            assert status(busy, "/metrics", SCRAPE_S) == 200


def guess(exporter: Running, source: str, stop: threading.Event) -> None:
    """Try one password after the other."""
    for number in itertools.count():
        if stop.is_set():
            return
        password = f"{source} {threading.get_ident()} {number}"
        status(exporter, "/metrics", 10, source, Authorization=basic("user0", password))


def test_password_guessing(tmp_path: Path) -> None:
    """Two addresses guess passwords in 16 threads: each first login from another address succeeds."""
    users = {f"user{number}": bcrypt.hashpw(b"wonder", bcrypt.gensalt(10)).decode() for number in range(8)}
    (tmp_path / "web.yml").write_text(json.dumps({"basic_auth_users": users}))
    scenario = fakedriver.h200_node(gpus=1, processes=0).write(tmp_path / "scenario")
    stop = threading.Event()
    with serving("serve", f"--web.config.file={tmp_path}/web.yml", env=surroundings(scenario)) as exporter:
        guesses = [
            threading.Thread(target=guess, args=(exporter, source, stop))
            for source in ("127.0.0.2", "127.0.0.3")
            for _ in range(8)
        ]
        for thread in guesses:
            thread.start()
        try:
            until_busy(exporter)
            right = [basic(user, "wonder") for user in users]
            logins = [status(exporter, "/healthz", SCRAPE_S, Authorization=header) for header in right * 2]
        finally:
            stop.set()
            for thread in guesses:
                thread.join()

    assert logins == [200] * 16


def until_busy(exporter: Running) -> None:
    """Return when a guess is refused because of other guesses."""
    deadline = time.monotonic() + 20
    while status(exporter, "/healthz", 10, "127.0.0.2", Authorization=basic("user0", str(time.monotonic()))) != 503:
        assert time.monotonic() < deadline


BROWSER = {"User-Agent": "Mozilla/5.0", "Accept-Encoding": "gzip, deflate", "Accept-Language": "en-US,en;q=0.5"}
HTTPS_BROWSER = BROWSER | {"Sec-Fetch-Site": "same-origin"}
"""Browsers send Sec-Fetch headers only to https and to localhost, and no script can add them."""
PROMETHEUS = {"User-Agent": "Prometheus/3.0.0", "Accept-Encoding": "gzip"}


def test_dns_rebinding(tmp_path: Path) -> None:
    """A site points its own name to the exporter and lets a browser read it: it gets no page, and others get all."""
    scenario = fakedriver.h200_node(gpus=1, processes=0).write(tmp_path / "scenario")
    flags = ("--web.allowed-hosts=gpus.example.com", "--web.allowed-hosts=example.org")
    with serving("serve", *flags, env=surroundings(scenario)) as exporter:
        exporter.metrics("^gpuledger_up 1")
        pages = ("/", "/metrics", "/dcgm/metrics", "/api/v1/snapshot", "/api/v1/history", "/api/v1/fingerprints")
        rebound = {
            status(exporter, path, 10, **BROWSER | extra, Host=host)
            for path in pages
            for extra in ({}, {"X-Forwarded-For": "10.0.0.1"}, {"Accept-Language": ""}, {"User-Agent": "Prometheus/3"})
            for host in ("evil.example", "evil.example:9400", "localhost.evil.example", "10.0.0.1.evil.example.")
        }
        names = (
            "127.0.0.1:9400",
            "10.1.2.3",
            "[::1]:9400",
            "localhost:9400",
            "gpuledger",
            "gpu-node-1:9400",
            os.uname().nodename,
            "gpuledger.monitoring.svc:9400",
            "gpuledger.monitoring.svc.cluster.local",
            "ip-10-0-0-1.ec2.internal",
            "gpus.example.com",
            "node1.example.org:9400",
            "Localhost.",
        )
        named = {name: status(exporter, "/api/v1/snapshot", 10, **BROWSER, Host=name) for name in names}
        behind_https = status(exporter, "/api/v1/snapshot", 10, **HTTPS_BROWSER, Host="gpus.anywhere.example")
        scraped = status(exporter, "/metrics", 10, **PROMETHEUS, Host="gpu-node-1.anywhere.example:9400")

    assert rebound == {403}
    assert named == dict.fromkeys(names, 200)
    assert behind_https == 200
    assert scraped == 200
