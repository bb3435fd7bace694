"""Checks with a time limit."""

from __future__ import annotations

import threading

import pytest

from gpuledger.integrations.exposition import ScrapedFamily
from gpuledger.integrations.scrape import Answer
from gpuledger.tools.doctor.finding import Finding, ok
from gpuledger.tools.doctor.preflight import Bounded, findings, upstream


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
