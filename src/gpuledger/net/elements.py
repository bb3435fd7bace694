"""Limits the number of elements in answers of other programs.

Tiny elements take up to a hundred times their size in memory, so that a limit of bytes alone does not limit memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

MOST_ELEMENTS = 500_000
"""Of JSON: values that take up to 130 bytes each. A pod of the API server has about 1,000."""


class ElementsError(ValueError):
    """An answer has too many elements."""


class Elements:
    """Counts the elements of one answer."""

    def __init__(self, most: int = MOST_ELEMENTS) -> None:
        self._most, self._count = most, 0

    def add(self, count: int = 1) -> None:
        """Count elements before they are created. Raises ElementsError."""
        self._count += count
        if self._count > self._most:
            raise ElementsError(f"more than {self._most:,} elements")


def load_json(
    body: bytes, *, errors: str = "strict", object_hook: Callable[[dict[str, Any]], Any] | None = None
) -> Any:
    """Parse JSON. Raises ElementsError, ValueError or RecursionError.

    Each value but the first follows a comma or an opening bracket; those in texts are counted too.
    """
    Elements().add(sum(body.count(mark) for mark in (b",", b"[", b"{")))
    return json.loads(body.decode("utf-8", errors), object_hook=object_hook)
