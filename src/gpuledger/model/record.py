"""The `dataclass` of records that are created in every tick: frozen for the type checker, plain at run time.

Python sets each field of a frozen record through `object.__setattr__`, which takes three times as long.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool = False, **options: Any) -> Callable[[type], type]:
        """As in the standard library, with the same hash."""
        return dataclasses.dataclass(unsafe_hash=frozen, **options)


__all__ = ["dataclass"]
