"""What the Kubernetes API says in JSON, in any shape: what is not as it should be is read as empty.

Pure, and nothing but an HttpError is raised, whatever comes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from gpuledger.httpclient import HttpError

LONGEST_TEXT = 512
"""Characters. An image's name with its tag and digest can have about that many; all others are shorter."""


def read_json(body: bytes) -> Mapping[str, object]:
    """A JSON object; empty for other JSON."""
    try:
        return mapping(json.loads(body))
    except (ValueError, RecursionError):
        raise HttpError(f"did not answer in JSON but with {body[:60]!r}") from None


def text(value: object) -> str:
    """A text that can be printed in UTF-8, which half a surrogate pair in JSON cannot; empty for what is none."""
    return value[:LONGEST_TEXT].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def line(value: object) -> str:
    """A short text of one line, for messages."""
    return " ".join(text(value)[:200].split())


def mapping(value: object) -> Mapping[str, object]:
    """A JSON object; empty for what is none."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Mapping[str, object]]:
    """The JSON objects of an array; none for what is none."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def texts(value: object) -> dict[str, str]:
    """The texts of a JSON object by name; none for what is none."""
    return {text(key): text(entry) for key, entry in mapping(value).items() if isinstance(entry, str)}
