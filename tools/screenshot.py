"""`python -m tools.screenshot`: write screenshots of the page to docs/, from the demo recording. Needs Chromium.

`python -m tools.screenshot report` writes one of a report instead.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.real.browsers import chromium, page_of, shown
from tools.samplereport import sample

from gpuledger.books.book import Books
from gpuledger.cli.demo import RECORDING
from gpuledger.report.html import to_html
from gpuledger.sources.replay import Replay

DOCS = Path(__file__).parents[1] / "docs"
TICKS = 57
"""Number of replayed ticks: a minute of charts, and one of five processes has exited."""
PICTURES = {"page.png": "light", "page-dark.png": "dark"}
WIDTH, REPORT_WIDTH, SCALE = 1120, 1240, 1.5


def main() -> None:
    """Write one screenshot per theme."""
    replay, books = Replay(RECORDING, paced=False), Books()
    ticks = [books.book(replay.read()) for _ in range(TICKS)]
    with shown(*ticks) as exporter, chromium() as browser:
        for name, scheme in PICTURES.items():
            with page_of(browser, WIDTH, color_scheme=scheme, device_scale_factor=SCALE) as watched:
                page = watched.open(exporter.url)
                page.set_viewport_size({"width": WIDTH, "height": 200})
                page.screenshot(path=DOCS / name, full_page=True, animations="disabled")
                print(f"wrote docs/{name}, {(DOCS / name).stat().st_size // 1000} kB")


def report() -> None:
    """Write one screenshot of a report on a month."""
    name = "report.png"
    with (
        chromium() as browser,
        page_of(browser, REPORT_WIDTH, color_scheme="light", device_scale_factor=SCALE) as watched,
    ):
        watched.page.set_viewport_size({"width": REPORT_WIDTH, "height": 200})
        watched.page.set_content(to_html(sample()))
        watched.page.screenshot(path=DOCS / name, full_page=True, animations="disabled")
    print(f"wrote docs/{name}, {(DOCS / name).stat().st_size // 1000} kB")


if __name__ == "__main__":
    report() if sys.argv[1:] == ["report"] else main()
