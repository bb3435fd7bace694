"""Seeds of random histories: the same in every run, or new ones from the variable SEED."""

from __future__ import annotations

import os


def seeds(count: int) -> range:
    """So many seeds, from 0 or from SEED."""
    first = int(os.environ.get("SEED", "0"))
    return range(first, first + count)
