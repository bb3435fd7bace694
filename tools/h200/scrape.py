"""An exporter's page, as soon as it has what is waited for."""

from __future__ import annotations

import re
import time
from urllib.request import urlopen


def metrics(port: int, wanted: str, within_s: float = 30) -> str:
    """The page on this host, once it has a line that begins so."""
    end = time.monotonic() + within_s
    body = ""
    while time.monotonic() < end:
        time.sleep(0.3)
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                body = str(answer.read().decode())
        except OSError:
            continue
        if re.search(f"^{wanted}", body, re.MULTILINE):
            return body
    raise AssertionError(f"no {wanted} in\n{body}")
