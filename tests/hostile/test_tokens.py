"""Servers of language models whose operators are tenants: their counters, their answers and their annotations."""

from __future__ import annotations

import gc
import gzip
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import BinaryIO

import pytest

from gpuledger.errors import UpstreamError
from gpuledger.integrations.scrape import Page
from gpuledger.integrations.tokens.collector import LIMITS, TokenCollector
from gpuledger.net.address import parse_place
from tests.integrations.dcgmexporter.server import page, upstream
from tests.integrations.tokens.servednode import OWNERS, tokens
from tests.integrations.tokens.servednode import Node as SmallNode
from tests.real.history import History, remembering
from tests.real.prometheus import Prometheus
from tests.real.scriptednode import BEGAN, Node, report, scrapes

CHANGES = 500
"""How often a pod changes its annotation."""
MOST_CPU_S = 0.1
"""Of one read of a server; reads are 10 s apart."""
Value = Callable[[float], float]
COUNTERS: dict[str, Value] = {
    "NaN": lambda _: float("nan"),
    "infinite": lambda _: float("inf"),
    "infinite later": lambda m: float("inf") if m > 30 else 0.0,
    "negative": lambda m: -1e9 * (m + 30),
    "larger than any counter": lambda m: 1e300 * (m + 30),
}


def history(value: Value) -> History:
    """A team and an attacker on one GPU each; both say that they serve llama."""
    found = History()
    for name, team, tokens_of in (("a", "victim", lambda m: 1000 * (m + 30)), ("b", "evil", value)):
        node = Node(found, name)
        node.container(team, lambda m: 6000 * (m + 30))
        node.books(1e6, lambda _: 0, lambda m: 1e6 + 6000 * (m + 30))
        labels = {"namespace": team, "pod": f"{team}-0", "model_name": "llama", "instance": team, "job": "servers"}
        for counter in ("vllm:prompt_tokens_total", "vllm:generation_tokens_total"):
            found.add(counter, labels, [(BEGAN + 60 * m, tokens_of(m)) for m in scrapes((-30, 90))])
    return found


@pytest.fixture(params=COUNTERS)
def server(request: pytest.FixtureRequest) -> Iterator[Prometheus]:
    """A Prometheus that scraped both."""
    with remembering(history(COUNTERS[request.param])) as running:
        yield running


@pytest.mark.needs("prometheus")
def test_counters_that_are_no_counts(server: Prometheus) -> None:
    """A server exposes NaN, infinite, negative or huge token counts: the reports on other owners are unchanged."""
    found = report(server, "--by=model", "--price=0.3")
    rows = {(row["namespace"], row["model"]): row for row in found["rows"] if row["kind"] == "group"}

    victim, evil = rows["victim", "llama"], rows["evil", "llama"]
    assert victim["energy_kwh"] == pytest.approx(0.1)
    assert victim["output_tokens"] == pytest.approx(60_000)
    assert victim["joules_per_output_token"] == pytest.approx(6)
    assert evil["energy_kwh"] == pytest.approx(0.1)
    assert not evil["output_tokens"]
    assert all(value >= 0 for row in rows.values() for value in row.values() if isinstance(value, float))


def test_compressed_lines_without_content() -> None:
    """A server answers with 4 kB of gzip that unpack to 4 MiB of empty lines: one read costs at most 0.1 s of CPU."""
    body = gzip.compress(b"\n" * (LIMITS.size - 1))
    with upstream(page(body, "200 OK", "Content-Encoding: gzip")) as evil:
        source = Page(parse_place(evil.url), 10.0, LIMITS)
        began_s = time.thread_time()
        with pytest.raises(UpstreamError, match="lines"):
            source.read()
        used_s = time.thread_time() - began_s

    assert used_s < MOST_CPU_S


def test_tiny_chunks() -> None:
    """A server answers with 1-byte chunks without an end: one read costs at most 0.1 s of CPU."""

    def endless(out: BinaryIO, over: threading.Event) -> None:
        out.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not over.is_set():
            out.write(b"1\r\n#\r\n" + b"1\r\n \r\n" * 5000 + b"1\r\n\n\r\n")

    with upstream(endless) as evil:
        source = Page(parse_place(evil.url), 2.0, LIMITS)
        began_s = time.thread_time()
        with pytest.raises(UpstreamError, match="small chunks"):
            source.read()
        used_s = time.thread_time() - began_s

    assert used_s < MOST_CPU_S


def test_annotations_that_change() -> None:
    """A pod changes the path in its annotation again and again: no memory is kept for paths that are gone."""
    node = SmallNode()
    collector = TokenCollector(["annotations"], 1, now_ns=lambda: node.now_ns, in_threads=False)
    with upstream(page(tokens(1, 1))) as server:

        def change(number: int) -> None:
            node.owners[1] = replace(OWNERS[1], metrics_url=f"{server.url}?{number}")
            tick = node.tick(1000, 1000)
            collector.attach(tick)
            collector.poll()
            collector.attach(tick)
            server.asked.clear()

        for number in range(20):
            change(number)
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(20, 20 + CHANGES):
            change(number)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert after - before < 200 * CHANGES
