"""Our own names."""

from __future__ import annotations

from gpuledger.catalog import CATALOG
from gpuledger.catalog.dialects.table import Choices
from gpuledger.catalog.family import Family


def families(_: Choices) -> tuple[Family, ...]:
    """The whole catalog."""
    return CATALOG
