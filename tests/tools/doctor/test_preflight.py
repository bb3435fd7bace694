"""Checks with a time limit."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpuledger.integrations.exposition import ScrapedFamily
from gpuledger.integrations.scrape import Answer
from gpuledger.tools.doctor.finding import Finding, ok
from gpuledger.tools.doctor.preflight import Bounded, findings, rules, upstream


def test_the_result_of_a_check() -> None:
    """A check that returns in time gives its findings."""
    assert findings(Bounded("a", lambda: [ok("a", "x")], 5, "wait")) == [ok("a", "x")]


def test_a_check_that_hangs_is_a_finding() -> None:
    """With its fix; the doctor waits no longer than the limit."""
    never = threading.Event()
    try:
        outcome = Bounded("a", never.wait, 0.05, "reboot").outcome()
    finally:
        never.set()

    assert outcome == Finding("a", "problem", "does not return within 0.05 s", "reboot")


def test_a_bug_costs_one_line() -> None:
    """Not the other checks."""

    def broken() -> list[Finding]:
        raise KeyError("x")

    (finding,) = findings(Bounded("a", broken, 5, "wait"))

    assert (finding.level, finding.text) == ("problem", "the check itself failed: KeyError: 'x'")


class Page:
    """A dcgm-exporter with some metrics."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def read(self) -> Answer:
        """What it exposes."""
        return Answer([ScrapedFamily(name.encode()) for name in self._names])


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_PCIE_TX_BYTES"), "under the names of 4.8, which 4.9 will change"),
        (("DCGM_FI_DEV_GPU_UTIL_RATIO",), "under the names of 4.9; `gpuledger translate` lists and rewrites queries"),
        (("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"), "under the names of both 4.8 and 4.9"),
        (("DCGM_FI_PROF_PCIE_TX_BYTES",), "responds with 1 metrics"),
    ],
)
def test_the_version_of_an_upstream(names: tuple[str, ...], says: str) -> None:
    """By its names, because dcgm-exporter has no metric with its version."""
    (finding,) = upstream("http://localhost:9400/metrics", lambda: Page(*names))

    assert says in finding.text


@contextmanager
def a_prometheus(body: bytes) -> Iterator[str]:
    """A server that answers one request with this body: its URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            thread.join()


@pytest.mark.parametrize(
    ("queries", "level", "says"),
    [
        (["avg(DCGM_FI_DEV_GPU_UTIL) > 80", "up"], "warning", "1 of 2 use names that dcgm-exporter 4.9 removes: rule0"),
        (["sum by (DCGM_FI_DRIVER_VERSION) (up)"], "warning", "1 of 1 use names"),
        (["DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_PROF_PCIE_TX_BYTES"], "ok", "none of 2 uses a name"),
    ],
)
def test_rules_of_a_prometheus(queries: list[str], level: str, says: str) -> None:
    """Those that an upgrade of dcgm-exporter would break are named."""
    listed = [{"name": f"rule{number}", "query": query} for number, query in enumerate(queries)]
    with a_prometheus(json.dumps({"data": {"groups": [{"rules": listed}]}}).encode()) as url:
        (finding,) = rules(url)

    assert (finding.level, says in finding.text) == (level, True)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 10_000])
def test_rules_that_cannot_be_read(body: bytes) -> None:
    """One problem, with the URL to check."""
    with a_prometheus(body) as url:
        (finding,) = rules(url)

    assert (finding.level, finding.fix) == ("problem", "check --prometheus.url")
    assert rules("http://127.0.0.1:1")[0].level == rules("nonsense")[0].level == "problem"
