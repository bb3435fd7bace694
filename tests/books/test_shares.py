"""Splitting whole numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.books.shares import apportion, equally

WEIGHTS = st.dictionaries(st.integers(0, 20), st.integers(0, 10**12), min_size=1).filter(lambda w: any(w.values()))


@given(st.integers(0, 10**15), WEIGHTS)
def test_nothing_is_lost_and_nobody_is_off_by_one(total: int, weights: dict[int, int]) -> None:
    """The sum is exact, a weight of 0 gets 0, and each share is within 1 of the exact one."""
    shares = apportion(total, weights)

    whole = sum(weights.values())
    assert sum(shares.values()) == total
    assert all(abs(shares[key] * whole - total * weight) < whole for key, weight in weights.items())
    assert all(shares[key] == 0 for key, weight in weights.items() if weight == 0)


@given(st.integers(0, 10**4), WEIGHTS)
def test_the_largest_remainders_are_rounded_up(total: int, weights: dict[int, int]) -> None:
    """Nobody is rounded up before somebody with a larger remainder, or with the same one and a smaller key."""
    shares = apportion(total, weights)

    whole = sum(weights.values())
    up = {key: shares[key] - total * weight // whole for key, weight in weights.items()}
    order = sorted(weights, key=lambda key: (-(total * weights[key] % whole), key))
    assert [up[key] for key in order] == sorted(up.values(), reverse=True)


@given(st.integers(0, 10**6), WEIGHTS, st.integers(1, 1000), st.randoms())
def test_order_and_scale_do_not_matter(total: int, weights: dict[int, int], times: int, random: object) -> None:
    """Only proportions count, and equal remainders are settled by key."""
    keys = list(weights)
    random.shuffle(keys)  # type: ignore[attr-defined]  # a random.Random

    assert apportion(total, {key: weights[key] * times for key in keys}) == apportion(total, weights)


def test_ties_go_in_the_order_of_keys() -> None:
    """The first keys get what is left over."""
    assert equally(5, [3, 1, 2]) == {1: 2, 2: 2, 3: 1}
    assert apportion(2, {"b": 1, "a": 1, "c": 1}) == {"a": 1, "b": 1, "c": 0}
    assert apportion(200_000, {"a": 60, "b": 40}) == {"a": 120_000, "b": 80_000}


def test_a_small_share_with_the_largest_remainder_is_rounded_up() -> None:
    """Not the largest share: of 5.01 and 0.99 the second has the millijoule that is left."""
    assert apportion(6, {"a": 501, "b": 99}) == {"a": 5, "b": 1}


def test_no_weights_is_an_error() -> None:
    """It would lose the total; and there is no negative energy."""
    for weights in ({}, {"a": 0}):
        with pytest.raises(ValueError, match="cannot split 7"):
            apportion(7, weights)
    with pytest.raises(ValueError, match="cannot split -1"):
        apportion(-1, {"a": 1})
