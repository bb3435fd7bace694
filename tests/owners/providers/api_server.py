"""A Kubernetes API server for tests, as far as pods of one node go: real sockets, list and watch, and every trouble.

with contextlib.closing(ApiServer()) as server:
    server.put(pod("train-0"))              # a list shows it, each open watch tells it
    server.answers.append(status(403))      # the next request gets this instead
    server.disconnect()                     # all watches break in the middle
"""

from __future__ import annotations

import base64
import contextlib
import json
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]
Answer = bytes | Callable[[socket.socket], None]
"""The bytes that replace the right answer, or a function that sends them."""


def pod(name: str, *, uid: str = "", node: str = "n1", running: bool = True, **more: Any) -> Json:
    """A pod with one container, as the API shows it."""
    uid = uid or f"uid-{name}"
    state = {"running": {"startedAt": "2026-11-15T08:00:00Z"}} if running else {"waiting": {"reason": "Pulling"}}
    status = {"name": "main", "image": "example.org/main:1", "containerID": f"containerd://{name}-main", "state": state}
    meta = {"name": name, "namespace": "ml", "uid": uid} | more.pop("metadata", {})
    return {"metadata": meta, "spec": {"nodeName": node, "containers": [{"name": "main", "image": "main:1"}]},
            "status": {"phase": "Running", "containerStatuses": [status]}} | more  # fmt: skip


def answer(body: bytes, code: int = 200, kind: str = "application/json") -> bytes:
    """A whole answer with its length."""
    return f"HTTP/1.1 {code} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def status(code: int, message: str = "no") -> bytes:
    """A refusal as Kubernetes words it."""
    return answer(json.dumps({"kind": "Status", "code": code, "message": message}).encode(), code)


def chunk(body: bytes) -> bytes:
    """A chunk of a body of unknown length."""
    return b"%x\r\n%s\r\n" % (len(body), body)


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


