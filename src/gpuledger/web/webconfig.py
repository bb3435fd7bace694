"""The web configuration file: TLS and basic authentication, in the format of Prometheus exporters, and own views.

The file is a subset of exporter-toolkit's, and has one section more. An option that is not supported is an error: none
is ignored silently.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from importlib.util import find_spec
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Generic, TypeVar

from gpuledger.config import parsers, yamlfile
from gpuledger.config.yamlfile import Node, optional
from gpuledger.errors import ConfigError, GpuledgerError
from gpuledger.runtime.statelog import StateLog

T = TypeVar("T")

log = logging.getLogger(__name__)

LARGEST_FILE = 1_000_000
"""Characters. The file may contain certificates; a larger one would take seconds to parse."""
RETRY_S = 5.0
"""A failed load is retried without a change too: the process may have run out of file descriptors."""
VERSIONS = ("TLS12", "TLS13")
_SECTIONS = ("tls_server_config", "http_server_config", "basic_auth_users", "own_view")
_PATHS = ("cert_file", "key_file", "client_ca_file")
_INLINE = ("cert", "key", "client_ca")
_TLS_FIELDS = (*_PATHS, *_INLINE, "client_auth_type", "client_allowed_sans", "min_version", "max_version")
ROLE = parsers.OneOf("all", "own")
_PROXY = ("header", "addresses")
_BCRYPT = re.compile(r"\$2[abxy]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")


class ClientAuth(Enum):
    """How to treat client certificates."""

    NONE = "NoClientCert"
    VERIFY_IF_GIVEN = "VerifyClientCertIfGiven"
    REQUIRE_AND_VERIFY = "RequireAndVerifyClientCert"


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """TLS settings. A file takes precedence over inline PEM; paths are relative to the working directory."""

    cert_file: str = ""
    key_file: str = ""
    cert: str = ""
    key: str = field(default="", repr=False)
    client_auth: ClientAuth = ClientAuth.NONE
    client_ca_file: str = ""
    client_ca: str = ""
    allowed_sans: tuple[str, ...] | None = None
    min_version: str = "TLS12"
    max_version: str = "TLS13"

    @property
    def files(self) -> tuple[str, ...]:
        """The files that are read."""
        return tuple(path for path in (self.cert_file, self.key_file, self.client_ca_file) if path)


@dataclass(frozen=True, slots=True)
class KubernetesReviews:
    """Bearer tokens are reviewed by an API server."""

    sees_all: frozenset[str] = frozenset()
    """Users of tokens who see everything, such as `system:serviceaccount:monitoring:prometheus`."""
    kubeconfig: str = ""
    """The pod's service account if empty."""
    audiences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnView:
    """Who sees everything; all other clients see their own workloads, or have to log in."""

    sees_all: frozenset[str] = frozenset()
    """Users of basic authentication and of the proxy."""
    kubernetes: KubernetesReviews | None = None
    proxy_header: str = ""
    """A header of trusted proxies with the name of a user of this host, in lower case."""
    proxy_networks: tuple[IPv4Network | IPv6Network, ...] = ()

    def proxy_user(self, address: str, headers: Mapping[str, str]) -> str:
        """The user in the header of a trusted proxy; empty if there is none. Headers of other clients do not count."""
        user = headers.get(self.proxy_header, "")
        return user if user and any(ip_address(address) in network for network in self.proxy_networks) else ""


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The content of a web configuration file."""

    tls: TlsConfig | None = None
    http2: bool | None = None
    """Accepted for compatibility; clients are served over HTTP/1.1."""
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    """bcrypt hashes by user name."""
    own_view: OwnView | None = None
    """None if whoever is let in sees everything."""


def file_state(paths: Iterable[str]) -> Hashable:
    """A value that changes when one of the files is written, replaced or removed. Symbolic links are followed."""
    return tuple(_state(path) for path in paths)


def _state(path: str) -> Hashable:
    try:
        status = os.stat(path)  # noqa: PTH116 - called for every request
    except OSError as error:
        return error.errno
    except ValueError:  # contains a NUL byte; opening it reports the error
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class Reloaded(Generic[T]):
    """The result of `load`, refreshed whenever `state` changes. If a later load fails, the last valid value is kept.

    The first load happens in the constructor, which passes on its errors. Later loads happen in the thread that calls
    `get`; other threads get the previous value meanwhile.
    """

    def __init__(
        self,
        name: str,
        state: Callable[[], Hashable],
        load: Callable[[], T],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._state_of_files, self._load, self._monotonic = name, state, load, monotonic
        self._log = StateLog(log)
        self._failed_at: float | None = None
        self._refreshing = threading.Lock()
        self._state = state()  # before loading, so that a change in between is noticed next time
        self._value = load()

    def get(self) -> T:
        """The current value."""
        if self._refreshing.acquire(blocking=False):
            try:
                self._refresh()
            finally:
                self._refreshing.release()
        return self._value

    def _refresh(self) -> None:
        state = self._state_of_files()
        retry = self._failed_at is not None and self._monotonic() >= self._failed_at + RETRY_S
        if state == self._state and not retry:
            return
        self._state = state
        try:
            self._value = self._load()
        except (OSError, ValueError, GpuledgerError) as error:
            self._failed_at = self._monotonic()
            problem = f"reloading {self._name} failed: {error}; the last valid version is still used"
            self._log.change(self._name, str(error), problem, "")
        else:
            if self._failed_at is None:
                log.info("%s changed and was reloaded", self._name)
            self._failed_at = None
            self._log.change(self._name, "", "", f"{self._name} is valid again and was reloaded")


class WebFile:
    """A web configuration file that is loaded again whenever it changes. Raises ConfigError if the first load fails."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._config: WebConfig | None = None
        self._reloaded = Reloaded(path, lambda: file_state([path]), self._load)
        self.get = self._reloaded.get

    def _load(self) -> WebConfig:
        config = parse(yamlfile.load(self.path, LARGEST_FILE), os.path.dirname(self.path))  # noqa: PTH120 - text
        if self._config is not None and config == WebConfig() != self._config:
            # Half written, or comments only by mistake. Without users, every client would be let in.
            raise ConfigError(f"{self.path} is empty", "restart to serve without it")
        if self._config is not None and self._config.own_view is not None and config.own_view is None:
            raise ConfigError(f"{self.path} has no own_view any more", "restart to serve everything to all users")
        if config.users and find_spec("bcrypt") is None:
            raise ConfigError("basic_auth_users needs the bcrypt package",
                              "install it with `pip install '.[auth]'` in a checkout")  # fmt: skip
        self._config = config
        return config


