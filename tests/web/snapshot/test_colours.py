"""Colours of owners."""

from __future__ import annotations

import json
from dataclasses import replace

from gpuledger.model import ContainerUse, Owner, Tick
from gpuledger.web.snapshot.build import snapshot
from gpuledger.web.snapshot.codec import encode
from gpuledger.web.snapshot.colours import REMEMBERED, Colours, first_choice
from gpuledger.web.snapshot.history import History
from tests.builders import GPU, World

NAMES = [f"job-{number}" for number in range(20)]
EMPTY = World().tick()


def tick(*names: str, time_s: int = 1) -> Tick:
    """A moment in which these owners are on a GPU."""
    uses = tuple(ContainerUse(GPU, Owner(container=name), 1, 1 << 30, None) for name in names)
    return replace(EMPTY, time_ns=time_s * 10**9, containers=uses)


def test_an_owner_keeps_its_colour() -> None:
    """Whoever comes and goes, before it in the alphabet or after it, and when it returns."""
    colours = Colours()
    colours.add(tick(*NAMES[:6]))
    first = dict(colours.now)
    for others in ((), NAMES[8:12], ["aaa"], NAMES[1:3], NAMES):
        colours.add(tick(NAMES[0], *others))
        assert colours.now[NAMES[0]] == first[NAMES[0]]
    assert {name: colours.now[name] for name in first} == first


def test_eight_owners_differ() -> None:
    """All at once or one after the other, and a newcomer differs from those that are there if a colour is free."""
    for start in range(12):
        at_once, one_by_one = Colours(), Colours()
        at_once.add(tick(*NAMES[start : start + 8]))
        for count in range(1, 9):
            one_by_one.add(tick(*NAMES[start : start + count]))
        assert len(set(at_once.now.values())) == len(set(one_by_one.now.values())) == 8
        one_by_one.add(tick(*NAMES[start : start + 7], "new"))
        assert len(set(one_by_one.now.values())) == 8


def test_an_owner_alone_has_the_colour_of_its_name() -> None:
    """After each restart, and in `top` for an exporter that sends no colours."""
    for name in NAMES:
        colours = Colours()
        colours.add(tick(name))
        assert colours.now == {name: first_choice(name)} == snapshot(tick(name)).colours


def test_absent_owners_are_forgotten_in_the_end() -> None:
    """The memory is limited; owners that are there are never forgotten."""
    colours = Colours()
    for number in range(REMEMBERED + 10):
        colours.add(tick("here", f"pod-{number}"))

    assert len(colours._known) == REMEMBERED + 2
    assert min(int(name[4:]) for name in colours._known if name != "here") == 9


def test_snapshot_and_history_have_the_same_colours() -> None:
    """Also of an owner that is in the history only."""
    history = History(1.0)
    for number, names in enumerate((NAMES[:3], NAMES[1:3])):
        history.add(tick(*names, time_s=10 + 10 * number))
    record = json.loads(encode(snapshot(tick(*NAMES[1:3]), colours=history.colours.now)))
    past = {row.owner: row.colour for row in history.past().owners.rows}

    assert record["colours"] == {name: past[name] for name in NAMES[1:3]}
    assert past[NAMES[0]] not in record["colours"].values()
