"""Metrics of an exporter, once they contain an expected line."""

from __future__ import annotations

import re
import time
from urllib.request import urlopen


def metrics(port: int, wanted: str, within_s: float = 30) -> str:
    """Wait until a line with this prefix is in the metrics of this host; return them."""
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
