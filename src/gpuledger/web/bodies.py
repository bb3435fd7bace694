"""Response bodies with metrics, rendered once per tick, format, and group of metrics or dialect.

A request selects sections: groups of our own metrics, or dialects. There are few of them, whatever clients request, and
a second Prometheus costs no second rendering.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from gpuledger.catalog import GROUPS, Family, Moment, groups_with
from gpuledger.catalog.dialects import DIALECTS, Choices
from gpuledger.web.http import Request, Response
from gpuledger.web.negotiate import Format, choose_format
from gpuledger.web.parts import Part, Parts
from gpuledger.web.text import END, LabelBlocks, Renderer

LAST_LINE = Part([END])
Families = Sequence[tuple[bytes, bytes]]
"""Name and lines of each family of another exporter."""


class Section:
    """Some metrics of the newest tick, by format. Thread-safe."""

    def __init__(self, renderer: Renderer, parts: Parts) -> None:
        self._renderer, self._parts = renderer, parts
        self.openmetrics = renderer.openmetrics
        self._lock = threading.Lock()
        self._tick: Moment = None
        self._cache: dict[Format, Part] = {}

    def get(self, tick: Moment, fmt: Format) -> Part:
        """The rendered metrics of this tick."""
        with self._lock:
            if tick is not self._tick:
                self._tick, self._cache = tick, {}
            part = self._cache.get(fmt)
            if part is None or part.deflated is None:
                part = self._cache[fmt] = self._parts.create(self._renderer.families(tick, fmt))
            return part


def response(
    request: Request, tick: Moment, sections: Sequence[Section], parts: Parts, more: Sequence[Part] | None = None
) -> Response:
    """The metrics of these sections in the format that the client prefers. `more` are metrics of another exporter.

    Counters of other exporters do not have the names that OpenMetrics requires.
    """
    openmetrics = more is None and all(section.openmetrics for section in sections)
    fmt = choose_format(request.headers.get("accept")) if openmetrics else Format.TEXT
    body = [section.get(tick, fmt) for section in sections]
    body += [LAST_LINE] if fmt is Format.OPENMETRICS else (more or ())
    return parts.response(request, fmt.content_type, body)


class Sections:
    """The groups of our own metrics, and dialects. Created on first use: an unused dialect costs nothing."""

    def __init__(self, choices: Choices, parts: Parts) -> None:
        self._choices, self._parts = choices, parts
        self._sections: dict[tuple[str, ...], Section] = {}
        self._blocks = LabelBlocks()

    def of_dialects(self, dialects: Iterable[str], dcgm_names: str = "") -> tuple[list[Section], set[str]]:
        """The sections of these dialects in the order of the table, and the names of their metrics.

        Of two families with the same name, only the first is in a section.
        """
        choices = replace(self._choices, names=dcgm_names or self._choices.names)
        sections: list[Section] = []
        seen: set[str] = set()
        for name in (name for name in DIALECTS if name in set(dialects)):
            families = DIALECTS[name].families(choices)
            if name == "native":
                sections += self.of_groups(groups_with(choices.optional))
            else:
                new = [family for family in families if family.name not in seen]
                dropped = (family.name for family in families if family.name in seen)
                sections.append(self._section((name, choices.names, *dropped), new))
            seen.update(family.name for family in families)
        return sections, seen

    def of_groups(self, groups: Collection[str]) -> list[Section]:
        """The sections of some groups of our own metrics."""
        return [self._section((name,), families) for name, families in GROUPS.items() if name in groups]

    def _section(self, key: tuple[str, ...], families: Sequence[Family]) -> Section:
        if key not in self._sections:
            renderer = Renderer(families, created=self._choices.created, blocks=self._blocks)
            self._sections.setdefault(key, Section(renderer, self._parts))
        return self._sections[key]


class UpstreamBodies:
    """Bodies with another exporter's metrics, compressed once per response of that exporter.

    `latest` returns its families, or None if there are none to pass on.
    """

    def __init__(self, latest: Callable[[], Families | None], parts: Parts) -> None:
        self._latest, self._parts = latest, parts
        self._lock = threading.Lock()
        self._families: Families | None = None
        self._cache: dict[frozenset[str], Part] = {}

    def response(self, request: Request) -> Response | None:
        """The metrics; None if there are none to pass on."""
        parts = self.without(())
        return self._parts.response(request, Format.TEXT.content_type, parts) if parts else None

    def without(self, names: Collection[str]) -> list[Part]:
        """The families that can follow metrics of these names: no family may appear twice."""
        families = self._latest()
        if families is None:
            return []
        with self._lock:
            if self._families is not families:
                self._families, self._cache = families, {}
            own = {name.decode() for name, _ in families}
            key = frozenset(own.intersection(names))
            part = self._cache.get(key)
            if part is None or part.deflated is None:
                texts = (text for name, text in families if name.decode() not in key)
                part = self._cache[key] = self._parts.create(texts)
            return [part]
