"""Programs that the benchmarks measure from outside: `python -m bench.child WHAT ...`."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable

from bench.bigtick import Collector, count_series, node_of
from bench.processes import memory_mb

from gpuledger.model import Tick
from gpuledger.web.negotiate import Format

FORMATS = {"text": Format.TEXT, "OpenMetrics": Format.OPENMETRICS}


def render(renderer: str, fmt: str, series: int) -> None:
    """Print CPU time and memory of rendering one tick as one line of JSON."""
    tick = node_of(series).tick()
    gc.collect()
    before_mb = memory_mb(os.getpid())
    if renderer == "gpuledger":
        first, again, size, count = _ours(tick, FORMATS[fmt])
    else:
        first, again, size, count = _client(tick, fmt)
    peak_mb = memory_mb(os.getpid(), "VmHWM")
    print(json.dumps({
        "series": count, "bytes": size, "first_us": first / count * 1e6, "again_us": again / count * 1e6,
        "before_mb": before_mb, "peak_mb": peak_mb,
    }))  # fmt: skip


def _ours(tick: Tick, fmt: Format) -> tuple[float, float, int, int]:
    """Render one metric family at a time, like the server."""
    from gpuledger.web.text import Renderer

    sizes = [0, 0]
    for chunk in Renderer().chunks(tick, fmt):
        sizes[0] += len(chunk)
        sizes[1] += count_series(chunk)
    first = float("inf")
    for _ in range(3):  # one at a time, because each caches its labels
        cached = Renderer()
        first = min(first, _timed(lambda: sum(map(len, cached.chunks(tick, fmt)))))  # noqa: B023 - called at once
    again = min(_timed(lambda: sum(map(len, cached.chunks(tick, fmt)))) for _ in range(7))
    return first, again, sizes[0], sizes[1]


def _client(tick: Tick, fmt: str) -> tuple[float, float, int, int]:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

    registry = CollectorRegistry()
    registry.register(Collector(tick))  # type: ignore[arg-type]
    write = generate_latest if fmt == "text" else generate_openmetrics
    first = _timed(lambda: len(write(registry)))
    again = min(_timed(lambda: len(write(registry))) for _ in range(2))
    body = write(registry)
    return first, again, len(body), count_series(body)


def _timed(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def same(series: int) -> None:
    """Print whether both renderers write the same series with the same values."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    from gpuledger.web.text import Renderer

    tick = node_of(series).tick()
    registry = CollectorRegistry()
    registry.register(Collector(tick))  # type: ignore[arg-type]
    texts = (b"".join(Renderer().chunks(tick, Format.TEXT)), generate_latest(registry))
    ours, theirs = (
        {
            (s.name, *sorted(s.labels.items())): s.value
            for m in text_string_to_metric_families(t.decode())
            for s in m.samples
        }
        for t in texts
    )
    print(json.dumps({"same": ours == theirs, "series": len(ours)}))


def serve(series: int) -> None:
    """Serve a large tick. Each line on standard input creates a new tick while the old one is still in memory."""
    from gpuledger.cli import serve as _  # noqa: F401 - the memory of everything that `gpuledger serve` loads
    from gpuledger.driver import source as _source  # noqa: F401
    from gpuledger.web.app import App
    from gpuledger.web.server import Server

    node = node_of(series)
    held = [node.tick()]
    server = Server(["127.0.0.1:0"], App(lambda: held[0], lambda: 0.0, interval_s=1.0))
    server.start()
    gc.freeze()
    print(server.addresses[0][1], flush=True)
    for _line in sys.stdin:
        held[0] = node.tick()
        print("new", flush=True)
    server.stop()


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "render":
        render(words[0], words[1], int(words[2]))
    elif what == "same":
        same(int(words[0]))
    else:
        serve(int(words[0]))
