"""An API server that reviews tokens and rights: real sockets, and every trouble."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gpuledger.net.address import Address
from gpuledger.net.kubeapi import ApiAccess

OWN_TOKEN = "exporter"


class ReviewServer:
    """Knows tokens and the namespaces that their users may read. Close it at the end."""

    def __init__(self, users: dict[str, str], readable: dict[str, set[str]]) -> None:
        self.users, self.readable = users, readable
        self.reviews: list[tuple[str, dict[str, Any]]] = []
        """Last part of the path, and spec of all reviews."""
        self.answer: tuple[int, bytes] | None = None
        """In place of the right answer."""
        self.go_on = threading.Event()
        self.go_on.set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.reviews.append((self.path.rpartition("/")[2], body["spec"]))
                server.go_on.wait(10)
                status, answer = server.answer or server.review(self.path, body["spec"], self.headers["Authorization"])
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """A client that left."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop."""
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()

    def access(self) -> ApiAccess:
        """How the exporter connects."""
        return ApiAccess(Address(host="127.0.0.1", port=self.port), path="/k8s", token=OWN_TOKEN)

    def review(self, path: str, spec: dict[str, Any], authorization: str) -> tuple[int, bytes]:
        """The answer to a review."""
        if authorization != f"Bearer {OWN_TOKEN}" or not path.startswith("/k8s/apis/"):
            return 403, b"{}"
        if path.endswith("tokenreviews"):
            name = self.users.get(spec["token"])
            user = {"username": name, "uid": f"{name}-uid", "groups": ["g"], "extra": {"k": ["v"]}}
            known = {"authenticated": True, "user": user, "audiences": spec.get("audiences", ["cluster"])}
            return 201, json.dumps({"status": known if name else {"error": "unknown"}}).encode()
        wanted = spec["resourceAttributes"]
        is_known = (wanted["verb"], wanted["resource"]) == ("get", "pods") and spec["groups"] == ["g"]
        allowed = is_known and wanted["namespace"] in self.readable.get(spec["user"], set())
        return 201, json.dumps({"status": {"allowed": allowed}}).encode()
