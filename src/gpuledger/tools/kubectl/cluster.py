"""The exporters of a cluster, through the API server's proxy.

`kubectl proxy` makes the connection, so that every kind of login works that kubectl has. It listens on a unix socket in
a directory of this user: others must not use these rights.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpuledger.errors import GpuledgerError, HttpError, LostError
from gpuledger.model.plaintext import one_line
from gpuledger.net.address import Address
from gpuledger.net.answers import load_json
from gpuledger.net.http import Client
from gpuledger.net.jsonvalues import as_dict, as_dicts, as_text
from gpuledger.net.kubeapi import TOKEN, read_token
from gpuledger.runtime.deadline import Deadline
from gpuledger.web.snapshot.codec import decode
from gpuledger.web.snapshot.schema import Snapshot

SELECTOR = "app.kubernetes.io/part-of=gpuledger,app.kubernetes.io/component=exporter"
PORT_NAME, PORT = "metrics", 9400
START_S, TIMEOUT_S, LOGIN_S = 10.0, 10.0, 60.0
POLL_S = 0.02
LOG_BYTES = 4096
MAX_BYTES = 64 << 20
SIMULTANEOUS = 8
NO_TLS = b"HTTPS server"
"""What a server with TLS says to a client without."""
RIGHTS_FIX = "ask an administrator for the role gpuledger-viewer; docs/own-view.md has it"
LOGIN_FIX = "log in with a token, or name one with --token: a client certificate tells the exporter nothing"


@contextmanager
def connected(flags: Sequence[str], token: str, kubectl: str) -> Iterator[Cluster]:
    """The current cluster of kubectl, or that of `flags`, such as --context. Raises LostError."""
    command = [kubectl, *flags]
    with tempfile.TemporaryDirectory(prefix="kubectl-gpu-") as folder, (Path(folder) / "log").open("w+b") as log:
        place = f"{folder}/socket"
        words = [*command, "proxy", f"--unix-socket={place}"]
        try:
            proxy = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603
        except OSError as error:
            raise LostError(f"cannot run {kubectl}: {error.strerror}", "install kubectl") from None
        try:
            deadline = Deadline(START_S)
            while not _listens(place):
                if proxy.poll() is not None or not deadline.remaining_s:
                    log.seek(0)
                    reason = one_line(log.read(LOG_BYTES).decode("utf-8", "replace")) or "no answer"
                    raise LostError(f"kubectl proxy failed: {reason}", "check `kubectl version`")
                time.sleep(POLL_S)
            yield Cluster(command, token, Client(Address(path=place), name="the API server"))
        finally:
            proxy.terminate()
            proxy.wait()


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            return client.connect_ex(path) == 0
        except OSError:  # the path is too long; kubectl says so, too
            return False


class Cluster:
    """The exporters behind the API server."""

    def __init__(self, command: Sequence[str], token: str, client: Client) -> None:
        self._command, self._user_token, self._client = command, token or None, client
        self._lock = threading.Lock()
        """Held while the user logs in: once for all exporters."""

    @property
    def namespace(self) -> str:
        """The namespace of the context."""
        return as_text(self._of_context("context").get("namespace"))

    def snapshots(self, namespace: str) -> tuple[list[Snapshot], list[str]]:
        """The snapshots of the exporters in a namespace, and why others are missing. Raises LostError."""
        pods = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
        try:
            status, body = self._get(f"{pods}?labelSelector={quote(SELECTOR)}")
        except HttpError as error:
            raise LostError(error.problem.what, error.problem.fix, error.kind) from None
        if status != 200:
            reason = as_text(_json(body).get("message")) or f"status {status}"
            raise LostError(f"cannot list the exporters in namespace {namespace}: {reason}", RIGHTS_FIX)
        running = [pod for pod in as_dicts(_json(body).get("items")) if _field(pod, "status", "phase") == "Running"]
        if not running:
            raise LostError(f"namespace {namespace} has no running exporter", "name theirs with --gpuledger-namespace")
        with ThreadPoolExecutor(SIMULTANEOUS) as pool:
            answers = list(pool.map(lambda pod: self._snapshot(pods, pod), running))
        return [a for a in answers if isinstance(a, Snapshot)], [a for a in answers if isinstance(a, str)]

    def _snapshot(self, pods: str, pod: Mapping[str, Any]) -> Snapshot | str:
        """The snapshot of the exporter in a pod, or what is wrong."""
        name = as_text(_field(pod, "metadata", "name"))
        node = as_text(_field(pod, "spec", "nodeName")) or name
        try:
            for scheme in ("http", "https"):
                path = f"{pods}/{quote(f'{scheme}:{name}:{_port(pod)}', safe=':')}/proxy/api/v1/snapshot"
                status, body = self._get(path)
                if status == 401 and TOKEN.fullmatch(token := self._token()):  # only where it is required
                    status, body = self._get(path, f"X-Gpuledger-Token: {token}")
                if not (status == 400 and NO_TLS in body):
                    break
            if status == 200:
                return decode(load_json(body))
        except (GpuledgerError, ValueError, RecursionError) as error:
            return f"{node}: {error}"
        message = as_text(_json(body).get("message")) or one_line(body.decode("utf-8", "replace"))
        fix = {401: LOGIN_FIX, 403: RIGHTS_FIX}.get(status, f"check the pod {name}")
        return f"{node}: status {status}: {message}; {fix}"

    def _get(self, path: str, *headers: str) -> tuple[int, bytes]:
        return self._client.get(path, TIMEOUT_S, MAX_BYTES, "Accept: application/json", *headers)

    @cached_property
    def _config(self) -> Mapping[str, Any]:
        """The part of the kubeconfig for the context."""
        words = ("config", "view", "--raw", "--minify", "--output=json")
        return _output([*self._command, *words], stderr=subprocess.DEVNULL)

    def _of_context(self, kind: str) -> Mapping[str, Any]:
        return next((as_dict(entry.get(kind)) for entry in as_dicts(self._config.get(f"{kind}s"))), {})

    def _token(self) -> str:
        """The bearer token of the user; empty without one. Raises GpuledgerError."""
        with self._lock:
            if self._user_token is None:
                self._user_token = _token_of(self._of_context("user"))
            return self._user_token


def _token_of(user: Mapping[str, Any]) -> str:
    if plugin := as_dict(user.get("exec")):  # kubectl itself runs it in the same way
        request = {"apiVersion": plugin.get("apiVersion"), "kind": "ExecCredential", "spec": {"interactive": False}}
        more = {str(entry.get("name")): str(entry.get("value")) for entry in as_dicts(plugin.get("env"))}
        environment = {**os.environ, **more, "KUBERNETES_EXEC_INFO": json.dumps(request)}
        command = [str(plugin.get("command")), *map(str, plugin.get("args") or ())]
        return str(_field(_output(command, env=environment), "status", "token") or "")
    return read_token(str(user["tokenFile"])) if user.get("tokenFile") else str(user.get("token") or "")


def _output(command: Sequence[str], **more: Any) -> Mapping[str, Any]:
    """The JSON that a program prints. Raises LostError."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **more}
    try:
        done = subprocess.run(command, check=False, timeout=LOGIN_S, **pipes)  # noqa: S603
    except OSError as error:
        raise LostError(f"cannot run {command[0]}: {error.strerror}", "check the user in your kubeconfig") from None
    except subprocess.TimeoutExpired:
        raise LostError(f"{command[0]} does not end", "log in with it in a terminal first", "timeout") from None
    return _json(done.stdout)


def _port(pod: Mapping[str, Any]) -> int:
    containers = as_dicts(_field(pod, "spec", "containers"))
    ports = [port for container in containers for port in as_dicts(container.get("ports"))]
    named = [port for port in ports if port.get("name") == PORT_NAME] or ports
    port = named[0].get("containerPort") if named else PORT
    return port if isinstance(port, int) else PORT


def _field(tree: Mapping[str, Any], name: str, field: str) -> Any:
    return as_dict(tree.get(name)).get(field)


def _json(body: bytes) -> Mapping[str, Any]:
    """A JSON object; an empty one if it is none."""
    try:
        return as_dict(load_json(body))
    except (ValueError, RecursionError):
        return {}
