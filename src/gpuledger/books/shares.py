"""Splitting a whole number without losing or inventing anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

K = TypeVar("K", bound=Any)  # keys that can be put in order


def apportion(total: int, weights: Mapping[K, int]) -> dict[K, int]:
    """`total` in proportion to the weights, exactly: largest remainder, equal remainders in the order of the keys.

    A weight of 0 gets 0, and nobody is off by 1 or more. At least one weight must be above 0.
    """
    whole = sum(weights.values())
    if total < 0 or whole <= 0:
        raise ValueError(f"cannot split {total} by weights that add up to {whole}")
    shares = {key: total * weight // whole for key, weight in weights.items()}
    left = total - sum(shares.values())
    if not left:
        return shares
    for key in sorted(weights, key=lambda key: (-(total * weights[key] % whole), key))[:left]:
        shares[key] += 1
    return shares


def equally(total: int, keys: Iterable[K]) -> dict[K, int]:
    """`total` among all keys alike, to within 1."""
    return apportion(total, dict.fromkeys(keys, 1))
