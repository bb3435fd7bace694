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
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpuledger.errors import GpuledgerError, HttpError, LostError
from gpuledger.model.plaintext import one_line
from gpuledger.net.address import Address
from gpuledger.net.answers import load_json
from gpuledger.net.http import Client
from gpuledger.net.jsonvalues import as_dict, as_dicts, as_text
from gpuledger.net.kubeapi import TOKEN
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


@dataclass(frozen=True, slots=True)
class Exporter:
    """The pod of an exporter."""

    node: str
    pod: str
    port: int


@contextmanager
def connected(flags: Sequence[str] = (), *, token: str = "", kubectl: str = "kubectl") -> Iterator[Cluster]:
    """The current cluster of kubectl, or that of `flags`, such as --context. Raises LostError."""
    command = [kubectl, *flags]
    with tempfile.TemporaryDirectory(prefix="kubectl-gpu-") as folder, (Path(folder) / "log").open("w+b") as log:
        place = f"{folder}/socket"
        try:
            proxy = subprocess.Popen([*command, "proxy", f"--unix-socket={place}"], stdout=log, stderr=log)  # noqa: S603
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
        return client.connect_ex(path) == 0


class Cluster:
    """The exporters behind the API server."""

    def __init__(self, command: Sequence[str], token: str, client: Client) -> None:
        self._command, self._token, self._client = command, token, client
        self._config: Mapping[str, Any] | None = None

    @property
    def namespace(self) -> str:
        """The namespace of the context."""
        contexts = as_dicts(self._view().get("contexts"))
        return as_text(as_dict(contexts[0].get("context")).get("namespace")) if contexts else ""

    def snapshots(self, namespace: str) -> tuple[list[Snapshot], list[str]]:
        """The snapshots of the exporters in a namespace, and why others are missing. Raises LostError."""
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods?labelSelector={quote(SELECTOR)}"
        status, body = self._get(path)
        if status != 200:
            reason = as_text(as_dict(_json(body)).get("message")) or f"status {status}"
            raise LostError(f"cannot list the exporters in namespace {namespace}: {reason}", RIGHTS_FIX)
        exporters = [exporter for pod in as_dicts(as_dict(_json(body)).get("items")) if (exporter := _exporter(pod))]
        if not exporters:
            raise LostError(f"namespace {namespace} has no running exporter", "name theirs with --gpuledger-namespace")
        with ThreadPoolExecutor(SIMULTANEOUS) as pool:
            answers = list(pool.map(lambda exporter: self._snapshot(namespace, exporter), exporters))
        return [a for a in answers if isinstance(a, Snapshot)], [a for a in answers if isinstance(a, str)]

    def _snapshot(self, namespace: str, exporter: Exporter) -> Snapshot | str:
        """The snapshot of one exporter, or what is wrong."""
        try:
            status, body = self._of_exporter(namespace, exporter, "http")
            if status == 400 and NO_TLS in body:
                status, body = self._of_exporter(namespace, exporter, "https")
            if status == 200:
                return decode(_json(body))
        except (GpuledgerError, ValueError) as error:
            return f"{exporter.node}: {error}"
        message = as_text(as_dict(_json(body)).get("message")) or one_line(body.decode("utf-8", "replace"))
        fix = {401: LOGIN_FIX, 403: RIGHTS_FIX}.get(status, f"check the pod {exporter.pod}")
        return f"{exporter.node}: status {status}: {message}; {fix}"

    def _of_exporter(self, namespace: str, exporter: Exporter, scheme: str) -> tuple[int, bytes]:
        """A response of the exporter. Only one that requires it gets the user's token."""
        pod = f"{scheme}:{exporter.pod}:{exporter.port}"
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe=':')}/proxy/api/v1/snapshot"
        status, body = self._get(path)
        if status == 401 and TOKEN.fullmatch(token := self._user_token()):
            return self._get(path, f"X-Gpuledger-Token: {token}")
        return status, body

    def _get(self, path: str, *headers: str) -> tuple[int, bytes]:
        try:
            return self._client.get(path, TIMEOUT_S, MAX_BYTES, "Accept: application/json", *headers)
        except HttpError as error:
            raise LostError(error.problem.what, error.problem.fix, error.kind) from None

    def _view(self) -> Mapping[str, Any]:
        """The part of the kubeconfig for the context."""
        if self._config is None:
            command = [*self._command, "config", "view", "--raw", "--minify", "--output=json"]
            done = subprocess.run(command, check=False, capture_output=True, timeout=START_S)  # noqa: S603
            self._config = as_dict(_json(done.stdout))
        return self._config

    def _user_token(self) -> str:
        """The bearer token of the user; empty without one."""
        if self._token:
            return self._token
        users = as_dicts(self._view().get("users"))
        user = as_dict(users[0].get("user")) if users else {}
        if user.get("exec"):
            return _token_of_plugin(as_dict(user["exec"]))
        if user.get("tokenFile"):
            return Path(str(user["tokenFile"])).read_text(encoding="ascii", errors="replace").strip()
        return str(user.get("token") or "")


def _token_of_plugin(plugin: Mapping[str, Any]) -> str:
    """The token of a credential plugin, which kubectl itself runs in the same way."""
    version = str(plugin.get("apiVersion"))
    request = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    environment = {str(entry.get("name")): str(entry.get("value")) for entry in as_dicts(plugin.get("env"))}
    command = [str(plugin.get("command")), *map(str, plugin.get("args") or ())]
    environment = {**os.environ, **environment, "KUBERNETES_EXEC_INFO": json.dumps(request)}
    try:
        done = subprocess.run(command, check=False, env=environment, stdout=subprocess.PIPE, timeout=LOGIN_S)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LostError(f"cannot run {command[0]}: {error}", "check the user in your kubeconfig") from None
    return str(as_dict(as_dict(_json(done.stdout)).get("status")).get("token") or "")


def _exporter(pod: Mapping[str, Any]) -> Exporter | None:
    """The exporter in a pod; None while it does not run."""
    metadata, spec = as_dict(pod.get("metadata")), as_dict(pod.get("spec"))
    if as_dict(pod.get("status")).get("phase") != "Running" or not metadata.get("name"):
        return None
    ports = [port for container in as_dicts(spec.get("containers")) for port in as_dicts(container.get("ports"))]
    named = [port for port in ports if port.get("name") == PORT_NAME] or ports
    port = named[0].get("containerPort") if named else PORT
    name = as_text(metadata["name"])
    return Exporter(as_text(spec.get("nodeName")) or name, name, port if isinstance(port, int) else PORT)


def _json(body: bytes) -> Any:
    """Parsed JSON; None if it is none."""
    try:
        return load_json(body)
    except (ValueError, RecursionError):
        return None
