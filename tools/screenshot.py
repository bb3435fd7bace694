"""`python -m tools.screenshot`: make the pictures of the page in docs/, from the demo's recording; needs Chromium."""

from __future__ import annotations

from pathlib import Path

from tests.real.browsers import chromium, page_of, shown

from gpuledger.books.book import Books
from gpuledger.cli.demo import RECORDING
from gpuledger.sources.replay import Replay

DOCS = Path(__file__).parents[1] / "docs"
TICKS = 57
"""Into the recording: a minute of charts, and one of five has left."""
PICTURES = {"page.png": "light", "page-dark.png": "dark"}
WIDTH, SHARPER = 1120, 1.5


def main() -> None:
    """A picture in each theme."""
    replay, books = Replay(RECORDING, paced=False), Books()
    ticks = [books.book(replay.read()) for _ in range(TICKS)]
    with shown(*ticks) as exporter, chromium() as browser:
        for name, scheme in PICTURES.items():
            with page_of(browser, WIDTH, color_scheme=scheme, device_scale_factor=SHARPER) as watched:
                page = watched.open(exporter.url)
                page.set_viewport_size({"width": WIDTH, "height": 200})
                page.screenshot(path=DOCS / name, full_page=True, animations="disabled")
                print(f"wrote docs/{name}, {(DOCS / name).stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
