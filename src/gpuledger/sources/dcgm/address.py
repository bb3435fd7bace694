"""The address of an nv-hostengine. Apart from the rest, so that the configuration loads no binding to check it."""

from __future__ import annotations

import re

UNIX = "unix://"


def parse_hostengine(text: str) -> str:
    """The address as given: HOST, HOST:PORT or unix:///PATH, or nothing. DCGM itself would only fail to connect."""
    if text and not (_is_path(text) if text.startswith(UNIX) else _is_host(text)):
        raise ValueError("is no address; write it as localhost, 10.0.0.1:5555 or unix:///tmp/nv-hostengine")
    return text


def _is_path(text: str) -> bool:
    return text.startswith(f"{UNIX}/")


def _is_host(text: str) -> bool:
    found = re.fullmatch(r"(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?", text)
    return found is not None and (found[1] is None or 1 <= int(found[1]) <= 65535)
