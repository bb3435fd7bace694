r"""The container, pod, unit and batch job of a process, from the text of /proc/PID/cgroup.

Pure; any text gives a `CgroupRef`. A path is read from the root down, one directory name at a time. `FORMS` recognizes
a name by its shape, `UNDER` by its parent directory. No pattern starts at the root, because inside a private cgroup
namespace the path lacks its first part (`/../../cri-containerd-….scope`).

A user can name a cgroup like the container of another user. Two rules prevent that such a name counts: reading ends at
the first container, because its processes choose the names below, unless `nested` is set; and below a directory that a
user owns (`Bounds`) only units and containers are read, as claims of that user.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

NO_UID = -1
"""No user has this uid."""
NAME_MAX = 255
"""The longest directory name. Bounds the work of the regular expressions."""

ID = r"[0-9a-f]{64}"  # every OCI runtime writes ids in lower case
UUID = r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
POD_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"  # 32 hex: static pods, a hash
SYSTEMD_POD = rf"(?:.+-)?kubepods(?:-(?P<qos>burstable|besteffort))?-pod(?P<uid>{POD_UID})\.slice"
TEXT = r"[^\x00-\x1f\x7f]+"
NAME = re.compile(r"[A-Za-z0-9_.:@+-]+")  # names of containers without an id: LXC, nspawn

RUNTIMES = {
    "docker": "docker", "cri-containerd": "containerd", "nerdctl": "containerd", "crio": "cri-o", "libpod": "podman",
    "libpod-payload": "podman",
}  # fmt: skip
"""By the prefix in `PREFIX-ID.scope`."""
BARE_RUNTIMES = {"docker": "docker", "default": "containerd", "k8s.io": "containerd", "moby": "containerd"}
"""By the parent directory of a bare id: /docker, or a containerd namespace."""
COLON = re.compile(rf"^([^:]*):([a-z0-9_-]+):({ID})\Z")
"""runc's notation for SLICE/PREFIX-ID.scope. It becomes a directory name if runc and the kubelet use different cgroup
drivers."""
QOS = {"burstable": "burstable", "besteffort": "besteffort", "kubepods": "guaranteed"}
USER_MANAGER = re.compile(r"user@(\d{1,10})\.service", re.ASCII)
"""systemd's manager of a user. The user owns the cgroup."""
POD_HOLDERS = ("libpod_parent", "kata_overhead")
"""Parent directories of pods and sandboxes with a bare id; Podman's containers are below them as libpod-ID."""


@dataclass(frozen=True, slots=True)
class CgroupRef:
    """The parts of one cgroup path; None if the path lacks a part."""

    runtime: str | None = None
    container_id: str | None = None
    claimed_by: int | None = None
    """The uid of the user that could choose the container's id freely; None if only root could."""
    candidate: str | None = None
    """`NAMESPACE/ID` of a path that may be that of a container; only containerd can confirm it."""
    pod_uid: str | None = None
    qos: str | None = None
    unit: str | None = None
    """The systemd unit around the container, or of the process; a unit of a user follows that user's manager, as in
    `user@1000.service/ollama.service`."""
    job: tuple[str, str] | None = None
    """Scheduler and job id; for `slurm-sluid` the SLUID, for which `slurm.py` finds the number."""
    step: str | None = None
    task: str | None = None
    monitor: bool = False
    """Whether the process is a helper of a container (conmon, lxc.monitor, a mount), not the workload."""
    outer: CgroupRef | None = None
    """The container or pod around this container, pod or job, if `nested` is set."""

    @property
    def container_key(self) -> str | None:
        """The id of the container; with the user that could choose it, so that it is no other user's container."""
        return self.container_id if self.claimed_by is None else f"{self.claimed_by}/{self.container_id}"

    def levels(self) -> Iterator[CgroupRef]:
        """The container, pod or job, and those around it, innermost first."""
        yield self
        if self.outer is not None:
            yield from self.outer.levels()

    def to_dict(self) -> dict[str, object]:
        """As JSON: tuples become lists, and `outer` the ids of all containers around this one, outermost first."""
        outer = [level.container_id or level.pod_uid for level in self.levels()][:0:-1]
        return asdict(self) | {"job": None if self.job is None else list(self.job), "outer": outer}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The part of a path that only root can choose, by index of its directory names."""

    start: int = 0
    """The names before it lead to the container in which this host itself runs, such as a node of kind."""
    end: int = sys.maxsize
    """From this name on, a user could choose the names."""
    uid: int = NO_UID
    """That user."""


def bounds_by_name(_controllers: str, _path: str, names: Sequence[str]) -> Bounds:
    """The bounds according to the names alone: systemd's manager of a user owns everything below it."""
    for index, name in enumerate(names):
        if match := USER_MANAGER.fullmatch(name):
            return Bounds(end=index + 1, uid=int(match[1])) if int(match[1]) else Bounds()
    return Bounds()


