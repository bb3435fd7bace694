"""A program in place of kubectl, for machines without a cluster: the API server's proxy in front of real exporters.

`tests/e2e/test_own_view.py` has the real ones.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PROGRAM = """#!{python}
import http.client, json, os, re, socketserver, sys, time
from http.server import BaseHTTPRequestHandler

world = json.load(open({world!r}))
words = sys.argv[1:]
open({calls!r}, "a").write(json.dumps(words) + "\\n")
if "config" in words:
    print(json.dumps(world["config"]))
    sys.exit(0)
if world["proxy_error"]:
    sys.exit(world["proxy_error"])
socket = next(word.partition("=")[2] for word in words if word.startswith("--unix-socket="))
PODS = "/api/v1/namespaces/gpuledger/pods"

class Handler(BaseHTTPRequestHandler):
    def address_string(self):
        return "unix"

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path.startswith(PODS + "?labelSelector="):
            open({proxy!r}, "w").write(str(os.getpid()))
            time.sleep(world["pods_after_s"])
            return self.answer(*world["pods"])
        match = re.fullmatch(PODS + r"/(https?):([^:/]+):([0-9]+)/proxy(/.*)", self.path)
        port = world["ports"].get(match[2]) if match else None
        if port is None:
            return self.answer(404, {{"kind": "Status", "message": "no such pod"}})
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        headers = {{name: value for name, value in self.headers.items() if name.lower() != "authorization"}}
        client.request("GET", match[4], headers=headers)
        response = client.getresponse()
        self.answer(response.status, response.read())

    def answer(self, status, body):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

Server(socket, Handler).serve_forever()
"""


class FakeCluster:
    """What the program shows: exporters on ports of this host, and a kubeconfig."""

    def __init__(self, folder: Path, ports: dict[str, int], token: str = "", namespace: str = "team-a") -> None:
        self.kubectl, self._world, self._calls = folder / "kubectl", folder / "world.json", folder / "calls"
        self.ports = ports
        self.user: dict[str, Any] = {"token": token} if token else {}
        self.namespace = namespace
        self.pods: tuple[int, Any] | None = None
        self.pods_after_s = 0
        self.proxy_error = ""
        self.write()
        self.kubectl.write_text(PROGRAM.format(
            python=sys.executable, world=str(self._world), calls=str(self._calls), proxy=str(folder / "proxy")
        ))  # fmt: skip
        self.kubectl.chmod(0o755)

    def write(self) -> None:
        """Show changes from now on."""
        items = [
            {
                "metadata": {"name": name},
                "spec": {
                    "nodeName": f"node-{name}",
                    "containers": [{"ports": [{"name": "metrics", "containerPort": port}]}],
                },
                "status": {"phase": "Running"},
            }
            for name, port in self.ports.items()
        ]
        self._world.write_text(json.dumps({
            "ports": self.ports, "pods": self.pods or (200, {"items": items}), "proxy_error": self.proxy_error,
            "pods_after_s": self.pods_after_s,
            "config": {"contexts": [{"context": {"namespace": self.namespace}}], "users": [{"user": self.user}]},
        }))  # fmt: skip

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of each call."""
        return [json.loads(line) for line in self._calls.read_text().splitlines()]