def parse(root: Node | None, folder: str) -> WebConfig:
    """The configuration in a file of this folder. Raises ConfigError."""
    if root is None:
        return WebConfig()
    sections = root.fields("the web configuration", _SECTIONS)
    http2, users = None, {}
    if "http_server_config" in sections:
        fields = sections["http_server_config"].fields("http_server_config", ("http2",))
        http2 = fields["http2"].boolean("http2") if "http2" in fields else None
    if "basic_auth_users" in sections:
        users = {
            name: _hash(name, value) for name, _, value in sections["basic_auth_users"].entries("basic_auth_users")
        }
    tls = _tls(sections["tls_server_config"], folder) if "tls_server_config" in sections else None
    own_views = [node for name, _, node in root.entries("the web configuration") if name == "own_view"]
    own_view = _own_view(own_views[0], folder) if own_views else None  # an empty section counts, too
    return WebConfig(tls=tls, http2=http2, users=users, own_view=own_view)


def _own_view(section: Node, folder: str) -> OwnView:
    fields = section.fields("own_view", ("roles", "kubernetes", "proxy"))
    view = OwnView(_sees_all(fields))
    if "kubernetes" in fields:
        parts = fields["kubernetes"].fields("kubernetes", ("roles", "kubeconfig", "audiences"))
        kubeconfig = optional(parts, "kubeconfig", partial(os.path.join, folder), "")
        audiences = parts["audiences"].texts("audiences") if "audiences" in parts else ()
        view = replace(view, kubernetes=KubernetesReviews(_sees_all(parts), kubeconfig, tuple(audiences)))
    if "proxy" in fields:
        proxy = fields["proxy"].fields("proxy", _PROXY, required=_PROXY)
        networks = tuple(item.parsed(_network) for item in proxy["addresses"].items("addresses"))
        view = replace(view, proxy_header=proxy["header"].text("header").lower(), proxy_networks=networks)
    return view


def _sees_all(fields: Mapping[str, Node]) -> frozenset[str]:
    """The users with the role `all`."""
    roles = fields["roles"].entries("roles") if "roles" in fields else ()
    return frozenset(name for name, _, role in roles if role.parsed(ROLE) == "all")


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError:
        raise ValueError("is not an address or a network; write 10.0.0.5 or 10.0.0.0/24") from None


def _tls(section: Node, folder: str) -> TlsConfig | None:
    fields = section.fields("tls_server_config", _TLS_FIELDS)
    texts = {name: fields[name].text(name) for name in (*_PATHS, *_INLINE) if name in fields}
    if not texts and "client_auth_type" not in fields:
        return None
    for name in ("cert", "key"):
        if not (texts.get(name) or texts.get(f"{name}_file")):
            raise section.error(f"{name}_file is missing", f"name the server's {name}_file, or put its PEM in {name}")
    client_auth = ClientAuth.NONE
    if "client_auth_type" in fields:
        client_auth = _client_auth(fields["client_auth_type"])
    if client_auth is ClientAuth.NONE:
        for name in ("client_ca", "client_ca_file", "client_allowed_sans"):
            if name in fields:
                raise fields[name].error(f"{name} has no effect without client_auth_type",
                                         "set client_auth_type: RequireAndVerifyClientCert")  # fmt: skip
    oldest, newest = (
        _version(name, fields[name]) if name in fields else default
        for name, default in (("min_version", "TLS12"), ("max_version", "TLS13"))
    )
    if oldest > newest:
        raise section.error("min_version is above max_version")
    sans = fields["client_allowed_sans"].texts("client_allowed_sans") if "client_allowed_sans" in fields else None
    paths = {name: os.path.join(folder, text) for name, text in texts.items() if name in _PATHS}  # noqa: PTH118 - text
    return TlsConfig(
        **paths,
        **{name: text for name, text in texts.items() if name in _INLINE},
        client_auth=client_auth,
        allowed_sans=None if sans is None else tuple(sans),
        min_version=oldest,
        max_version=newest,
    )


def _client_auth(node: Node) -> ClientAuth:
    word = node.text("client_auth_type")
    try:
        return ClientAuth(word)
    except ValueError:
        supported = ", ".join(kind.value for kind in ClientAuth)
        raise node.error(f"client_auth_type {word} is not supported", f"use one of {supported}") from None


def _version(name: str, node: Node) -> str:
    version = node.text(name)
    if version not in VERSIONS:
        raise node.error(f"{name} {version} is not supported", "use TLS12 or TLS13")
    return version


def _hash(user: str, node: Node) -> str:
    """A bcrypt hash. The error does not show the value, which may be a password by mistake."""
    value = node.text("a password hash")
    if _BCRYPT.fullmatch(value) is None:
        raise node.error(f"the password of user {user} is not a bcrypt hash", "create one with `htpasswd -nBC 10 USER`")
    return value
