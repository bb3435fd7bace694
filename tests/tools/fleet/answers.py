"""Answers of Prometheus, as it writes them."""

from __future__ import annotations

import json
import math
from typing import Any


def vector(*series: tuple[dict[str, str], float], **more: Any) -> bytes:
    """An instant vector, as Prometheus writes it."""
    result = [{"metric": names, "value": [1700000000.5, _text(value)]} for names, value in series]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}, **more}).encode()


def _text(value: float) -> str:
    return (
        "NaN" if math.isnan(value) else "+Inf" if value == math.inf else "-Inf" if value == -math.inf else repr(value)
    )