def parse(
    text: str, bounds: Callable[[str, str, Sequence[str]], Bounds] = bounds_by_name, *, nested: bool = False
) -> CgroupRef:
    """Parse the most specific of all lines: on hybrid hosts the v2 line may name only the runtime's own service.

    With `nested`, the innermost container, pod or job counts instead of the outermost container. `bounds`
    takes the controllers of a line, which are empty for v2, its path, and the directory names of the path.
    """
    # A set, because the dozen lines of v1 mostly have one path.
    paths = {(path, bounds(controllers, path, split_path(path))) for controllers, path in split_lines(text)}
    refs = (_specificity(path, parse_path(path, limits, nested=nested)) for path, limits in paths)
    return max(refs, key=lambda pair: pair[0], default=((), CgroupRef()))[1]


def split_lines(text: str) -> Iterator[tuple[str, str]]:
    """Controllers and path of each line `HIERARCHY:CONTROLLERS:PATH`. A path may contain colons, or be a whole line."""
    for line in text.split("\n"):
        if line.startswith("/"):
            yield "", line
        else:
            hierarchy, _, controllers_and_path = line.partition(":")
            controllers, _, path = controllers_and_path.partition(":")
            if hierarchy.isdigit():
                yield controllers, path


def split_path(path: str) -> list[str]:
    """The directory names of a path without `..`; ` (deleted)` of a removed cgroup is ignored."""
    names = path.removesuffix(" (deleted)").split("/")
    if names[0] or any(len(name) > NAME_MAX for name in names):
        return []
    return [name for name in names if name not in ("", ".", "..")]


def _specificity(path: str, ref: CgroupRef) -> tuple[tuple[object, ...], CgroupRef]:
    *inner, outermost = ref.levels()
    parts = (ref.pod_uid, ref.job, ref.step, ref.task, ref.container_id, ref.unit, ref.qos, ref.candidate)
    is_proven = outermost.container_id is not None and outermost.claimed_by is None
    # The path is the last criterion, so that the result does not depend on the order of lines.
    return (is_proven, len(inner), *(value is not None for value in parts), ref.monitor, path.count("/"), path), ref


def parse_path(path: str, bounds: Bounds | None = None, *, nested: bool = False) -> CgroupRef:
    """Parse one path; see `parse`."""
    raw = split_path(path)
    bounds = bounds or bounds_by_name("", path, raw)
    names: list[str] = []
    proven = 0
    for index, name in enumerate(raw[bounds.start :], bounds.start):
        names += COLON.sub(r"\1/\2-\3.scope", name).lstrip("/").split("/")
        proven = len(names) if index < bounds.end else proven
    walk = _Walk(names, proven, bounds.uid)
    ref = walk.read_nested() if nested else walk.read()
    is_unknown = ref == CgroupRef() and len(raw) <= bounds.end
    place = "/".join(raw[bounds.start :])
    return CgroupRef(candidate=place) if is_unknown and CTR_PLACE.fullmatch(place) else ref


