"""The rows of the table: how a snapshot is filtered, grouped and summed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from gpuledger.model import NO_PROCESS, Owner
from gpuledger.tools.top.feed import LocalProcess
from gpuledger.tools.top.text import OWNER_STYLES
from gpuledger.web.snapshot.colours import COLOURS, first_choice
from gpuledger.web.snapshot.schema import MEASURED, AllocationRow, ContainerRow, ProcessRow, Snapshot, UseRow, sum_known

GROUPINGS = ("process", "container", "pod", "namespace", "user")
TREE = "tree"
"""Pods, and owners with several processes, each followed by its processes."""
Use = ProcessRow | ContainerRow
"""One row of the snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One line of the table: a process on a GPU, or a group."""

    key: tuple[str, ...]
    """Identifies the row from snapshot to snapshot."""
    owner: str
    style: str = ""
    """The colour of the owner; empty for a group of several owners."""
    gpus: tuple[int, ...] = ()
    pid: int | None = None
    process: str = ""
    user: str = ""
    known_bytes: float | None = None
    inferred_bytes: float | None = None
    sm: float | None = None
    watts: float | None = None
    joules: float | None = None
    asked: float | None = None
    """GPUs that the owners asked for, if they asked for parts of GPUs."""
    asked_used: float | None = None
    """GPUs that they use of these."""
    methods: tuple[tuple[str, float], ...] = ()
    """Joules by method, largest first."""
    share_error: float | None = None
    processes: int = 0
    active: bool = True
    age_s: float | None = None
    workload: str = ""
    image: str = ""
    uses: tuple[Use, ...] = ()
    cpu: float | None = None
    """CPU time over time; 1 is one core."""
    host_bytes: float | None = None
    branch: tuple[str, ...] = ()
    """In a tree, the key of the row that this row is a part of."""

    @property
    def label(self) -> str:
        """The owner; below its branch, which has the name of the pod, only the container."""
        return (self.uses[0].container or self.owner) if self.branch else self.owner

    @property
    def memory_bytes(self) -> float | None:
        """Listed and inferred memory."""
        return sum_known((self.known_bytes, self.inferred_bytes))

    @property
    def is_estimated(self) -> bool | None:
        """Whether part of the energy is estimated; None without energy."""
        return any(name not in MEASURED for name, _ in self.methods) if self.methods else None


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows the user wants to see."""

    grouping: str = "process"
    gpu: int | None = None
    filter: str = ""
    exited: bool = True


def rows(snapshot: Snapshot, choice: Choice) -> list[TableRow]:
    """The chosen rows, in the order of the snapshot."""
    if choice.grouping == TREE:
        return _tree(snapshot, choice)
    metered = {gpu.uuid for gpu in snapshot.gpus if gpu.energy is not None and gpu.energy.joules is not None}
    by_process = _is_by_process(snapshot, choice.grouping)
    parts = {(row.gpu_uuid, row.owner): row for row in snapshot.allocations if _is_part(row)}
    styles = owner_styles(snapshot)
    groups: dict[tuple[str, ...], list[Use]] = {}
    for use in _uses(snapshot, choice.grouping):
        is_wanted = choice.gpu in (None, use.gpu) and (choice.exited or is_active(use))
        if is_wanted and _matches(_words(use), choice.filter):
            groups.setdefault(_key(use, choice.grouping), []).append(use)
    return [
        _row(key, uses, choice.grouping, metered, styles, parts=parts, now=snapshot.time, by_process=by_process)
        for key, uses in groups.items()
    ]


def _tree(snapshot: Snapshot, choice: Choice) -> list[TableRow]:
    """A process whose branch does not match the filter stands alone."""
    leaves: dict[str, list[TableRow]] = {}
    for row in rows(snapshot, replace(choice, grouping="process")):
        leaves.setdefault(_name(row.uses[0], "pod"), []).append(row)
    tree: list[TableRow] = []
    for branch in rows(snapshot, replace(choice, grouping="pod")):
        is_pod = bool(branch.uses[0].pod or branch.uses[0].pod_uid)
        if not is_pod and len(leaves.get(branch.owner, [])) < 2:
            continue
        below, key = leaves.pop(branch.owner, []), (TREE, *branch.key)
        uses = [use for leaf in below for use in leaf.uses]
        cpu, host_bytes = _of_pids(uses, "cpu_ratio"), _of_pids(uses, "host_memory_bytes")
        tree.append(replace(branch, key=key, cpu=cpu, host_bytes=host_bytes))
        tree += [replace(leaf, branch=key) for leaf in below]
    return [*tree, *(leaf for alone in leaves.values() for leaf in alone)]


