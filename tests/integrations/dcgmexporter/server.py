"""A real HTTP server that answers as the test says, well or badly."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

Say = Callable[[BinaryIO, threading.Event], None]
"""Writes a whole answer; the event is set when the test is over."""


def page(body: bytes, status: str = "200 OK", *headers: str) -> Say:
    """A proper answer."""

    def say(out: BinaryIO, _: threading.Event) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
        out.write("\r\n".join(lines).encode() + body)

    return say


def raw(data: bytes) -> Say:
    """These bytes, then the end of the connection."""

    def say(out: BinaryIO, _: threading.Event) -> None:
        out.write(data)

    return say


def hang(_: BinaryIO, over: threading.Event) -> None:
    """Never answers."""
    over.wait()


class Upstream:
    """A server on a port of its own; `say` may be changed at any time."""

    def __init__(self, say: Say, certificate: tuple[Path, Path] | None = None) -> None:
        self.say = say
        self.asked: list[dict[str, str]] = []
        self.over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

            def _answer(self, form: str = "") -> None:
                said = {k.lower(): v for k, v in self.headers.items()}
                outer.asked.append({"path": self.path, "form": form, **said})
                self.close_connection = True
                outer.say(self.wfile, outer.over)  # type: ignore[arg-type]

            def log_message(self, *_: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that hangs up in the middle is what is tested."""

        self._server = Quiet(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "https" if certificate else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}/metrics"

    @property
    def root(self) -> str:
        """Its address without a path."""
        return self.url.removesuffix("/metrics")

    def start(self) -> None:
        """Listen."""
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        """Stop, and end all connections that hang."""
        self.over.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def upstream(say: Say, certificate: tuple[Path, Path] | None = None) -> Iterator[Upstream]:
    """One for the length of a block."""
    server = Upstream(say, certificate)
    server.start()
    try:
        yield server
    finally:
        server.stop()
