"""Values in JSON of other programs. A value of an unexpected type is replaced by an empty one. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuledger.model.plaintext import one_line, plain

LONGEST_TEXT = 512
"""Characters. The longest text is the name of an image with its tag and digest."""


def as_dict(value: object) -> dict[str, Any]:
    """The JSON object."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """The JSON array."""
    return value if isinstance(value, list) else []


def as_dicts(value: object) -> list[dict[str, Any]]:
    """The JSON objects in an array."""
    return [entry for entry in as_list(value) if isinstance(entry, dict)]


def as_text(value: object) -> str:
    """The text as a label value: short and printable."""
    return plain(value[:LONGEST_TEXT]) if isinstance(value, str) else ""


def as_texts(values: Iterable[object]) -> list[str]:
    """The texts that are not empty."""
    return [text for text in map(as_text, values) if text]


def as_text_map(value: object) -> dict[str, str]:
    """The texts of a JSON object by key."""
    return {as_text(key): as_text(entry) for key, entry in as_dict(value).items() if isinstance(entry, str)}


def as_line(value: object) -> str:
    """A message as one line of limited length."""
    return one_line(value) if isinstance(value, str) else ""
