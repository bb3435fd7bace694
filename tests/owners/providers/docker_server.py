"""A Docker daemon of a few lines that says whatever a test wants, right or wrong."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Answer = bytes | Callable[[socket.socket], None]
"""The bytes to send before closing, or a function that sends them."""


def http(body: object, status: int = 200) -> bytes:
    """An answer with its length."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n%b" % (status, len(data), data)


def chunked(body: object, size: int = 7) -> bytes:
    """An answer in small chunks, as Docker sends long ones."""
    data = json.dumps(body).encode()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x;note=1\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])


def listed(i: str, name: str = "web", **more: Any) -> dict[str, Any]:
    """An entry of the list."""
    return {"Id": i, "Names": [f"/{name}"], "Image": "nginx:1", "Labels": {}} | more


class FakeDocker:
    """Answers each request by the first key that its target contains."""

    def __init__(self, folder: Path, answers: Mapping[str, Answer]) -> None:
        self.path = folder / "d.sock"
        self.answers = dict(answers)
        self.asked: list[str] = []
        self._connections: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(16)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def count(self, part: str) -> int:
        """How many requests contained this."""
        return sum(part in target for target in self.asked)

    def close(self) -> None:
        """Close all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            thread = threading.Thread(target=self._talk, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            request = connection.recv(65536)
            if not request:  # the client was stopped
                return
            target = request.split(b" ")[1].decode()
            self.asked.append(target)
            answer = next((answer for part, answer in self.answers.items() if part in target), http({}, 404))
            if callable(answer):
                answer(connection)
            else:
                connection.sendall(answer)
