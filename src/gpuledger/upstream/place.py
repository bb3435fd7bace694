"""Where a dcgm-exporter's metrics are: a page or a file."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.httpclient import Address, holds_login, parse_url


@dataclass(frozen=True, slots=True)
class Place:
    """A page of a server, or else a file."""

    address: Address | None = None
    target: str = ""
    path: str = ""

    def __str__(self) -> str:
        return self.path or f"http{'s' * bool(self.address and self.address.tls)}://{self.address}{self.target}"


def parse_place(text: str) -> Place:
    """Of `http://host:9400/metrics`, `https://...`, a path or `file:///path`; ValueError says what would be right."""
    path = text.removeprefix("file://")
    if path.startswith("/") and "\0" not in path:
        return Place(path=path)
    if holds_login(text):
        raise ValueError("holds a user name or password, which is not supported; use a dcgm-exporter without a login")
    address, target = parse_url(text) or (None, "")
    if address is None:
        raise ValueError("is no page and no file; write http://localhost:9400/metrics or /run/prometheus/dcgm.prom")
    target = target.partition("#")[0]
    return Place(address, target if target.strip("/") else "/metrics")