class _Walk:
    """The state while reading a path downwards; `names` is padded by two, so each name has a parent and a child."""

    def __init__(self, names: list[str], end: int, uid: int) -> None:
        self.names = ["", "", *names, "", ""]
        self._end, self._uid = end + 2, uid
        """From which name on a user could choose the names, and that user."""
        self.at = 2
        self.parent = self.child = ""
        self._start()

    def _start(self) -> None:
        """Start at the root, or inside a container."""
        self.ref = CgroupRef()
        self.pod_at = self.job_at = 0
        self.is_slurm = False
        self._user_unit = ""
        """The innermost unit among the names that a user could choose."""

    def read_nested(self) -> CgroupRef:
        """Read all names. Owners of directories matter up to the first container that root created, not inside it."""
        ref = self._divided(self.read())
        while self.ref.container_id is not None:
            if self.at <= self._end:
                inside = bounds_by_name("", "", self.names[self.at :])
                self._end, self._uid = self.at + inside.end, inside.uid
            self._start()
            inner = self.read()
            is_known = inner.container_id or inner.pod_uid or inner.job
            # A container that sees the cgroups of the host can have its own path twice.
            if is_known and inner.container_id != ref.container_id:
                ref = self._divided(inner, ref)
        return ref

    def _divided(self, ref: CgroupRef, outer: CgroupRef | None = None) -> CgroupRef:
        """The level inside `outer`; a job whose slurmd runs in a pod is a level inside that pod."""
        if ref.container_id is None and 0 < self.pod_at < self.job_at:
            outer = CgroupRef(pod_uid=ref.pod_uid, qos=ref.qos, outer=outer)
            ref = replace(ref, pod_uid=None, qos=None)
        return replace(ref, outer=outer)

    def read(self) -> CgroupRef:
        """Read names until the first container or helper."""
        while self.at < len(self.names) - 2 and not self.ref.monitor and self.ref.container_id is None:
            self._read_name()
            self.at += 1
        unit, container_id = self.ref.unit, self.ref.container_id
        # After the loop, `at` is behind the container's name.
        is_claimed = container_id is not None and self.at > self._end
        return replace(
            self.ref,
            claimed_by=self._uid if is_claimed else None,
            unit=f"{unit}/{self._user_unit}" if unit and self._user_unit else unit,
        )

    def _read_name(self) -> None:
        self.parent, raw, self.child = self.names[self.at - 1 : self.at + 2]
        name = _unescape(raw) if "\\" in raw else raw
        under = UNDER.get(self.parent)
        if under is not None and (match := under[0].fullmatch(name)):
            under[1](self, match)
        elif match := FORM.fullmatch(name):
            READERS[match.lastgroup or ""](self, match)
        is_unit = name.endswith((".service", ".scope")) and name[0] != "." and name.isprintable()
        if is_unit and self.ref.container_id is None:
            if self._is_claim:
                self._user_unit = name
            else:
                self.put(unit=name)

    @property
    def _is_claim(self) -> bool:
        """Whether a user could choose the current name."""
        return self.at >= self._end

    def put(self, **parts: Any) -> None:
        """Set parts of the result."""
        self.ref = replace(self.ref, **parts)

    def contain(self, runtime: str, container_id: str) -> None:
        self.put(runtime=runtime, container_id=container_id)

    def pod(self, uid: str, qos: str | None) -> None:
        if not self._is_claim:
            self.put(pod_uid=uid.replace("_", "-"), qos=qos)
            self.pod_at = self.at

    def work(self, kind: str, job_id: str) -> None:
        if not self._is_claim:
            self.put(job=(kind, job_id), step=None, task=None)
            self.job_at = self.at


Match = re.Match[str]
Reader = Callable[[_Walk, Match], None]


