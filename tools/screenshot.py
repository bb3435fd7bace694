"""`make screenshots`: write screenshots of the page and of a report to docs/. Needs Chromium.

The page shows the demo. `python -m tools.screenshot FOLDER` writes the page with one and with eight GPUs, on a screen
and on a phone, in both themes, to that folder instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser
from tests.real.browsers import Shown, chromium, page_of, shown
from tests.web.snapshot.nodes import Node
from tools.samplereport import sample

from gpuledger.books import Books
from gpuledger.cli.demo import RECORDING, RETENTION_S
from gpuledger.recording.replay import Replay
from gpuledger.tools.report.html import to_html

DOCS = Path(__file__).parents[1] / "docs"
TICKS = 45
"""Number of replayed ticks: a process has exited, one that is not listed holds memory, and two pods share a GPU."""
PICTURES = {"page.png": "light", "page-dark.png": "dark"}
WIDTH, REPORT_WIDTH, SCALE = 1280, 1240, 1.5
SCREEN, PHONE = 1400, 390
NODES = {1: 5, 8: 40}
"""Number of GPUs, and of processes."""
NODE_TICKS = 700
"""More than ten minutes."""


def main() -> None:
    """Write the pictures of the documentation, or those to look at."""
    with chromium() as browser:
        if sys.argv[1:]:
            _write_all(browser, Path(sys.argv[1]))
            return
        with _demo() as exporter:
            for name, scheme in PICTURES.items():
                _write(browser, exporter, DOCS / name, WIDTH, scheme, scale=SCALE)
        _write_report(browser, DOCS / "report.png")


def _write_all(browser: Browser, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for gpus, processes in NODES.items():
        node = Node(gpus, processes)
        with shown(*(node.tick() for _ in range(NODE_TICKS))) as exporter:
            for width in (SCREEN, PHONE):
                for scheme in PICTURES.values():
                    _write(browser, exporter, folder / f"{gpus}-gpus-{width}-{scheme}.png", width, scheme)


@contextmanager
def _demo() -> Iterator[Shown]:
    replay, books = Replay(RECORDING, paced=False), Books(keep_ns=int(RETENTION_S * 1e9))
    with shown(*(books.book(replay.read()) for _ in range(TICKS))) as exporter:
        yield exporter


def _write(browser: Browser, exporter: Shown, path: Path, width: int, scheme: str, *, scale: float = 1) -> None:
    with page_of(browser, width, color_scheme=scheme, device_scale_factor=scale) as watched:
        page = watched.open(exporter.url)
        page.set_viewport_size({"width": width, "height": 200})
        height: int = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({"width": width, "height": height})  # so that nothing sticks to an edge in the middle
        page.screenshot(path=path, animations="disabled")
    _tell(path)


def _write_report(browser: Browser, path: Path) -> None:
    """A report on a month."""
    with page_of(browser, REPORT_WIDTH, color_scheme="light", device_scale_factor=SCALE) as watched:
        watched.page.set_viewport_size({"width": REPORT_WIDTH, "height": 200})
        watched.page.set_content(to_html(sample()))
        watched.page.screenshot(path=path, full_page=True, animations="disabled")
    _tell(path)


def _tell(path: Path) -> None:
    print(f"wrote {path.name}, {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