class ApiServer:
    """Serves the pods it was given; `port` stays the same when it is started again."""

    def __init__(self, *, certificate: tuple[Path, Path] | None = None, clients: Path | None = None) -> None:
        self._tls = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(*certificate)
            if clients is not None:
                self._tls.verify_mode = ssl.CERT_REQUIRED
                self._tls.load_verify_locations(clients)
        self.page = 1000
        """Pods to a page of a list."""
        self.token = ""
        """The token that requests must have; empty if none is required."""
        self.answers: deque[Answer] = deque()
        """Sent in place of the right answers to the next requests."""
        self.requests: list[tuple[str, dict[str, str], dict[str, str]]] = []
        """Path, query and headers of all requests so far."""
        self._pods: dict[str, Json] = {}
        self._version = 100
        self._oldest = 100
        self._finished = 0
        self._events: list[tuple[int, Json]] = []
        self._changed = threading.Condition()
        self._connections: set[socket.socket] = set()
        self._watching: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self.port = 0
        self.start()

    def start(self) -> None:
        """Listen."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        self._run(self._accept, self._listener)

    def close(self) -> None:
        """Close all connections and wait for the threads."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._end(self._connections)
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()
        self._threads.clear()

    def disconnect(self) -> None:
        """Break every watch in the middle."""
        self._end(self._watching)

    def put(self, item: Json, kind: str = "") -> None:
        """Add or change a pod and tell it."""
        with self._changed:
            uid = item["metadata"]["uid"]
            self._tell(kind or ("MODIFIED" if uid in self._pods else "ADDED"), item)
            self._pods[uid] = item

    def delete(self, uid: str) -> None:
        """Remove a pod and tell it."""
        with self._changed:
            self._tell("DELETED", self._pods.pop(uid))

    def bookmark(self) -> None:
        """Tell only a new version."""
        with self._changed:
            self._tell("BOOKMARK", {"kind": "Pod", "metadata": {}})

    def say(self, line: bytes) -> None:
        """Send any bytes to all watches."""
        with self._changed:
            self._version += 1
            self._events.append((self._version, {"raw": line}))
            self._changed.notify_all()

    def finish(self) -> None:
        """End every watch as it should end."""
        with self._changed:
            self._finished += 1
            self._changed.notify_all()

    def forget(self) -> None:
        """Forget all events, as the store does after five minutes."""
        with self._changed:
            self._version += 1
            self._oldest = self._version
            self._events.clear()

    def asked(self, *, watch: bool) -> list[dict[str, str]]:
        """The queries of all lists, or of all watches."""
        return [query for _, query, _ in self.requests if ("watch" in query) == watch]

    def watchers(self) -> int:
        """How many watch now."""
        return len(self._watching)

    def _tell(self, kind: str, item: Json) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self._events.append((self._version, {"type": kind, "object": json.loads(json.dumps(item))}))
        self._changed.notify_all()

    def _run(self, target: Callable[..., None], *given: object) -> None:
        thread = threading.Thread(target=target, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _end(self, connections: set[socket.socket]) -> None:
        with self._changed:
            for connection in connections:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)
            self._changed.notify_all()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._changed:
                self._connections.add(connection)
            self._run(self._serve, connection)

    def _serve(self, plain: socket.socket) -> None:
        connection = plain
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(plain, server_side=True)
                with self._changed:
                    self._connections.discard(plain)
                    self._connections.add(connection)
            connection.settimeout(10)
            self._answer(connection)
        except OSError:
            return
        finally:
            with self._changed:
                self._connections -= {connection, plain}
                self._watching.discard(connection)
            connection.close()
            plain.close()

    def _answer(self, connection: socket.socket) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            if not (data := connection.recv(65536)):
                return
            received += data
        first, *lines = received.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        url = urlsplit(first.split()[1])
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.requests.append((url.path, query, headers))
        if self.answers:
            scripted = self.answers.popleft()
            scripted(connection) if callable(scripted) else connection.sendall(scripted)
        elif self.token and headers.get("authorization") != f"Bearer {self.token}":
            connection.sendall(status(401, "Unauthorized"))
        elif "watch" in query:
            self._watch(connection, int(query["resourceVersion"]))
        else:
            connection.sendall(self._list(int(query.get("continue", "0"))))

    def _list(self, start: int) -> bytes:
        with self._changed:
            meta = {"resourceVersion": str(self._version)}
            if start + self.page < len(self._pods):
                meta["continue"] = str(start + self.page)
            items = list(self._pods.values())[start : start + self.page]
            body = json.dumps({"kind": "PodList", "metadata": meta, "items": items}).encode()
        half = len(body) // 2
        return STREAM + chunk(body[:half]) + chunk(body[half:]) + chunk(b"")

    def _watch(self, connection: socket.socket, version: int) -> None:
        if version < self._oldest:
            connection.sendall(status(410, "too old resource version"))
            return
        connection.sendall(STREAM)
        with self._changed:
            self._watching.add(connection)
            finished = self._finished
        while True:
            with self._changed:
                new = [event for at, event in self._events if at > version]
                version = self._version
                if not new and finished == self._finished:
                    self._changed.wait(0.05)
            if finished != self._finished:
                connection.sendall(chunk(b""))
                return
            for event in new:
                connection.sendall(chunk(event["raw"] if "raw" in event else json.dumps(event).encode() + b"\n"))
            if select.select([connection], [], [], 0)[0]:  # clients send only the end of the connection
                return


def slowly(body: bytes, pause_s: float = 0.02) -> Callable[[socket.socket], None]:
    """Send byte by byte."""

    def send(connection: socket.socket) -> None:
        for at in range(len(body)):
            connection.sendall(body[at : at + 1])
            time.sleep(pause_s)

    return send


def encoded(path: Path) -> str:
    """A file as a kubeconfig holds it."""
    return base64.b64encode(path.read_bytes()).decode()


def kubeconfig(port: int, folder: Path, *, prefix: str = "", token: str = "t") -> Path:
    """A kubeconfig file for a server on this host, with this prefix of its paths."""
    path = folder / "kubeconfig"
    path.write_text(json.dumps({
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}{prefix}"}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }))  # fmt: skip
    return path
