"""What each dialect says, made when it is first asked for: one that nobody asks for costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial

from gpuledger.catalog.dialects import DIALECTS, Choices, speak
from gpuledger.export.bodies import Bodies
from gpuledger.export.text import Renderer

MOST = 8
"""Dialects, and mixtures of them, whose bodies are kept at a time; clients choose which, but not how many."""


class Spoken:
    """Bodies by dialect, or by several together.

    `beside` gives what else can stand in a page with families of these names.
    """

    def __init__(self, choices: Choices, beside: Callable[[Collection[str]], Iterable[bytes]] | None = None) -> None:
        self._choices = choices
        self._beside = beside
        self._bodies: dict[tuple[str, ...], Bodies] = {}

    def bodies(self, dialects: Iterable[str]) -> Bodies:
        """Those of these dialects, in the order of the table whatever the order they were asked in."""
        asked = set(dialects)
        names = tuple(name for name in DIALECTS if name in asked)
        known = self._bodies.get(names)
        if known is None:
            if len(self._bodies) >= MOST:
                self._bodies = {}  # another thread may still read the old ones
            known = self._bodies.setdefault(names, self._made(names))
        return known

    def _made(self, names: tuple[str, ...]) -> Bodies:
        families = speak(names, self._choices)
        more = None if self._beside is None else partial(self._beside, {family.name for family in families})
        return Bodies(Renderer(families), more)
