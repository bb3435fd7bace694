"""What Prometheus scrapes from the demo."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from gpuledger.books import Books
from gpuledger.cli.demo import RECORDING, RETENTION_S
from gpuledger.loop import Loop
from gpuledger.recording.replay import Replay
from gpuledger.web.negotiate import Format
from gpuledger.web.text import Renderer
from tests.real.history import History

SCRAPE_S = 15
TARGET = {"instance": "demo:9400", "job": "gpuledger"}


def demo_history(began: int, seconds: int) -> History:
    """So many seconds of the demo from this Unix time on, on a clock that only this function moves."""
    now_s = 0.0
    replay = Replay(RECORDING, looped=True, monotonic=lambda: now_s, now_ns=lambda: began * 10**9)
    books, renderer = Books(keep_ns=int(RETENTION_S * 1e9)), Renderer()
    loop = Loop(replay, None, interval_s=1.0, books=books, monotonic=lambda: now_s)
    series: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[float, float]]] = {}
    for second in range(seconds + 1):
        now_s = float(second)
        tick = loop.once()
        if second % SCRAPE_S:
            continue
        text = b"".join(renderer.chunks(tick, Format.TEXT)).decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = sample.name, tuple(sample.labels.items())
                series.setdefault(key, []).append((began + now_s, sample.value))
    world = History()
    for (name, labels), samples in series.items():
        world.add(name, {**TARGET, **dict(labels)}, samples)
    return world
