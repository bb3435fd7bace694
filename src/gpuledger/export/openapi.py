"""The OpenAPI description: paths from openapi.json, and the schemas of records derived from their dataclasses."""

from __future__ import annotations

import json
from typing import Any

from gpuledger.view.codec import schemas
from gpuledger.view.history import Past
from gpuledger.view.schema import Snapshot

NAME = "openapi.json"


def completed(name: str, text: str) -> str:
    """The text of a file; openapi.json with the derived schemas added."""
    if name != NAME:
        return text
    description: dict[str, Any] = json.loads(text)
    description["components"]["schemas"] |= schemas(Snapshot, Past)
    return json.dumps(description, indent=2) + "\n"