def _unescape(name: str) -> str:
    r"""Undo systemd's escapes of printable ASCII, such as `\x2d` for a dash."""

    def plain(match: Match) -> str:
        char = chr(int(match[1], 16))
        return char if " " < char < "\x7f" and char != "/" else match[0]

    return re.sub(r"\\x([0-9a-f]{2})", plain, name)


def _oci(walk: _Walk, match: Match) -> None:
    prefix, container_id, scope = match["prefix"], match["oci_id"], match["scope"]
    if prefix.endswith("conmon"):
        walk.put(monitor=True)
    # In a slice, containers of CRI-O are scopes; another directory is the sandbox of the pod.
    elif scope or (prefix in RUNTIMES and not (prefix == "crio" and walk.parent.endswith(".slice"))):
        walk.contain(RUNTIMES.get(prefix, "unknown"), container_id)


def _bare(walk: _Walk, match: Match) -> None:
    runtime = BARE_RUNTIMES.get(walk.parent, "unknown")
    if walk.pod_at == walk.at - 1:
        runtime = "kubernetes"
    elif walk.names[walk.at - 2] == "ecs" and walk.ref.job is not None:
        runtime = "docker"
    if not (walk.parent in POD_HOLDERS and runtime == "unknown"):  # not by the child, which a container could name
        walk.contain(runtime, match[0])


def _machine(walk: _Walk, match: Match) -> None:
    """A machine is recognized by its slice or a child directory, because any unit may have the name machine-x."""
    machine, in_slice = match["machine"], walk.parent.startswith("machine") and walk.parent.endswith(".slice")
    if libvirt := LIBVIRT.fullmatch(machine):
        if in_slice or walk.child == "libvirt":
            walk.work(f"libvirt-{libvirt[1]}", libvirt[2])
    elif in_slice or walk.child in ("payload", "supervisor"):
        _nspawn(walk, machine)


def _nspawn(walk: _Walk, machine: str) -> None:
    if walk.child == "supervisor":
        walk.put(monitor=True)
    elif NAME.fullmatch(machine):
        walk.contain("nspawn", machine)


def _slurm(walk: _Walk, _: Match) -> None:
    walk.is_slurm = True


def _slurm_job(walk: _Walk, match: Match) -> None:
    if walk.is_slurm or walk.child.startswith("step_"):
        walk.work(*(("slurm", match["slurm_id"]) if match["slurm_id"] else ("slurm-sluid", match[0])))


def _slurm_part(walk: _Walk, match: Match) -> None:
    # On v1 the directory of a step belongs to the job's user, who can choose the tasks of this job only.
    if walk.ref.job is not None and walk.ref.job[0].startswith("slurm"):
        if match["part"] == "step":
            walk.put(step=match["part_id"], task=None)
        elif walk.ref.step is not None:
            walk.put(task=match["part_id"])


def _nomad(walk: _Walk, match: Match) -> None:
    if walk.parent.removesuffix(".slice") in ("nomad", "share", "reserve"):
        walk.work("nomad", f"{match['alloc']}/{match['nomad_task']}")


def _condor(walk: _Walk, match: Match) -> None:
    if walk.parent == "htcondor" or "condor" in match[0]:
        walk.work("htcondor", match["slot"])


def _pbs(walk: _Walk, _: Match) -> None:
    job_id = walk.names[walk.at + 2]
    if walk.child in ("jobid", "jobs") and PBS_ID.fullmatch(job_id):
        walk.work("pbs", job_id)


def _job(kind: str, group: str | int = 0) -> Reader:
    return lambda walk, match: walk.work(kind, match[group])


def _container(runtime: str, group: str | int = 0) -> Reader:
    return lambda walk, match: walk.contain(runtime, match[group])


