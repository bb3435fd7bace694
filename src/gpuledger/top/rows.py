"""From a picture to the rows of the table: who is shown together, in which order, and what they use in all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from gpuledger.top.seen import MEASURED, Seen, Use

GROUPINGS = ("process", "container", "pod", "namespace", "user")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a process on a GPU, or all that belong together."""

    key: tuple[str, ...]
    """The same from picture to picture."""
    owner: str
    colour: str
    """The style of its owner; none for owners of several."""
    gpus: tuple[int, ...]
    pid: int | None
    process: str
    user: str
    known_bytes: float | None
    inferred_bytes: float | None
    sm: float | None
    watts: float | None
    joules: float | None
    methods: tuple[tuple[str, float], ...]
    """Joules by how they are known, the largest part first."""
    share_error: float | None
    processes: int
    active: bool
    started: float | None
    workload: str
    image: str
    uses: tuple[Use, ...]

    @property
    def memory_bytes(self) -> float | None:
        """What the driver lists and what is inferred."""
        return added((self.known_bytes, self.inferred_bytes))

    @property
    def is_estimated(self) -> bool | None:
        """Whether some of its energy is; None where there is none."""
        return any(name not in MEASURED for name, _ in self.methods) if self.methods else None


@dataclass(frozen=True, slots=True)
class Choice:
    """What is wanted of a picture."""

    grouping: str = "process"
    gpu: int | None = None
    filter: str = ""
    exited: bool = True


def rows(seen: Seen, choice: Choice) -> list[Row]:
    """The rows, in the order of the picture."""
    metered = {gpu.uuid for gpu in seen.gpus if gpu.joules is not None}
    listed = _is_listed(seen, choice.grouping)
    groups: dict[tuple[str, ...], list[Use]] = {}
    for use in _uses(seen, choice.grouping):
        is_wanted = choice.gpu is None or use.gpu == choice.gpu
        if is_wanted and (choice.exited or use.active) and matches(words(use), choice.filter):
            groups.setdefault(_key(use, choice.grouping), []).append(use)
    return [_row(key, uses, choice.grouping, metered, seen.colours, listed=listed) for key, uses in groups.items()]


def ordered(found: Iterable[Row], value: Callable[[Row], object], *, falling: bool) -> list[Row]:
    """Sorted by a value; what is not known comes last either way."""
    found = list(found)
    known = [row for row in found if value(row) is not None]
    known.sort(key=attrgetter("key"))
    known.sort(key=value, reverse=falling)  # type: ignore[arg-type]
    return known + [row for row in found if value(row) is None]


def total(found: Sequence[Row], name: str = "") -> Row:
    """All rows together."""
    uses = tuple(use for row in found for use in row.uses)
    return Row(
        key=(),
        owner=name,
        colour="",
        gpus=tuple(sorted({gpu for row in found for gpu in row.gpus})),
        pid=None,
        process="",
        user="",
        known_bytes=added(row.known_bytes for row in found),
        inferred_bytes=added(row.inferred_bytes for row in found),
        sm=added(row.sm for row in found),
        watts=added(row.watts for row in found),
        joules=added(row.joules for row in found),
        methods=_merged(uses),
        share_error=None,
        processes=sum(row.processes for row in found),
        active=any(row.active for row in found),
        started=None,
        workload="",
        image="",
        uses=uses,
    )


def added(numbers: Iterable[float | None]) -> float | None:
    """The sum of what is known; None where nothing is."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def words(use: Use) -> str:
    """All that somebody may look for."""
    return "\n".join((
        str(use.pid or ""), use.process, use.kind, use.namespace, use.pod, use.container, use.container_id, use.unit,
        use.job, use.workload, use.image, use.user, use.uuid, use.unknown_because,
    )).lower()  # fmt: skip


def matches(text: str, wanted: str) -> bool:
    """Whether every word that is wanted is in it."""
    return all(word in text for word in wanted.lower().split())


def found_in(row: Row, wanted: str) -> bool:
    """Whether a search for it stops at this row."""
    return any(matches(f"{words(use)}\n{row.owner.lower()}", wanted) for use in row.uses)


def _is_listed(seen: Seen, grouping: str) -> bool:
    """Whether rows are made of processes; an exporter may show none, and then all are made of containers."""
    is_shown = bool(seen.processes) or not any(use.processes for use in seen.containers)
    return grouping in ("process", "user") and is_shown


def _uses(seen: Seen, grouping: str) -> list[Use]:
    """Processes, or containers and whoever is in none: those are whole also where processes are not shown."""
    if _is_listed(seen, grouping):
        return [*seen.processes, *(use for use in seen.containers if use.inferred_bytes)]
    return [*seen.containers, *(use for use in seen.processes if not use.container_id)]


def _key(use: Use, grouping: str) -> tuple[str, ...]:
    if grouping == "process":
        return str(use.pid or ""), use.uuid, str(use.start_time), use.container_id, use.owner
    if grouping == "container":
        return use.container_id, use.owner
    return (_name(use, grouping),)


def _name(use: Use, grouping: str) -> str:
    if grouping == "pod" and use.pod:
        return f"{use.namespace}/{use.pod}" if use.namespace else use.pod
    if grouping == "namespace":
        return use.namespace or "(no namespace)"
    if grouping == "user":
        return use.user or "(no user)"
    return use.owner


def _row(
    key: tuple[str, ...],
    uses: list[Use],
    grouping: str,
    metered: set[str],
    colours: Mapping[str, str],
    *,
    listed: bool,
) -> Row:
    own = [use for use in uses if not listed or use.pid is not None]  # else a container tells its processes' again
    methods = _merged(own)
    styles = {colours.get(use.owner, "") for use in uses}
    counted = bool(methods) or any(use.gpu_uuid in metered for use in own)
    return Row(
        key=key,
        owner=_name(uses[0], grouping),
        colour=styles.pop() if len(styles) == 1 else "",
        gpus=tuple(sorted({use.gpu for use in uses})),
        pid=uses[0].pid if grouping == "process" else None,
        process=_common(use.process for use in uses),
        user=_common(use.user for use in uses),
        known_bytes=added(use.memory_bytes for use in own),
        inferred_bytes=added(use.inferred_bytes for use in uses),
        sm=added(use.sm for use in own),
        watts=added(use.watts for use in own),
        joules=sum(joules for _, joules in methods) if counted else None,
        methods=methods,
        share_error=uses[0].share_error if len(uses) == 1 else None,
        processes=sum(use.processes for use in own),
        active=any(use.active for use in uses),
        started=min((use.start_time for use in uses if use.start_time is not None), default=None),
        workload=_common(use.workload for use in uses),
        image=_common(use.image for use in uses),
        uses=tuple(uses),
    )


def _merged(uses: Iterable[Use]) -> tuple[tuple[str, float], ...]:
    joules: dict[str, float] = {}
    for use in uses:
        for method, part in use.joules.items():
            joules[method] = joules.get(method, 0) + part
    return tuple(sorted(joules.items(), key=lambda item: (-item[1], item[0])))


def _common(names: Iterable[str]) -> str:
    """The one name all have, else how many there are."""
    different = sorted({name for name in names if name})
    return different[0] if len(different) == 1 else f"({len(different)})" if different else ""
