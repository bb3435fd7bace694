"""Refuses browsers that DNS rebinding has led here.

A site can point its own name to the address of this host. To a browser, the exporter's pages then belong to that site,
whose scripts may read them. Only the Host header shows it: it contains the name of the site.

Clients other than browsers may use any name. Browsers send Accept-Language, which no script can remove. Over HTTPS,
where a site needs a certificate for its name, they also send Sec-Fetch-Site, which no script can add.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from gpuledger.web.http import Request, Response

INTERNAL = ("home.arpa", "internal", "lan", "local", "localhost", "svc")
"""Domains of private networks and clusters, which no site can register."""

_PORT = re.compile(r":[0-9]*$")
_IP_ADDRESS = re.compile(r"[0-9.]+|\[.*\]")


class HostCheck:
    """Middleware that lets browsers read the pages only under names of these domains and under IP addresses."""

    def __init__(self, pages: Callable[[Request], Response], domains: Iterable[str]) -> None:
        self._pages = pages
        self._domains = tuple(f".{domain.strip('.').lower()}" for domain in (*domains, *INTERNAL))

    def __call__(self, request: Request) -> Response:
        """The page, or 403."""
        name = _PORT.sub("", request.headers.get("host", "")).rstrip(".").lower()
        if not _is_browser(request) or self._is_local(name):
            return self._pages(request)
        return Response.text(403, f"browsers may not use the name {name}, which may belong to another site; "
                                  f"use an IP address, or start gpuledger with --web.allowed-hosts={name}")  # fmt: skip

    def _is_local(self, name: str) -> bool:
        return "." not in name or _IP_ADDRESS.fullmatch(name) is not None or f".{name}".endswith(self._domains)


def _is_browser(request: Request) -> bool:
    return "accept-language" in request.headers and "sec-fetch-site" not in request.headers


def own_domains(host_name: str, resolv_conf: str) -> list[str]:
    """The full name of this host, and the domains in which it looks up names."""
    lines = [line.split() for line in resolv_conf.splitlines()]
    names = [name for words in lines if words[:1] in (["search"], ["domain"]) for name in words[1:]]
    return [name for name in (host_name, *names) if "." in name.strip(".")]
