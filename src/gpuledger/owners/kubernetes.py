"""The pods of this node, from the Kubernetes API: one list, then a watch that says what changed.

The list is asked from the server's cache (`resourceVersion=0`), which costs it next to nothing however many nodes ask
at once; only after the server has forgotten where we were (410) does it have to read its store. Tokens and
certificates are read anew for each request, since clusters rotate them.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from binascii import a2b_base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuledger.errors import ConfigError
from gpuledger.owners.names import Names
from gpuledger.owners.provider import ProviderError
from gpuledger.owners.unixhttp import HttpError
from gpuledger.owners.workload import Answer, ExpiredError, Pods, line, mapping, read_json, text

PAGE, MOST_PAGES = 250, 50
"""Pods to an answer, answers to a list."""
FILE_LIMIT = 1 << 20
WATCH_S, LATE_S = 300, 30.0
"""How long the server is asked to keep a watch, and how much later a watch that did not end must be dead."""
RELIST_S, SETTLED_S, LONGEST_PAUSE_S = 600.0, 30.0, 60.0
"""A watch that lived shorter than it takes to settle broke for a reason that lasts: pauses grow."""
SLICE_S, NOW_S = 0.25, 0.001
"""How late a `wait` may notice `stop`; how long to look for what is already there."""

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SERVER = re.compile(r"(https?)://(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+))(?::(\d{1,5}))?(/[\w./~-]*)?", re.ASCII)
HOST = re.compile(r"[\w.:%-]{1,253}", re.ASCII)
NODE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
TOKEN = re.compile(r"[!-~]+")
RIGHTS = "pods list/watch at cluster scope; see the ClusterRole in the docs"


class _ExpiredError(ProviderError):
    """The server no longer knows the version we ask for."""


@dataclass(slots=True)
class _Stream:
    """A connection and what has come over it."""

    connection: socket.socket
    opened_at: float
    answer: Answer = field(default_factory=Answer)

    def more(self, timeout_s: float) -> None:
        """Take in what comes next; TimeoutError when nothing does."""
        self.connection.settimeout(timeout_s)
        self.answer.feed(self.connection.recv(1 << 18))


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """Where the API server is, and how to prove who asks."""

    host: str
    port: int = 443
    path: str = ""
    tls: bool = True
    verify: bool = True
    server_name: str = ""
    token_file: str = ""
    token: str = field(default="", repr=False)
    ca: str | bytes = b""
    """Who vouches for the server: a file, or the PEM itself; so are our certificate and its key."""
    certificate: str | bytes = b""
    key: str | bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if not HOST.fullmatch(self.host) or not 0 < self.port < 1 << 16:
            raise ConfigError(f"{self.host[:200]!r}, port {self.port} is no API server; give a host and a port")

    @classmethod
    def in_cluster(cls, environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> ApiAccess:
        """As the service account of the pod we run in."""
        host, port = (environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if not host:
            raise ConfigError("KUBERNETES_SERVICE_HOST is not set, so this is no pod; give a kubeconfig file")
        number = int(port) if port.isdecimal() else 443
        return cls(host.strip("[]"), number, ca=str(account / "ca.crt"), token_file=str(account / "token"))

    @classmethod
    def from_kubeconfig(cls, path: Path) -> ApiAccess:
        """As the user of the file's current context."""
        import yaml

        try:
            with path.open("rb") as file:
                config = mapping(yaml.safe_load(file.read(FILE_LIMIT)))
            context = _entry(config, "context", config.get("current-context"))
            cluster, user = (_entry(config, kind, context.get(kind)) for kind in ("cluster", "user"))
            server = SERVER.fullmatch(str(cluster.get("server")))
            if server is None:
                raise ValueError(f"server {str(cluster.get('server'))[:200]!r} is not https://host:port")
            for key in ("exec", "auth-provider", "username", "password", "proxy-url"):
                if user.get(key) or cluster.get(key):
                    raise ValueError(f"{key} is not supported; use a token or a client certificate")
            token_file = user.get("tokenFile")
            return cls(
                host=server[2] or server[3],
                port=int(server[4] or (443 if server[1] == "https" else 80)),
                path=(server[5] or "").rstrip("/"),
                tls=server[1] == "https",
                verify=cluster.get("insecure-skip-tls-verify") is not True,
                server_name=text(cluster.get("tls-server-name")),
                token_file=str(path.parent / token_file) if isinstance(token_file, str) and token_file else "",
                token=str(user.get("token") or ""),
                ca=_file_or_data(cluster, "certificate-authority", path),
                certificate=_file_or_data(user, "client-certificate", path),
                key=_file_or_data(user, "client-key", path),
            )
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}; name a kubeconfig file") from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(f"cannot use {path}: {reason}; name a kubeconfig file that kubectl accepts") from None

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def open(self, target: str, deadline: float) -> socket.socket:
        """A connection on which the request is sent and nothing is read yet."""
        token = _read_token(self.token_file) if self.token_file else self.token
        if token and not TOKEN.fullmatch(token):
            raise ProviderError(f"{self.token_file or 'the kubeconfig'} holds no token but other text; write one there")
        with ExitStack() as stack:
            where: Any = (self.host.encode(), self.port)  # bytes, or else the name goes through IDNA and its tables
            connection = stack.enter_context(socket.create_connection(where, left_s(deadline)))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self.tls:
                connection = stack.enter_context(self._secure(connection))
            connection.settimeout(left_s(deadline))
            proof = f"Authorization: Bearer {token}\r\n" if token else ""
            head = f"Host: {self}\r\nUser-Agent: gpuledger\r\nAccept: application/json\r\nConnection: close\r\n{proof}"
            connection.sendall(f"GET {self.path}{target} HTTP/1.1\r\n{head}\r\n".encode())
            stack.pop_all()
        return connection

    def _secure(self, connection: socket.socket) -> socket.socket:
        import ssl

        with ExitStack() as stack:
            ca, certificate, key = (_as_file(pem, stack) for pem in (self.ca, self.certificate, self.key))
            context = ssl.create_default_context(cafile=ca)
            # Since Python 3.13 it would refuse the authorities of many clusters, which lack some extensions.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if not self.verify:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if certificate is not None:
                context.load_cert_chain(certificate, key, password="")  # or else it asks on the terminal
            return context.wrap_socket(connection, server_hostname=(self.server_name or self.host).encode())


