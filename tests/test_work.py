"""The work of a tick, counted in Python calls, which do not depend on the load of the machine."""

from __future__ import annotations

import pytest
from bench import exporters, work


@pytest.fixture(scope="module")
def measured() -> dict[tuple[int, int], work.Work]:
    """All sizes, measured at the same time."""
    exporters.WORK.mkdir(exist_ok=True)
    exporters.take_sources()
    return work.measure(instructions=False)


@pytest.mark.parametrize("size", work.SIZES)
def test_calls_of_a_tick(measured: dict[tuple[int, int], work.Work], size: tuple[int, int]) -> None:
    """A change that makes a tick a tenth more expensive has to say so in bench/work.py."""
    most = work.MOST_CALLS[size]
    assert most / 2 <= measured[size].calls <= most
