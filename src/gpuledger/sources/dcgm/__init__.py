"""Process statistics of DCGM, shown beside gpuledger's own numbers and never used by the books.

- `library`: libdcgm, its structures and errors
- `session`: a connection to DCGM inside this process or to an nv-hostengine
- `collector`: reads the statistics in a thread of its own

The address is parsed here, so that the configuration does not load the binding.
"""

from __future__ import annotations

import re

UNIX = "unix://"
HOST = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")


def parse_hostengine(text: str) -> str:
    """The address of an nv-hostengine, checked: HOST, HOST:PORT, unix:///PATH or empty."""
    if text and not _is_address(text):
        raise ValueError("is no address; write it as localhost, 10.0.0.1:5555 or unix:///tmp/nv-hostengine")
    return text


def _is_address(text: str) -> bool:
    if text.startswith(UNIX):
        return text.startswith(f"{UNIX}/")
    match = HOST.fullmatch(text)
    return match is not None and (match[1] is None or 1 <= int(match[1]) <= 65535)
