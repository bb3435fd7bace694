"""`python -m bench.page`: cost of the page: its history without viewers, and a tick with one viewer."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import statistics
import sys
import threading
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

from bench import exporters
from bench.exporters import run_json
from bench.processes import cpu_s, descendants, memory_mb
from bench.table import Budget, table

GPUS, EACH = 8, 32
MINUTES = 10
REQUEST = b"GET /api/v1/events HTTP/1.1\r\nHost: here\r\nAccept: text/event-stream\r\nAccept-Encoding: %b\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of the page, in MB and % of a core."""

    without_mb: float
    with_mb: float
    held_mb: float
    """Memory of the history according to Python; RSS includes memory that earlier ticks freed."""
    closed_pct: float
    open_pct: float
    plain_pct: float
    event_bytes: float
    packed_bytes: float
    browser_ms: dict[int, float]
    """CPU of Chromium's renderer for one tick, all threads, by number of processes; empty without Chromium."""

    @property
    def history_mb(self) -> float:
        return max(self.held_mb, self.with_mb - self.without_mb)

    @property
    def page_pct(self) -> float:
        return self.open_pct - self.closed_pct


def measure(*, quick: bool = False) -> Cost:
    """Measure memory after ten minutes of ticks at full speed, and CPU of the real exporter."""
    times = 1 if quick else 3
    without_mb, with_mb = (
        statistics.median(run_json("bench.page", "past", kind)["mb"] for _ in range(times))
        for kind in ("without", "with")
    )
    held_mb = run_json("bench.page", "held")["mb"]
    seconds = 5 if quick else 20
    with (
        exporters.node(GPUS, GPUS * EACH) as on,
        exporters.running(exporters.gpuledger(), "gpuledger", on) as ours,
    ):
        time.sleep(3)
        closed = [_cpu_pct(ours.pid, seconds)]
        opened, packed = _watched(ours, b"gzip", seconds)
        plain, size = _watched(ours, b"identity", seconds)
        closed.append(_cpu_pct(ours.pid, seconds))
    return Cost(without_mb, with_mb, held_mb, statistics.mean(closed), opened, plain, size, packed, _browser())


def _cpu_pct(pid: int, seconds: float) -> float:
    began, at = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return 100 * (cpu_s(pid) - began) / (time.monotonic() - at)


def _watched(ours: exporters.Running, encoding: bytes, seconds: float) -> tuple[float, float]:
    """CPU of the exporter while a client reads its event stream, and bytes per tick."""
    received = 0
    with socket.create_connection(("127.0.0.1", ours.port), timeout=30) as sock:
        sock.sendall(REQUEST % encoding)

        def read() -> None:
            nonlocal received
            with contextlib.suppress(OSError):  # closed below
                while data := sock.recv(1 << 18):
                    received += len(data)

        threading.Thread(target=read, daemon=True).start()
        time.sleep(1.5)
        before = received
        pct = _cpu_pct(ours.pid, seconds)
        took = received - before
        sock.shutdown(socket.SHUT_RDWR)
    return pct, took / seconds


def _browser() -> dict[int, float]:
    from tests.real.browsers import CHROMIUM

    if not Path(CHROMIUM).exists():
        return {}
    return {processes: run_json("bench.page", "browser", processes)["ms"] for processes in (GPUS * EACH, 2000)}


def browser(processes: int) -> None:
    """Open the page in Chromium with one tick per second; print the CPU of the renderer."""
    from tests.real.browsers import chromium, page_of, shown
    from tests.web.snapshot.nodes import Node

    node = Node(GPUS, processes)
    with shown(node.tick()) as exporter, chromium() as made, page_of(made) as watched:
        page = watched.open(exporter.url)
        page.wait_for_timeout(2000)
        renderers = [
            pid for pid in descendants(os.getpid()) if b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        began = sum(map(cpu_s, renderers))
        for _ in range(10):
            exporter.show(node.tick())
            page.wait_for_timeout(1000)
        print(json.dumps({"ms": 100 * (sum(map(cpu_s, renderers)) - began)}))


def past(kind: str) -> None:
    """Replay more than ten minutes of a node; print the final memory."""
    from tests.web.snapshot.nodes import Node

    from gpuledger.web.api import Api
    from gpuledger.web.snapshot.history import History

    node, api = Node(GPUS, GPUS * EACH), Api(History(1.0))
    held = None
    for _ in range((MINUTES + 1) * 60):
        held = node.tick()
        if kind == "with":
            api.publish(held)
    assert held is not None
    print(json.dumps({"mb": memory_mb(os.getpid())}))


def held() -> None:
    """Print the memory that is freed when a full history is deleted."""
    from tests.web.snapshot.nodes import Node

    from gpuledger.web.snapshot.history import History

    node, history = Node(GPUS, GPUS * EACH), History(1.0)
    tracemalloc.start()
    for _ in range((MINUTES + 1) * 60):
        history.add(node.tick())
    last = node.tick()
    gc.collect()
    full = tracemalloc.get_traced_memory()[0]
    del history
    gc.collect()
    print(json.dumps({"mb": (full - tracemalloc.get_traced_memory()[0]) / 1e6, "rows": len(last.processes)}))


def report(cost: Cost) -> str:
    """Section of RESULTS.md."""
    return "\n".join(
        [
            "## Page",
            "",
            f"{GPUS} GPUs x {EACH} processes. RSS is that of a process with books after {MINUTES + 1} min of ticks,",
            "with and without a history. The memory of the history is counted separately, because RSS includes memory",
            "that earlier ticks freed. CPU is that of the exporter with a fake driver without latency, without viewers",
            "and with one page that reads the event stream.",
            "",
            table(
                ("", "measured"),
                [
                    ["RSS without a history, MB", f"{cost.without_mb:.1f}"],
                    ["RSS with a history of ten minutes, MB", f"{cost.with_mb:.1f}"],
                    ["held by the history, MB", f"{cost.held_mb:.2f}"],
                    ["CPU with the page closed, % of a core", f"{cost.closed_pct:.2f}"],
                    ["CPU with a page open, compressed, % of a core", f"{cost.open_pct:.2f}"],
                    ["CPU with a page open, plain, % of a core", f"{cost.plain_pct:.2f}"],
                    ["bytes of a tick, plain", f"{cost.event_bytes:,.0f}"],
                    ["bytes of a tick, compressed", f"{cost.packed_bytes:,.0f}"],
                    *(
                        [f"CPU of a tick in the browser, {processes:,} processes, no graphics card, ms", f"{ms:.0f}"]
                        for processes, ms in cost.browser_ms.items()
                    ),
                ],
            ),
        ]
    )


def budgets(cost: Cost) -> list[Budget]:
    """Budgets of the page."""
    return [
        Budget(f"RSS of ten minutes of history at {GPUS} x {EACH}", 3, cost.history_mb, " MB"),
        Budget(f"CPU that one open page adds at {GPUS} x {EACH}, of a core", 1, cost.page_pct, " %"),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["held"]:
        held()
    elif sys.argv[1:2] == ["browser"]:
        browser(int(sys.argv[2]))
    elif sys.argv[1:2] == ["past"]:
        past(sys.argv[2])
    else:
        exporters.WORK.mkdir(exist_ok=True)
        exporters.take_sources()
        cost = measure(quick="--quick" in sys.argv)
        print(report(cost))
        for budget in budgets(cost):
            print(*budget.row())
