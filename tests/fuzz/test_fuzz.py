"""Every reader of what others wrote stands damaged and swollen input: bounded, and the same each time."""

from __future__ import annotations

import re

import pytest

from tests.fuzz import run, targets
from tests.fuzz.targets import TARGETS, Target

SLOW = ("settings", "web config")
"""YAML takes a hundred times as long as the others; a quarter of the inputs is enough."""


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input(name: str) -> None:
    """The one error of each reader or an answer, soon."""
    run.fuzz(name, seed=1, inputs=75 if name in SLOW else 300, memory=False)


@pytest.mark.parametrize("name", TARGETS)
def test_memory(name: str) -> None:
    """No more than a multiple of what is read."""
    run.fuzz(name, seed=2, inputs=10 if name in SLOW else 40, memory=True)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda data: data == b"abc" or data.index(b"\xff\xff\xff"), "ValueError"),
        (lambda data: data != b"abc" and re.match(rb"(x+x+)+y", b"x" * 40), "TooSlow"),
        (lambda data: bytes(len(data) * 1000 + (64 << 20)), "bytes for"),
    ],
)
def test_it_finds_what_is_broken(broken: object, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash, a hang and a flood are each told with the input."""
    monkeypatch.setattr(run, "LONGEST_S", 0.2)
    monkeypatch.setitem(targets.TARGETS, "prometheus", Target(broken, lambda: [b"abc"]))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=says):
        run.fuzz("prometheus", seed=1, inputs=3, memory=says == "bytes for")
