"""The way to the API server: where it is, who we say we are, and its answer as it arrives.

Tokens and certificates are read anew for each request, since clusters rotate them.
"""

from __future__ import annotations

import os
import re
import socket
import time
from binascii import a2b_base64
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuledger.errors import ConfigError
from gpuledger.httpclient import HEAD_LIMIT, HttpError, parse_head
from gpuledger.owners.kubejson import mapping, text
from gpuledger.owners.provider import ProviderError

FILE_LIMIT = 1 << 20
ANSWER_LIMIT = 32 << 20
"""Bytes of a list, or of one event. A pod has about 10 kB, and never more than 1.5 MB in the server's store."""
CHUNK = re.compile(rb"([0-9A-Fa-f]{1,7})[ \t]*(?:;[^\r\n]*)?\r\n")

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SERVER = re.compile(r"(https?)://(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+))(?::(\d{1,5}))?(/[\w./~-]*)?", re.ASCII)
HOST = re.compile(r"[\w.:%-]{1,253}", re.ASCII)
TOKEN = re.compile(r"[!-~]+")


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


class Answer:
    """An HTTP answer that is fed as it arrives."""

    def __init__(self) -> None:
        self.status = 0
        self.done = False
        self.body = b""
        """As far as it is there."""
        self._raw = bytearray()
        self._left: int | None = None
        self._chunked = False

    def feed(self, data: bytes) -> None:
        """Take in some bytes; none mean that the connection has ended."""
        self._raw += data
        if self.status or self._has_head():
            self._chunks() if self._chunked else self._plain()
        if len(self.body) + len(self._raw) > ANSWER_LIMIT:
            raise HttpError(f"sent more than {ANSWER_LIMIT >> 20} MiB at once")
        if not data and not self.done:
            if not self.status or self._chunked or self._left is not None:
                raise HttpError("ended in the middle of an answer")
            self.done = True

    def lines(self) -> list[bytes]:
        """Take the lines out of the body that are complete."""
        *lines, self.body = self.body.split(b"\n")
        return [line for line in lines if line.strip()]

    def _has_head(self) -> bool:
        head, end, rest = self._raw.partition(b"\r\n\r\n")
        if not end:
            if len(head) > HEAD_LIMIT or head[:7] != b"HTTP/1."[: len(head)]:
                raise HttpError(f"did not answer in HTTP but with {bytes(head[:60])!r}")
            return False
        self.status, headers = parse_head(bytes(head))
        self._raw = rest
        self._chunked = "chunked" in headers.get("transfer-encoding", "")
        length = headers.get("content-length", "")
        self._left = int(length) if length.isdecimal() and len(length) < 16 else None
        self.done = self._left == 0
        return True

    def _plain(self) -> None:
        taken = bytes(self._raw[: self._left])
        self._raw.clear()
        self.body += taken
        if self._left is not None:
            self._left -= len(taken)
            self.done = self._left == 0

    def _chunks(self) -> None:
        parts = [self.body]
        while not self.done and (found := CHUNK.match(bytes(self._raw[:1024]))):
            size, start = int(found[1], 16), found.end()
            if size and len(self._raw) < start + size + 2:
                break
            self.done = size == 0
            parts.append(bytes(self._raw[start : start + size]))
            del self._raw[: start + size + 2]
        else:
            if not self.done and (len(self._raw) >= 1024 or b"\n" in self._raw):
                raise HttpError(f"sent {bytes(self._raw[:60])!r} where the size of a chunk belongs")
        self.body = b"".join(parts)


@dataclass(slots=True)
class Stream:
    """A connection and what has come over it."""

    connection: socket.socket
    opened_at: float
    answer: Answer = field(default_factory=Answer)

    def more(self, timeout_s: float) -> None:
        """Take in what comes next; TimeoutError when nothing does."""
        self.connection.settimeout(timeout_s)
        self.answer.feed(self.connection.recv(1 << 18))
