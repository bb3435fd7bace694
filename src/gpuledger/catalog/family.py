"""The definition of a metric family, and functions that read its values from a tick."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any

from gpuledger.model import DIVIDED, Percentages, Reading

Value = int | float
Series = Iterable[tuple[tuple[str, ...], Value]]


class Type(Enum):
    """Metric types. INFO is a gauge of 1 in the text format and `info` in OpenMetrics."""

    GAUGE = "gauge"
    COUNTER = "counter"
    INFO = "info"


Thing = tuple[tuple[str, ...], Any]
"""Label values, and the record that metric values are read from."""
Moment = Any
"""The input of a rendering: a Tick, or the state of a command without ticks."""


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What a metric describes: the labels of such things, and the things of a tick."""

    labels: tuple[str, ...]
    things: Callable[[Moment], Iterable[Thing]]
    sparse: bool = False
    """Whether empty labels are omitted."""
    created: Callable[[Any], Value | None] | None = None
    """Unix time at which all counters of a thing were 0; None if it is not known."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family: one value per thing (`value`), or several with additional labels (`series`)."""

    name: str
    type: Type
    of: Kind
    help: str
    origin: str
    value: Callable[[Any], Value | None] | None = None
    series: Callable[[Any], Series] | None = None
    labels: tuple[str, ...] = ()
    """The additional labels; a series may lack the last ones."""
    unit: str = ""
    needs: str = ""
    """The field of a tick without which the family is empty, so that a disabled feature costs nothing."""

    def samples(self, thing: Any) -> Series:
        """Additional label values and value of each series of a thing."""
        if self.series is not None:
            return self.series(thing)
        value = self.value(thing) if self.value is not None else None
        return () if value is None else (((), value),)


def with_things(
    families: Iterable[Family],
    tick: Moment,
    label: Callable[[Kind, Iterable[Thing]], Iterable[tuple[Any, Any]]] = lambda _, things: things,
) -> Iterator[tuple[Family, list[tuple[Any, Any]]]]:
    """Each family with its things and their labels, for every output format.

    `label` may write the labels in the way of a format, once for all families of a kind. Of several things with equal
    labels only the first counts, because a duplicate series invalidates a whole scrape.
    """
    by_kind: dict[Kind, list[tuple[Any, Any]]] = {}
    for family in families:
        if family.needs and getattr(tick, family.needs) is None:
            continue
        if family.of not in by_kind:
            unique: dict[Any, Any] = {}
            for labels, thing in label(family.of, family.of.things(tick)):
                unique.setdefault(labels, thing)
            by_kind[family.of] = list(unique.items())
        yield family, by_kind[family.of]


def at(path: str, scale: float = 1) -> Callable[[Any], Value | None]:
    """The number at `path`, divided by `scale` (1000 turns milliwatts into watts); None if absent.

    A dotted path is None if a record on the way is None, such as `sample.sm_pct` of a process without a sample.
    """
    first, _, rest = path.partition(".")
    read = attrgetter(first)
    if rest:
        inner = at(rest, scale)
        return lambda thing: None if (part := read(thing)) is None else inner(part)
    if scale == 1:
        return read
    return lambda thing: None if (v := read(thing)) is None else v / scale


def time(path: str) -> Callable[[Any], Value | None]:
    """The Unix time in nanoseconds at `path`, in seconds; absent if it is 0."""
    read = at(path, 1e9)
    return lambda thing: read(thing) or None


def flag(path: str) -> Callable[[Any], Value | None]:
    """The boolean at `path`, as 1 or 0."""
    read = at(path)
    return lambda thing: None if (v := read(thing)) is None else int(v)


def activity(part: str) -> Callable[[Any], Value | None]:
    """A GPM percentage as a ratio, rounded to its original precision."""
    read = at(f"activity.{part}")
    return lambda reading: None if (v := read(reading)) is None else round(v / 100, 5)


def divided(part: str) -> Callable[[Percentages | None], Value | None]:
    """One of the activities that are divided among processes, as a ratio."""
    number = DIVIDED.index(part)
    return lambda pct: None if pct is None or (v := pct[number]) is None else round(v / 100, 5)


def named(path: str, scale: float = 1, times: int = 1) -> Callable[[Any], Series]:
    """The labelled values at `path`, one series per label; none if a record on the way is None."""
    read: Callable[[Any], Any] = at(path)
    if scale == 1:
        return lambda thing: [((name,), v * times) for name, v in read(thing) or ()]
    return lambda thing: [((name,), v / scale) for name, v in read(thing) or ()]


def pcie(way: str) -> Callable[[Reading], Value | None]:
    """PCIe throughput from GPM, which costs nothing, or else from the slow call, if enabled."""
    slow, gpm = at(f"pcie_{way}_bytes_per_s"), at(f"activity.pcie_{way}_bytes_per_s")
    return lambda reading: slow(reading) if (v := gpm(reading)) is None else v


def info(*paths: str) -> Callable[[Any], Series]:
    """The texts at `paths` as labels of one series."""
    reads = [attrgetter(path) for path in paths]

    def series(thing: Any) -> Series:
        values = tuple("" if (v := read(thing)) is None else str(v) for read in reads)
        return ((values, 1),) if any(values) else ()  # a GPU that never answered has no properties

    return series


G, C, I = Type.GAUGE, Type.COUNTER, Type.INFO  # noqa: E741 - short names keep the tables readable