def ordered(unordered: Iterable[TableRow], value: Callable[[TableRow], object], *, descending: bool) -> list[TableRow]:
    """Rows sorted by a value; rows without the value come last in both directions. Branches keep their rows."""
    below: dict[tuple[str, ...], list[TableRow]] = {}
    for row in unordered:
        below.setdefault(row.branch, []).append(row)
    return [
        row
        for top in _sorted(below.pop((), []), value, descending=descending)
        for row in (top, *_sorted(below.get(top.key, []), value, descending=descending))
    ]


def _sorted(unordered: list[TableRow], value: Callable[[TableRow], object], *, descending: bool) -> list[TableRow]:
    known = [row for row in unordered if value(row) is not None]
    known.sort(key=attrgetter("key"))
    known.sort(key=value, reverse=descending)  # type: ignore[arg-type]
    return known + [row for row in unordered if value(row) is None]


def is_active(use: Use) -> bool:
    """False for a process that has left its device."""
    return isinstance(use, ContainerRow) or use.active is not False


def is_match(row: TableRow, search: str) -> bool:
    """Whether a search stops at this row."""
    return any(_matches(f"{_words(use)}\n{row.owner.lower()}", search) for use in row.uses)


def owner_styles(snapshot: Snapshot) -> dict[str, str]:
    """The colour of each owner, as on the page."""
    uses: Iterable[UseRow | AllocationRow] = (*snapshot.processes, *snapshot.containers, *snapshot.allocations)
    colours = snapshot.colours
    return {use.owner: OWNER_STYLES[colours.get(use.owner, first_choice(use.owner)) % COLOURS] for use in uses}


def _words(use: Use) -> str:
    """The text that filters and searches look at."""
    process = (str(use.pid), use.process_name, use.kind) if isinstance(use, ProcessRow) else ()
    return "\n".join((
        *process, use.owner, use.namespace, use.pod, use.container, use.container_id, use.unit, use.job, use.workload,
        use.image, use.user, use.uuid, use.unknown_because,
    )).lower()  # fmt: skip


def _matches(text: str, words: str) -> bool:
    return all(word in text for word in words.lower().split())


def _is_by_process(snapshot: Snapshot, grouping: str) -> bool:
    """Whether rows consist of processes; if the exporter lists none, they consist of containers."""
    are_listed = bool(snapshot.processes) or not any(container.processes for container in snapshot.containers)
    return grouping in ("process", "user") and are_listed


def _uses(snapshot: Snapshot, grouping: str) -> list[Use]:
    """Processes; or containers, which are complete even without process rows, and processes in no container."""
    if _is_by_process(snapshot, grouping):
        inferred = (container for container in snapshot.containers if container.inferred_bytes)
        return [*snapshot.processes, *inferred, *_unused(snapshot)]
    outside = (process for process in snapshot.processes if not process.container_id)
    return [*snapshot.containers, *outside, *_unused(snapshot)]


def _is_part(row: AllocationRow) -> bool:
    """Whether the owner asked for a part of a GPU."""
    return row.entitlement not in ("", "device")


def _unused(snapshot: Snapshot) -> list[ContainerRow]:
    """Owners without a process, if they asked for a part of a GPU or no other owner uses the GPU."""
    uses: Iterable[Use] = (*snapshot.processes, *snapshot.containers)
    using = {(use.gpu_uuid, use.owner) for use in uses if is_active(use)}
    idle = {gpu.uuid for gpu in snapshot.gpus if gpu.in_use is False}
    names = ("gpu", "uuid", "gpu_uuid", "owner", "namespace", "pod", "container", "container_id", "job")
    return [
        ContainerRow(**{name: getattr(row, name) for name in names}, memory_bytes=0, sm_ratio=0.0, watts=0.0)
        for row in snapshot.allocations
        if row.state == NO_PROCESS
        and (row.gpu_uuid, row.owner) not in using
        and (_is_part(row) or row.gpu_uuid in idle)
    ]


