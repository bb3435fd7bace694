"""Access to the Kubernetes API server: its address, and the credentials from a service account or a kubeconfig."""

from __future__ import annotations

import json
import os
import re
from binascii import a2b_base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuledger.errors import ConfigError, ProviderError
from gpuledger.net.address import Address
from gpuledger.net.answers import load_json
from gpuledger.net.http import NO_TLS, Client
from gpuledger.net.jsonvalues import as_dict, as_dicts, as_text
from gpuledger.net.tls import Pem, TlsSettings

FILE_LIMIT = 1 << 20
ANSWER_LIMIT = 1 << 20
"""Of one object."""
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SERVER = re.compile(r"(https?)://(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+))(?::(\d{1,5}))?(/[\w./~-]*)?", re.ASCII)
HOST = re.compile(r"[\w.:%-]{1,253}", re.ASCII)
TOKEN = re.compile(r"[!-~]+")
UNSUPPORTED = ("exec", "auth-provider", "username", "password", "proxy-url")


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """Address of the API server and credentials for it."""

    address: Address
    tls: TlsSettings = NO_TLS
    path: str = ""
    """The part of all URLs before `/api`."""
    token_file: str = ""
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        host, port = self.address.host, self.address.port
        if not HOST.fullmatch(host) or not 0 < port < 1 << 16:
            raise ConfigError(f"{host[:200]!r}, port {port} is not an address", "give a host and a port")

    @classmethod
    def in_cluster(cls, environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> ApiAccess:
        """Access with the service account of this pod."""
        host, port = (environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if not host:
            raise ConfigError("KUBERNETES_SERVICE_HOST is not set, so this is not a pod", "give a kubeconfig file")
        address = Address(host=host.strip("[]"), port=int(port) if port.isdecimal() else 443, tls=True)
        return cls(address, TlsSettings(str(account / "ca.crt"), strict=False), token_file=str(account / "token"))

    @classmethod
    def from_kubeconfig(cls, path: Path) -> ApiAccess:
        """Access with the current context of a kubeconfig file."""
        import yaml

        try:
            with path.open("rb") as file:
                config = as_dict(yaml.safe_load(file.read(FILE_LIMIT)))
            context = _entry(config, "context", config.get("current-context"))
            cluster, user = (_entry(config, kind, context.get(kind)) for kind in ("cluster", "user"))
            server = SERVER.fullmatch(str(cluster.get("server")))
            if server is None:
                raise ValueError(f"server {str(cluster.get('server'))[:200]!r} is not https://host:port")
            for key in UNSUPPORTED:
                if user.get(key) or cluster.get(key):
                    raise ValueError(f"{key} is not supported; use a token or a client certificate")
            token_file = user.get("tokenFile")
            port = int(server[4] or (443 if server[1] == "https" else 80))
            return cls(
                Address(host=server[2] or server[3], port=port, tls=server[1] == "https"),
                TlsSettings(
                    ca=_pem(cluster, "certificate-authority", path),
                    certificate=_pem(user, "client-certificate", path),
                    key=_pem(user, "client-key", path),
                    verify=cluster.get("insecure-skip-tls-verify") is not True,
                    server_name=as_text(cluster.get("tls-server-name")),
                    strict=False,
                ),
                path=(server[5] or "").rstrip("/"),
                token_file=str(path.parent / token_file) if isinstance(token_file, str) and token_file else "",
                token=str(user.get("token") or ""),
            )
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}", "name a kubeconfig file") from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(f"cannot use {path}: {reason}", "name a kubeconfig file that kubectl accepts") from None

    def client(self) -> Client:
        """An HTTP client for the server."""
        tls = self.tls if self.address.tls else NO_TLS
        return Client(self.address, name=f"the API server at {self.address}", tls=tls)

    def ask(self, path: str, timeout_s: float, body: object = None) -> tuple[int, dict[str, Any]]:
        """Status and JSON object of a response; POST if there is a body. Raises HttpError or ProviderError."""
        headers = (*self.headers(), "Content-Type: application/json")
        sent = None if body is None else json.dumps(body).encode()
        with self.client().stream(self.path + path, timeout_s, ANSWER_LIMIT, *headers, body=sent) as response:
            status, answer = response.status, response.body()
        try:
            return status, as_dict(load_json(answer))
        except (ValueError, RecursionError):
            return status, {}

    def headers(self) -> tuple[str, ...]:
        """Headers of a request. A token file is read each time, because clusters rotate tokens."""
        token = read_token(self.token_file) if self.token_file else self.token
        if token and not TOKEN.fullmatch(token):
            raise ProviderError(f"{self.token_file or 'the kubeconfig'} has no valid token", "write one there", "auth")
        return ("Accept: application/json", *([f"Authorization: Bearer {token}"] if token else ()))


def _entry(config: Mapping[str, object], kind: str, name: object) -> Mapping[str, object]:
    for entry in as_dicts(config.get(f"{kind}s")):
        if name is not None and entry.get("name") == name:
            return as_dict(entry.get(kind))
    raise ValueError(f"no {kind} named {name!r}")


def _pem(part: Mapping[str, object], key: str, path: Path) -> Pem:
    data, file = part.get(f"{key}-data"), part.get(key)
    if data:
        return a2b_base64(str(data))
    return str(path.parent / file) if isinstance(file, str) and file else b""


def read_token(path: str) -> str:
    """The token in a file. Raises ProviderError."""
    try:
        with Path(path).open("rb") as file:
            return file.read(FILE_LIMIT).decode("ascii", "replace").strip()
    except OSError as error:
        raise ProviderError(
            f"cannot read {path}: {error.strerror}", "mount the service account's token", "auth"
        ) from error
