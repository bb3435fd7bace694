"""Rounded columns whose rows still add up to the rounded total. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from math import floor, isclose, log10

DIGITS = 4
"""Significant digits of a total."""
MOST_DECIMALS = 6
NOISE = 1e-9
"""Rounding error of a sum of floats, relative to the sum."""


def adds_up(values: Sequence[float | None], total: float | None) -> bool:
    """Whether the known values add up to the total."""
    return total is not None and isclose(sum([value or 0.0 for value in values]), total, rel_tol=NOISE, abs_tol=NOISE)


def decimals_of(total: float) -> int:
    """The decimals that show a total with four significant digits."""
    return min(MOST_DECIMALS, max(0, DIGITS - 1 - floor(log10(total)))) if total > 0 else DIGITS - 1


def rounded(values: Sequence[float | None], total: float | None, decimals: int) -> list[str]:
    """The values as text, then the total; `-` if unknown.

    If the values add up to the total, so do the rounded ones (largest remainder): values are rounded down, and those
    with the largest remainders get one unit of the last decimal more, until the rounded total is reached.
    """
    scale = 10**decimals
    units = [None if value is None else round(value * scale) for value in (*values, total)]
    if total is not None and adds_up(values, total):
        exact = {n: value * scale for n, value in enumerate(values) if value is not None}
        for n, amount in exact.items():
            units[n] = floor(amount + NOISE)
        missing = round(total * scale) - sum([floor(amount + NOISE) for amount in exact.values()])
        by_remainder = sorted(exact, key=lambda n: floor(exact[n] + NOISE) - exact[n])
        for n in by_remainder[: max(0, missing)]:
            units[n] = floor(exact[n] + NOISE) + 1
    return ["-" if unit is None else f"{unit / scale:,.{decimals}f}" for unit in units]


def sum_of_texts(texts: Sequence[str]) -> str:
    """The sum of rounded numbers, so that readers can check it."""
    known = [Decimal(text.replace(",", "")) for text in texts if text != "-"]
    return f"{sum(known):,}" if known else "-"
