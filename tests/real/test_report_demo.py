"""`gpuledger report` on ten minutes of the demo, whose processes start and exit every minute."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuledger.books.book import Books
from gpuledger.cli.demo import RECORDING, RETENTION_S
from gpuledger.export.negotiate import Format
from gpuledger.export.text import Renderer
from gpuledger.loop import Loop
from gpuledger.report.queries import GROUPINGS
from gpuledger.sources.replay import Replay
from tests.cli.running import gpuledger
from tests.real.history import History, remembering
from tests.real.prometheus import Prometheus

pytestmark = pytest.mark.needs("prometheus")

BEGAN = int(time.time()) // 60 * 60 - 3600
SECONDS, SCRAPE_S = 600, 15
TARGET = {"instance": "demo:9400", "job": "gpuledger"}
MOST_UNATTRIBUTED = 0.05


def history() -> History:
    """What Prometheus scrapes from the demo, on a clock that only the test moves."""
    now_s = 0.0
    replay = Replay(RECORDING, looped=True, monotonic=lambda: now_s, now_ns=lambda: BEGAN * 10**9)
    books, renderer = Books(keep_ns=int(RETENTION_S * 1e9)), Renderer()
    loop = Loop(replay, None, interval_s=1.0, books=books, monotonic=lambda: now_s)
    series: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[float, float]]] = {}
    for second in range(SECONDS + 1):
        now_s = float(second)
        tick = loop.once()
        if second % SCRAPE_S:
            continue
        text = b"".join(renderer.chunks(tick, Format.TEXT)).decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = sample.name, tuple(sample.labels.items())
                series.setdefault(key, []).append((BEGAN + now_s, sample.value))
    world = History()
    for (name, labels), samples in series.items():
        world.add(name, {**TARGET, **dict(labels)}, samples)
    return world


@pytest.fixture(scope="module")
def server() -> Iterator[Prometheus]:
    """A real Prometheus that has scraped the demo from its start on."""
    with remembering(history()) as running:
        yield running


@pytest.mark.parametrize("by", GROUPINGS)
def test_ten_minutes_of_the_demo_add_up(server: Prometheus, by: str) -> None:
    """In every grouping, with the default step: the rows are the total, and almost all energy has an owner."""
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(BEGAN + SECONDS))
    flags = [f"--prometheus.url={server.url}", f"--to={end}", "--since=10m", f"--by={by}", "--gpu-hours=share"]
    done = gpuledger("report", *flags, "--format=json")
    assert (done.returncode, done.stderr) == (0, "")
    bill = json.loads(done.stdout)

    for key in ("energy_kwh", "apportioned_gpu_hours"):
        assert sum(row[key] or 0 for row in bill["rows"]) == pytest.approx(bill["total"][key])
    lost = next(row["energy_kwh"] for row in bill["rows"] if row["kind"] == "unattributed")
    assert lost < MOST_UNATTRIBUTED * bill["total"]["energy_kwh"]
    assert bill["total"]["energy_kwh"] > 0
