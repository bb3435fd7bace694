"""What a metric is, and how its value is read off a tick."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, unique
from operator import attrgetter
from typing import Any

from gpuledger.model import Reading

Value = int | float
Series = Iterable[tuple[tuple[str, ...], Value]]


class Type(Enum):
    """Prometheus types; INFO is a gauge of 1 in the text format and `info` in OpenMetrics."""

    GAUGE = "gauge"
    COUNTER = "counter"
    INFO = "info"


@unique
class Of(Enum):
    """Whose number it is, with the labels every family of that kind starts with."""

    EXPORTER = ""
    GPU = "gpu uuid"
    MIG = "gpu uuid parent_uuid"
    PROCESS = "pid gpu uuid process_name namespace pod container pod_uid container_id"
    CONTAINER = "container container_id namespace pod pod_uid gpu uuid"
    ACCESS = "container container_id namespace pod pod_uid gpu uuid evidence"
    OWNER = "container container_id namespace pod pod_uid"
    GIVEN = "gpu uuid container container_id"
    JOB = "gpu uuid batch_job"
    GRANT = "gpu uuid namespace pod container resource replica"

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in order."""
        return tuple(self.value.split())


Thing = tuple[tuple[str, ...], Any]
"""The values of its labels, and what values are read off."""
Moment = Any
"""What is written out: a Tick, or what a command without ticks has to show; its families know how to read it."""


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Whose number it is in a dialect: the labels of that dialect, and the things of a tick that have them."""

    labels: tuple[str, ...]
    things: Callable[[Moment], Iterable[Thing]]
    sparse: bool = False
    """Whether labels without a value are left out."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: either one value a thing (`value`), or several under extra labels (`series`)."""

    name: str
    type: Type
    of: Of | Kind
    help: str
    origin: str
    value: Callable[[Any], Value | None] | None = None
    series: Callable[[Any], Series] | None = None
    labels: tuple[str, ...] = ()
    unit: str = ""
    needs: str = ""
    """The part of a tick without which there is nothing to show, so that what is switched off is not looked for."""


def at(path: str, scale: float = 1) -> Callable[[Any], Value | None]:
    """The number at `path`, divided by `scale` (1000 turns milliwatts into watts); None when absent.

    A dotted path stops at a record that is not there: `sample.sm_pct` of a process without a sample.
    """
    first, _, rest = path.partition(".")
    read = attrgetter(first)
    if rest:
        inner = at(rest, scale)
        return lambda thing: None if (part := read(thing)) is None else inner(part)
    if scale == 1:
        return read
    return lambda thing: None if (v := read(thing)) is None else v / scale


def flag(path: str) -> Callable[[Any], Value | None]:
    """A yes or no at `path`, as 1 or 0."""
    read = at(path)
    return lambda thing: None if (v := read(thing)) is None else int(v)


def activity(part: str) -> Callable[[Any], Value | None]:
    """A GPM percentage as a ratio, without the digits that dividing by 100 adds."""
    read = at(f"activity.{part}")
    return lambda reading: None if (v := read(reading)) is None else round(v / 100, 5)


def named(path: str, scale: float = 1, times: int = 1) -> Callable[[Any], Series]:
    """The numbers under names at `path`, one series a name."""
    read = attrgetter(path)
    if scale == 1:
        return lambda thing: [((name,), v * times) for name, v in read(thing)]
    return lambda thing: [((name,), v / scale) for name, v in read(thing)]


def pcie(way: str) -> Callable[[Reading], Value | None]:
    """GPM knows PCIe traffic for nothing; the slow call is used only where it was asked for."""
    slow, gpm = at(f"pcie_{way}_bytes_per_s"), at(f"activity.pcie_{way}_bytes_per_s")
    return lambda reading: slow(reading) if (v := gpm(reading)) is None else v


def info(*paths: str) -> Callable[[Any], Series]:
    """Texts at `paths` as labels of one series."""
    reads = [attrgetter(path) for path in paths]

    def series(thing: Any) -> Series:
        values = tuple("" if (v := read(thing)) is None else str(v) for read in reads)
        return ((values, 1),) if any(values) else ()  # nothing is known of a GPU that never answered

    return series


G, C, I = Type.GAUGE, Type.COUNTER, Type.INFO  # noqa: E741 - a table reads better with short marks
