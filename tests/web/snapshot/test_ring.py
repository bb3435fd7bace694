"""Numbers over the last so many moments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.web.snapshot.history import Ring

MOMENTS = st.lists(
    st.dictionaries(st.sampled_from("abcd"), st.integers(-100, 100) | st.none(), max_size=4), max_size=40
)


@given(MOMENTS, st.integers(1, 9))
def test_it_holds_the_last_moments(moments: list[dict[str, int | None]], points: int) -> None:
    """Every value of the last moments in its place, null where there was none; nobody who was not in one of them."""
    ring = Ring(points, 1, 4)
    for time, moment in enumerate(moments):
        ring.add(time, {name: (value,) for name, value in moment.items()})

    kept = moments[-points:]
    assert ring.times() == list(range(len(moments)))[-points:]
    names = {name for moment in kept for name in moment}
    assert ring.rows() == {name: [[moment.get(name) for moment in kept]] for name in names}


def test_the_longest_silent_makes_room() -> None:
    """Two places: a third gets that of whoever was silent longest, and none while both are there."""
    ring = Ring(5, 1, 2)
    ring.add(1, {"a": [1], "b": [1]})
    ring.add(2, {"a": [2], "b": [2], "c": [2]})
    assert ring.rows().keys() == {"a", "b"}
    ring.add(3, {"a": [3]})
    ring.add(4, {"c": [4]})

    assert ring.rows() == {"a": [[1, 2, 3, None]], "c": [[None, None, None, 4]]}


def test_a_cleared_one_is_as_new() -> None:
    """Nothing of before is left, and it counts from the start."""
    ring = Ring(2, 2, 2)
    for time in range(3):
        ring.add(time, {"a": [time, 0.5]})
    ring.clear()
    assert (ring.times(), ring.rows()) == ([], {})
    ring.add(9, {"b": [None, 0.25]})

    assert (ring.times(), ring.rows()) == ([9], {"b": [[None], [0.25]]})


def test_a_row_has_all_columns() -> None:
    """One value too few is a mistake of ours."""
    with pytest.raises(ValueError, match="zip"):
        Ring(2, 2, 2).add(1, {"a": [1]})
