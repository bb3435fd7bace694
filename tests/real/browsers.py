"""Chromium, and an exporter for it in this process whose ticks the test makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from gpuledger.model import Tick
from gpuledger.web.api import Api
from gpuledger.web.app import App
from gpuledger.web.http import Request, Response
from gpuledger.web.server import Server
from gpuledger.web.snapshot.history import History

CHROMIUM = "/usr/bin/chromium"
DRAWN = "body[data-time]"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's, without a window; as root it cannot have a sandbox, and in a container /dev/shm is small."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """A page, with everything that it asked for and complained about."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    excused: str = ""
    """What a complaint may be about."""

    def open(self, url: str) -> Page:
        """Go there and wait for the first drawing."""
        self.page.goto(url)
        self.page.wait_for_selector(DRAWN)
        return self.page


@contextmanager
def page_of(browser: Browser, width: int = 1280, **context: Any) -> Iterator[Watched]:
    """A fresh page; that it complains of anything is an error, unless the test excuses it."""
    with browser.new_context(viewport={"width": width, "height": 900}, **context) as made:
        watched = Watched(made.new_page())
        watched.page.on("console", lambda said: watched.complaints.append(f"{said.type}: {said.text}"))
        watched.page.on("pageerror", lambda error: watched.complaints.append(str(error)))
        watched.page.on("request", lambda request: watched.asked.append(request.url))
        watched.page.on("dialog", lambda dialog: watched.complaints.append(f"dialog: {dialog.message}"))
        yield watched
    left = [one for one in watched.complaints if not watched.excused or watched.excused not in one]
    assert not left, left


class Shown:
    """An exporter that shows the ticks it is given, under a prefix if there is one."""

    def __init__(self, *ticks: Tick, max_connections: int = 64, prefix: str = "", port: int = 0) -> None:
        self._prefix = prefix
        self.tick: Tick | None = None
        self.api = Api(History(1.0), node="node-7", max_connections=max_connections)
        app = App(lambda: self.tick, lambda: 0.1, interval_s=1.0, api=self.api)
        self.server = Server([f"127.0.0.1:{port}"], self._behind_a_proxy(app) if prefix else app)
        self.show(*ticks)
        self.server.start()

    @property
    def url(self) -> str:
        """Of the page."""
        return f"http://127.0.0.1:{self.port}{self._prefix}/"

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.server.addresses[0][1]

    def show(self, *ticks: Tick) -> None:
        """A tick after the other."""
        for tick in ticks:
            self.tick = tick
            self.api.publish(tick)

    def stop(self) -> None:
        """As the exporter stops."""
        self.api.close()
        self.server.stop(0.2)

    def _behind_a_proxy(self, app: App) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            if not request.path.startswith(self._prefix + "/"):
                return Response.text(404, "elsewhere")
            return app(replace(request, path=request.path.removeprefix(self._prefix)))

        return answer


@contextmanager
def shown(*ticks: Tick, max_connections: int = 64, prefix: str = "") -> Iterator[Shown]:
    """Such an exporter with these ticks."""
    exporter = Shown(*ticks, max_connections=max_connections, prefix=prefix)
    try:
        yield exporter
    finally:
        exporter.stop()
