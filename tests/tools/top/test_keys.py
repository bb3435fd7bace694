"""The table of keys."""

from __future__ import annotations

from gpuledger.tools.top.columns import BY_NAME, View
from gpuledger.tools.top.keys import CHANGES, KEYS, SORTS, name_of


def test_every_key_does_one_thing() -> None:
    """None is there twice."""
    keys = [one for key in KEYS for one in key.keys]

    assert len(keys) == len(set(keys))


def test_the_main_keys_fit_on_a_small_screen() -> None:
    """Key and label, with a space between keys, in 80 columns."""
    footer = [f"{name_of(key.keys[0])}{key.label} " for key in KEYS if key.label]

    assert sum(map(len, footer)) <= 80
    assert footer[0] == "?Help "
    assert footer[-1] == "qQuit "


def test_keys_that_sort_name_columns() -> None:
    """That there are in every grouping."""
    assert all(not BY_NAME[name].only for name in SORTS.values())


def test_keys_that_change_the_view_say_how() -> None:
    """Every key with the action `change`, and no other."""
    assert {name for key in KEYS if key.action == "change" for name in key.keys} == set(CHANGES)
    assert CHANGES["3"](View()).choice.gpu == 3
    assert CHANGES["3"](CHANGES["3"](View())).choice.gpu is None
    assert CHANGES["E"](View()).sort == "energy"
