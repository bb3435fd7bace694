"""Servers that get messages, and a sendmail that stores them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Inbox:
    """What a server got: the path and the JSON of each request, and what it answers."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.pods: dict[str, dict[str, Any]] = {}
        """Metadata of the pods that a GET finds, by namespace/name."""
        self.status = 200
        self.go_on = threading.Event()
        self.go_on.set()
        self.port = 0

    @property
    def texts(self) -> list[str]:
        """The messages of a webhook in Slack's format."""
        return [body["text"] for _, body in self.bodies]


@contextmanager
def receiving() -> Iterator[Inbox]:
    """A webhook that is also an API server with pods."""
    inbox = Inbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            inbox.bodies.append((self.path, body))
            inbox.go_on.wait(20)
            self._answer(inbox.status, b"{}")

        def do_GET(self) -> None:
            _, _, _, _, namespace, _, name = self.path.split("/")
            metadata = inbox.pods.get(f"{namespace}/{name}")
            self._answer(404 if metadata is None else inbox.status, json.dumps({"metadata": metadata}).encode())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A client that left."""

    server = Server(("127.0.0.1", 0), Handler)
    inbox.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield inbox
    finally:
        inbox.go_on.set()
        server.shutdown()
        server.server_close()


def sendmail(folder: Path, code: int = 0) -> Path:
    """A program that appends its arguments and the mail to a file."""
    program = folder / "sendmail"
    program.write_text(f'#!/bin/sh\n{{ echo "ARGS $*"; cat; echo; }} >> {folder}/mails\nexit {code}\n')
    program.chmod(0o755)
    return program