FORMS: dict[str, tuple[str, Reader]] = {
    # Helpers come first: their names contain the id of the container.
    "helper": (r".+\.mount|lxc\.monitor(?:\..+)?|conmon", lambda walk, _: walk.put(monitor=True)),
    "oci": (rf"(?P<prefix>[a-z][a-z0-9_-]*)-(?P<oci_id>{ID})(?P<scope>\.scope)?", _oci),
    "bare": (ID, _bare),
    "systemd_pod": (SYSTEMD_POD, lambda walk, match: walk.pod(match["uid"], match["qos"] or "guaranteed")),
    # A pod without a class is guaranteed, but only if the path was not cut off above it.
    "plain_pod": (
        rf"pod(?P<plain_uid>{POD_UID})",
        lambda walk, match: walk.pod(match["plain_uid"], QOS.get(walk.parent)),
    ),
    "fargate": (r"[0-9a-f]{32}-\d+", _container("ecs-fargate")),
    "garden": (r"[0-9a-f]{8}(?:-[0-9a-f]{4}){4}", _container("garden")),
    "lxc": (rf"lxc\.payload\.(?P<lxc_name>{NAME.pattern})", _container("lxc", "lxc_name")),
    "nspawn": (rf"systemd-nspawn@(?P<instance>{TEXT})\.service", lambda walk, f: _nspawn(walk, f["instance"])),
    "machine_scope": (rf"machine-(?P<machine>{TEXT})\.scope", _machine),
    "slurm": (r"slurm(?:_.+)?|(?:.+_)?slurmstepd\.scope", _slurm),
    "slurm_job": (r"job_(?P<slurm_id>\d+)|s[0-9A-HJKMNP-TV-Z]{13}", _slurm_job),
    "slurm_part": (r"(?P<part>step|task)_(?P<part_id>[A-Za-z0-9+]+)", _slurm_part),
    "nomad": (rf"(?P<alloc>{UUID})\.(?P<nomad_task>{TEXT}?)(?:\.scope)?", _nomad),
    "condor": (r"(?:.+_)?(?P<slot>slot\d+(?:_\d+)*)@.+", _condor),
    "apptainer": (r"apptainer-(?P<apptainer_pid>\d+)\.scope", _job("apptainer", "apptainer_pid")),
    "singularity": (r"singularity-(?P<singularity_pid>\d+)\.scope", _job("singularity", "singularity_pid")),
    "ecs": (r"ecstasks-(?P<ecs_task>[0-9a-f]{32})\.slice", _job("ecs", "ecs_task")),
    "oar": (r"oar-u?\d+-j(?P<oar_id>\d+)(?:-s\w+)?(?:\.\w+)?", _job("oar", "oar_id")),
    "pbs": (r"pbs_jobs\.service", _pbs),
    "qemu": (rf"(?:qemu-\d+-)?(?P<qemu_name>{TEXT})\.libvirt-qemu", _job("libvirt-qemu", "qemu_name")),
}
"""Shape and reader of each kind of name, tried in this order."""
FORM = re.compile("|".join(f"(?P<{form}>{shape})" for form, (shape, _) in FORMS.items()), re.ASCII)
READERS = {form: reader for form, (_, reader) in FORMS.items()}
LIBVIRT = re.compile(rf"(qemu|lxc)-(?:\d+-)?({TEXT})", re.ASCII)
CTR_PLACE = re.compile(r"[A-Za-z0-9][\w.-]{0,75}/[A-Za-z0-9][\w.-]{0,75}", re.ASCII)
"""The path of a container of `ctr run`: the namespace and an id that the user chose."""
PBS_ID = re.compile(r"\d[\w.\[\]-]*", re.ASCII)
UNDER: dict[str, tuple[re.Pattern[str], Reader]] = {
    "lxc": (NAME, _container("lxc")),
    "lxc.payload": (NAME, _container("lxc")),
    "ecs": (re.compile(rf"[0-9a-f]{{32}}|{UUID}"), _job("ecs")),
    "oar": (re.compile(r".+_(\d+)", re.ASCII), _job("oar", 1)),
    "oar.slice": (re.compile(r".+_(\d+)\.scope", re.ASCII), _job("oar", 1)),
}
"""Names that are recognized by their parent directory."""