def _key(use: Use, grouping: str) -> tuple[str, ...]:
    if grouping == "process":
        process = (str(use.pid), str(use.start_time)) if isinstance(use, ProcessRow) else ("", "")
        return (*process, use.uuid, use.container_id, use.owner)
    if grouping == "container":
        return use.container_id, use.owner
    return (_name(use, grouping),)


def _name(use: Use, grouping: str) -> str:
    if grouping == "pod" and (use.pod or use.pod_uid):
        return Owner(namespace=use.namespace, pod=use.pod, pod_uid=use.pod_uid).display_name
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
    styles: Mapping[str, str],
    *,
    parts: Mapping[tuple[str, str], AllocationRow],
    now: float,
    by_process: bool,
) -> TableRow:
    processes = [use for use in uses if isinstance(use, ProcessRow)]
    containers = [use for use in uses if isinstance(use, ContainerRow)]
    # A container repeats the numbers of its processes.
    counted = [use for use in uses if isinstance(use, ProcessRow) or not use.inferred_bytes] if by_process else uses
    methods = _methods(counted)
    has_energy = bool(methods) or any(use.gpu_uuid in metered for use in counted)
    owners = {use.owner for use in uses}
    asked = [parts[place] for place in {(use.gpu_uuid, use.owner) for use in uses if is_active(use)} & parts.keys()]
    started = min((p.start_time for p in processes if p.start_time is not None), default=None)
    return TableRow(
        key=key,
        owner=_name(uses[0], grouping),
        style=styles.get(owners.pop(), "") if len(owners) == 1 else "",
        gpus=tuple(sorted({use.gpu for use in uses})),
        pid=processes[0].pid if grouping == "process" and processes else None,
        process=_common(process.process_name for process in processes),
        user=_common(use.user for use in uses),
        known_bytes=sum_known(use.memory_bytes for use in counted),
        inferred_bytes=sum_known(container.inferred_bytes for container in containers),
        sm=sum_known(use.sm_ratio for use in counted),
        watts=sum_known(use.watts for use in counted),
        joules=sum(joules for _, joules in methods) if has_energy else None,
        asked=sum_known(part.asked_ratio for part in asked),
        asked_used=sum_known(_product(part.asked_ratio, part.compute_used_ratio) for part in asked),
        methods=methods,
        share_error=processes[0].energy_share_error_ratio if processes and len(uses) == 1 else None,
        processes=sum(use.processes if isinstance(use, ContainerRow) else 1 for use in counted),
        active=any(is_active(use) for use in uses),
        age_s=max(0.0, now - started) if now and started is not None else None,
        workload=_common(use.workload for use in uses),
        image=_common(use.image for use in uses),
        uses=tuple(uses),
        cpu=_of_pids(uses, "cpu_ratio"),
        host_bytes=_of_pids(uses, "host_memory_bytes"),
    )


def _product(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first * second


def _of_pids(uses: Iterable[Use], name: str) -> float | None:
    """The sum over processes of a value of the host; a process on two GPUs counts once."""
    return sum_known({use.pid: getattr(use, name) for use in uses if isinstance(use, LocalProcess)}.values())


def _methods(uses: Iterable[Use]) -> tuple[tuple[str, float], ...]:
    joules: dict[str, float] = {}
    for use in uses:
        for method, part in use.joules.items():
            joules[method] = joules.get(method, 0) + part
    return tuple(sorted(joules.items(), key=lambda item: (-item[1], item[0])))


def _common(names: Iterable[str]) -> str:
    """The name that all share, or the number of different names in parentheses."""
    different = sorted({name for name in names if name})
    return different[0] if len(different) == 1 else f"({len(different)})" if different else ""
