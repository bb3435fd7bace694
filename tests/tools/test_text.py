"""Rounded numbers of people: rows add up to the total, and totals have four digits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.tools.text import decimals_of, rounded


@given(st.lists(st.floats(0, 1e7), min_size=1, max_size=30), st.integers(0, 4))
def test_rounded_rows_add_up_to_the_rounded_total(values: list[float], decimals: int) -> None:
    """To the last decimal, and each row is off by less than one unit of it."""
    *rows, total = [float(text.replace(",", "")) for text in rounded(values, sum(values), decimals)]

    assert round(sum(rows) * 10**decimals) == round(total * 10**decimals)
    assert total == pytest.approx(sum(values), abs=0.51 / 10**decimals)
    for value, shown in zip(values, rows, strict=True):
        assert abs(value - shown) < 1.01 / 10**decimals


def test_values_that_do_not_add_up_are_rounded_alone() -> None:
    """And unknown values are a dash."""
    assert rounded([1.26, None, 2.0], 2.5, 1) == ["1.3", "-", "2.0", "2.5"]
    assert rounded([1.26, None], None, 1) == ["1.3", "-", "-"]


@pytest.mark.parametrize(
    ("total", "decimals"), [(0.0, 3), (140_430, 0), (500.709, 1), (10, 2), (9.99, 3), (0.0123, 5), (1e-9, 6)]
)
def test_totals_have_four_digits(total: float, decimals: int) -> None:
    """Up to six decimals."""
    assert decimals_of(total) == decimals
