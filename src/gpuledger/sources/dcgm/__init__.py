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
    match = HOST.fullmatch(text)
    is_tcp = match is not None and 1 <= int(match[1] or 1) <= 65535
    if text and not is_tcp and not text.startswith(f"{UNIX}/"):
        raise ValueError("is not an address; write it as localhost, 10.0.0.1:5555 or unix:///tmp/nv-hostengine")
    return text
