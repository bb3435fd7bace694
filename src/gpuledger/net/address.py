"""Addresses of servers: URLs, Docker's notation and listen addresses. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

DOCKER_TLS_PORT = 2376
URL = re.compile(
    r"(https?)://(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9_.-]{1,253}))(?::([0-9]{1,5}))?((?:/[!-~]*)?)", re.ASCII
)
REDACTED = re.compile(r"([^:/@]*://|)(\S*@)?([^?;\s]*)([?;]\S*)?")  # an @ after the host hides too much, not too little
LISTEN_ADDRESS = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[A-Za-z0-9_.-]*)):(?P<port>[0-9]{1,5})"
)
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens: the path of a unix socket, or a host and a port."""

    path: str = ""
    host: str = ""
    port: int = 0
    tls: bool = False

    @property
    def authority(self) -> str:
        """`host:port` as in a URL or a Host header, with IPv6 addresses in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if host else "localhost"

    def __str__(self) -> str:
        return self.path or self.authority


def parse_address(url: str) -> Address:
    """Parse `unix:///path`, a bare path, `tcp://host:port`, `http://` or `https://`; ValueError for anything else."""
    scheme, separator, location = url.partition("://")
    path = url if not separator else location if scheme == "unix" else ""
    if path.startswith("/") and "\0" not in path:
        return Address(path=path)
    host, colon, port = location.rstrip("/").rpartition(":")
    is_host = scheme in ("tcp", "http", "https") and host and host.isascii() and host.isprintable() and "@" not in host
    if not is_host or not colon or not port.isdecimal() or not 0 < int(port[:6]) < 1 << 16 or len(port) > 5:
        raise ValueError(
            f"{redacted(url)!r} is not an address: give unix:///path, tcp://host:port or https://host:port"
        )
    return Address(host=host.strip("[]"), port=int(port), tls=scheme == "https" or int(port) == DOCKER_TLS_PORT)


def parse_url(text: str, port: int | None = None) -> tuple[Address, str] | None:
    """Address and path of an http or https URL; None for other text. `port` replaces the scheme's default port."""
    match = URL.fullmatch(text)
    if match is None or not 0 < int(match[4] or 1) < 1 << 16:
        return None
    scheme = match[1]
    port = int(match[4] or port or PORTS[scheme])
    return Address(host=match[2] or match[3], port=port, tls=scheme == "https"), match[5]


@dataclass(frozen=True, slots=True)
class Place:
    """The location of metrics: a URL or a file."""

    address: Address | None = None
    target: str = ""
    path: str = ""

    def __str__(self) -> str:
        return self.path or redacted(
            f"http{'s' * bool(self.address and self.address.tls)}://{self.address}{self.target}"
        )


def parse_place(text: str) -> Place:
    """Parse `http://host:9400/metrics`, `https://...`, a path or `file:///path`; ValueError says what is accepted."""
    path = text.removeprefix("file://")
    if path.startswith("/") and "\0" not in path:
        return Place(path=path)
    if has_credentials(text):
        raise ValueError(
            "contains a user name or password, which is not supported; use a dcgm-exporter without authentication"
        )
    address, target = parse_url(text) or (None, "")
    if address is None:
        raise ValueError(
            "is neither a URL nor a path; write http://localhost:9400/metrics or /run/prometheus/dcgm.prom"
        )
    target = target.partition("#")[0]
    return Place(address, target if target.strip("/") else "/metrics")


def quoted(value: str) -> str:
    """A value for the query of a URL."""
    return "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"%{byte:02X}" for byte in value.encode())


def has_credentials(url: str) -> bool:
    """Whether the URL contains a user name or a password."""
    return "@" in url.partition("://")[2].partition("/")[0]


def redacted(text: str) -> str:
    """A URL for messages: without user name, password and the values of parameters. Other text is unchanged."""
    match = REDACTED.fullmatch(text)
    if match is None:
        return text
    scheme, login, place, query = match.groups("")
    if query:
        pairs = (pair.partition("=") for pair in re.split("[&;]", query[1:]))
        query = query[0] + "&".join(f"{name}=***" if equals else "***" if scheme else name for name, equals, _ in pairs)
    return f"{scheme}{login and '***@'}{place}{query}"


def parse_listen_address(text: str) -> tuple[str, int]:
    """Host and port of a listen address such as `:9400`, `127.0.0.1:9400` or `[::1]:9400`."""
    match = LISTEN_ADDRESS.fullmatch(text)
    if match is None:
        mistake, fix = "expected HOST:PORT", "write for example :9400, 127.0.0.1:9400 or [::1]:9400"
        if "//" in text:
            mistake = "this is a URL"
        elif ":" not in text:
            mistake, fix = "the port is missing", f"write :{text}" if text.isdigit() else f"write {text or ''}:9400"
        elif text.count(":") > 1 and "[" not in text:
            mistake, fix = "an IPv6 address needs brackets", "write for example [::1]:9400"
        raise ValueError(f"is not a listen address: {mistake}; {fix}")
    port = int(match["port"])
    if port > 65535:
        raise ValueError("is not a listen address: the port is too large; choose one from 1 to 65535")
    return match["v6"] or match["host"], port