def _entry(config: Mapping[str, object], kind: str, name: object) -> Mapping[str, object]:
    entries = config.get(f"{kind}s")
    for entry in entries if isinstance(entries, list) else ():
        if name is not None and mapping(entry).get("name") == name:
            return mapping(mapping(entry).get(kind))
    raise ValueError(f"it has no {kind} called {name!r}")


def _file_or_data(part: Mapping[str, object], key: str, path: Path) -> str | bytes:
    data, file = part.get(f"{key}-data"), part.get(key)
    if data:
        return a2b_base64(str(data))
    return str(path.parent / file) if isinstance(file, str) and file else b""


def _as_file(pem: str | bytes, stack: ExitStack) -> str | None:
    """OpenSSL reads keys from files only; this one never touches a disk."""
    if isinstance(pem, str) or not pem:
        return str(pem) if pem else None
    memory = os.memfd_create("pem")
    stack.callback(os.close, memory)
    os.write(memory, pem)
    return f"/proc/self/fd/{memory}"


def _read_token(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(FILE_LIMIT).decode("ascii", "replace").strip()
    except OSError as error:
        raise ProviderError(f"cannot read {path}: {error.strerror}; mount the service account's token") from error


def left_s(deadline: float) -> float:
    """What the next call may take of the whole, so that a server that drips bytes cannot stretch it."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


class KubernetesProvider:
    """Knows the pods of one node."""

    name = "kubernetes"
    interval_s = 60.0

    def __init__(
        self,
        api: ApiAccess,
        node_name: str,
        label_allow: Sequence[str] = (),
        timeout_s: float = 5.0,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not NODE_NAME.fullmatch(node_name):
            raise ConfigError(f"{node_name!r} is no name of a node; set NODE_NAME from the field spec.nodeName")
        try:
            allow = [re.compile(pattern) for pattern in label_allow]
        except re.error as error:
            raise ConfigError(f"{error.pattern!r} is no regular expression for labels: {error}") from None
        self._api, self._timeout_s, self._now = api, timeout_s, monotonic
        self._target = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node_name}"
        self._pods = Pods(node_name, lambda label: any(pattern.fullmatch(label) for pattern in allow))
        self._listed_at, self._has_expired = 0.0, False
        self._watch: _Stream | None = None
        self._trouble, self._troubles, self._again_at = "", 0, 0.0
        self._lock = threading.Lock()
        """Held while the watch is used, so that nobody closes it under a reader."""
        self._closed = threading.Event()

    def fetch(self) -> Names:
        """The pods as the watch last told; asks for all of them at first, after trouble and now and then."""
        with self._using():
            deadline = time.monotonic() + self._timeout_s
            while self._follow(NOW_S) and time.monotonic() < deadline:
                pass
            if self._trouble and self._now() < self._again_at:
                raise ProviderError(self._trouble)
            try:
                if self._trouble or not self._pods.version or self._now() - self._listed_at > RELIST_S:
                    self._list()
                if self._watch is None:
                    self._open_watch()
            except _ExpiredError:  # what the cache gave is too old to go on from
                self._has_expired = True
                self._list()
                self._open_watch()
            return self._pods.names

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        """Whether a pod changed, or the watch broke so that all have to be asked for again."""
        end = time.monotonic() + timeout_s
        while not stop.is_set() and not self._closed.is_set() and (left := end - time.monotonic()) > 0:
            with suppress(ProviderError), self._using():
                self._follow(min(left, SLICE_S))
                if self._trouble or self._pods.changed:
                    return True
        return False

    def close(self) -> None:
        """End the watch, and a `wait` with it."""
        self._closed.set()
        if watch := self._watch:
            with suppress(OSError):  # the plain socket's: that of TLS would change what the reader works with
                socket.socket.shutdown(watch.connection, socket.SHUT_RDWR)
        if self._lock.acquire(blocking=False):  # else whoever holds it closes
            try:
                self._end_watch()
            finally:
                self._lock.release()

    @contextmanager
    def _using(self) -> Iterator[None]:
        try:
            with self._lock:
                if self._closed.is_set():
                    raise ProviderError("the watch of pods is closed")
                yield
        finally:
            if self._closed.is_set():
                self.close()

    def _list(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        pods, more = self._pods.none(), "" if self._has_expired else "&resourceVersion=0"
        for _ in range(MOST_PAGES):
            with self._asking(f"limit={PAGE}{more}", deadline) as stream:
                while not stream.answer.done:
                    stream.more(left_s(deadline))
                token = pods.put_page(stream.answer.body)
            if not token:
                break
            more = f"&continue={_quote(token)}"
        else:
            raise ProviderError(f"{self._api} sent a list of pods without end; is it a Kubernetes API server?")
        self._end_watch()
        self._pods.replace(pods)
        self._listed_at, self._has_expired, self._trouble = self._now(), False, ""

    def _open_watch(self) -> None:
        query = f"watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}"
        deadline = time.monotonic() + self._timeout_s
        with self._asking(f"{query}&resourceVersion={_quote(self._pods.version)}", deadline) as stream:
            self._watch = stream

    def _follow(self, timeout_s: float) -> bool:
        """Take in what the watch tells within this time; whether it told anything. Trouble is kept for `fetch`."""
        if self._trouble or not self._pods.version:
            return False
        try:
            if self._watch is None:
                self._open_watch()
            return self._watch is not None and self._take(self._watch, timeout_s)
        except ProviderError as error:
            is_settled = self._watch is not None and self._now() - self._watch.opened_at > SETTLED_S
            self._troubles = 1 if is_settled else min(self._troubles + 1, 10)
            pause_s = min(2.0**self._troubles, LONGEST_PAUSE_S) if self._troubles > 1 else 0.0
            self._trouble, self._again_at = str(error), self._now() + pause_s
            self._has_expired = isinstance(error, _ExpiredError)
            self._end_watch()
            return False

    def _take(self, watch: _Stream, timeout_s: float) -> bool:
        age_s = self._now() - watch.opened_at
        with self._explaining():
            try:
                watch.more(timeout_s)
            except TimeoutError:
                if age_s > WATCH_S + LATE_S:
                    raise HttpError("neither tells anything nor ends the watch") from None
            lines = watch.answer.lines()
            for event in lines:
                self._pods.apply(event)
            if watch.answer.done and age_s < SETTLED_S:
                raise HttpError("ended a watch that had just begun")
        if watch.answer.done:
            self._end_watch()
        return bool(lines)

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.connection.close()
            self._watch = None

    @contextmanager
    def _asking(self, query: str, deadline: float) -> Iterator[_Stream]:
        """An answer to read from. Its connection is closed unless it has become the watch."""
        with self._explaining():
            stream = _Stream(self._api.open(f"{self._target}&{query}", deadline), self._now())
            try:
                while not stream.answer.status:
                    stream.more(left_s(deadline))
                if stream.answer.status != 200:
                    self._refuse(stream, deadline)
                yield stream
            finally:
                if self._watch is not stream:
                    stream.connection.close()

    def _refuse(self, stream: _Stream, deadline: float) -> None:
        said = ""
        with suppress(HttpError, OSError):
            while not stream.answer.done:
                stream.more(left_s(deadline))
            said = line(read_json(stream.answer.body).get("message"))
        status, said = stream.answer.status, f": {said}" if said else ""
        if status == 410:
            raise ExpiredError("has forgotten the version we asked for")
        if status in (401, 403):
            why = "does not accept who we are" if status == 401 else "does not let us see pods"
            raise ProviderError(f"{self._api} {why} ({status}{said}); the service account needs {RIGHTS}")
        raise ProviderError(f"{self._api} answered {status}{said}; is it a healthy Kubernetes API server?")

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Everything that can go wrong between us and the server, as one kind of error that says what to do."""
        try:
            yield
        except ExpiredError as error:
            raise _ExpiredError(f"{self._api} {error}") from error
        except HttpError as error:
            raise ProviderError(f"{self._api} {error}; is it a healthy Kubernetes API server?") from error
        except TimeoutError as error:
            raise ProviderError(f"no whole answer from {self._api} within {self._timeout_s:.1f} s; is it overloaded, "
                                "or does a network policy keep us out?") from error  # fmt: skip
        except (OSError, ValueError) as error:
            reason, ca = getattr(error, "strerror", None) or error, self._api.ca
            remedy = f"check its address and its certificate authority {ca if isinstance(ca, str) else ''}".rstrip()
            raise ProviderError(f"cannot talk to the API server at {self._api}: {reason}; {remedy}") from error


def _quote(value: str) -> str:
    return "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"%{byte:02X}" for byte in value.encode())
