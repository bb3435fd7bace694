"""Slots in which only one of two processes works, found by activity and samples."""

from __future__ import annotations

import pytest

from gpuledger.ledger.rows import Row
from gpuledger.model import Resident
from gpuledger.shares.pauses import EVERY, Pauses, PowerSlot
from tests.builders import GPU

STEADY, BURSTS = (Row(GPU, GPU.uuid, pid, 1, pid, Resident(pid, "compute")) for pid in (1, 2))
ONE = (0.95, 0.46, 0.0, 0.0, 0.0, 0.0, 0.0, 0.35)
BOTH = (0.9, 0.3, 0.3, 0.0, 0.0, 0.08, 0.0, 0.2)


def slot(activity: tuple[float, ...], sampled: set[Row], missed: set[Row]) -> PowerSlot:
    """A fifth of a second."""
    return PowerSlot(activity, 250.0 if activity is ONE else 510.0, 0.2, frozenset(sampled), frozenset(missed))


def second(*, seen: bool = True) -> list[PowerSlot]:
    """The second process works in the first two slots and is sampled in the second of them, or in the last."""
    middle, last = ({BURSTS}, {STEADY}) if seen else (set[Row](), {STEADY, BURSTS})
    missed = {BURSTS} if seen else set[Row]()
    return [
        slot(BOTH, set(), set()),
        slot(BOTH, middle, set()),
        slot(ONE, set(), missed),
        slot(ONE, set(), missed),
        slot(ONE, last, missed),
    ]


def test_the_steady_process_is_found() -> None:
    """Its slots, but for the last of each run, whose power may be that of the next state."""
    pauses = Pauses()

    found = [dict(pauses.observe(second(), [STEADY, BURSTS])) for _ in range(5 * EVERY)]

    returned = [slot for singles in found for slots in singles.values() for slot in slots]
    assert all(slot.activity is ONE for slot in returned)
    assert len(returned) == len(set(returned)) == 2 * len(found), "each slot once"
    assert {row for singles in found for row in singles} == {STEADY}
    assert len(found[-1][STEADY]) == 2 * EVERY


def test_a_process_that_is_sampled_in_both_states_is_not_absent() -> None:
    """Both work all the time; the activity changes for another reason."""
    pauses = Pauses()

    assert not any(pauses.observe(second(seen=False), [STEADY, BURSTS]) for _ in range(4 * EVERY))


@pytest.mark.parametrize("slots", [[], [slot(ONE, {STEADY}, {BURSTS})] * 5])
def test_similar_slots_have_no_states(slots: list[PowerSlot]) -> None:
    """Nothing pauses, or there are no slots."""
    pauses = Pauses()

    assert not any(pauses.observe(slots, [STEADY, BURSTS]) for _ in range(4 * EVERY))


def test_slots_of_other_processes_are_forgotten() -> None:
    """What was observed with other processes says nothing about these."""
    pauses = Pauses()
    for _ in range(EVERY - 1):
        pauses.observe(second(), [STEADY])

    assert pauses.observe(second(), [STEADY, BURSTS]) == {}
