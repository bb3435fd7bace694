"""Where a dcgm-exporter's metrics are: a page or a file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuledger.httpclient import Address

URL = re.compile(
    r"(https?)://(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9_.-]{1,253}))(?::([0-9]{1,5}))?((?:/[!-~]*)?)", re.ASCII
)
PORTS = {"http": 80, "https": 443}


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
    authority = text.partition("://")[2].partition("/")[0]
    if "@" in authority:
        raise ValueError("holds a user name or password, which is not supported; use a dcgm-exporter without a login")
    found = URL.fullmatch(text)
    if found is None or not 0 < int(found[4] or 1) < 1 << 16:
        raise ValueError("is no page and no file; write http://localhost:9400/metrics or /run/prometheus/dcgm.prom")
    scheme, target = found[1], found[5].partition("#")[0]
    address = Address(host=found[2] or found[3], port=int(found[4] or PORTS[scheme]), tls=scheme == "https")
    return Place(address, target if target.strip("/") else "/metrics")
