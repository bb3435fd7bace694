r"""The container, pod, unit and batch job of a process, from the text of /proc/PID/cgroup.

Pure; any text gives a `CgroupRef`. A path is read from the root down, one directory name at a time. `FORMS` recognizes
a name by its shape, `UNDER` by its parent directory. No pattern starts at the root, because inside a private cgroup
namespace the path lacks its first part (`/../../cri-containerd-….scope`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

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
POD_HOLDERS = ("libpod_parent", "kata_overhead")
"""Parent directories of pods and sandboxes with a bare id; Podman's containers are below them as libpod-ID."""


@dataclass(frozen=True, slots=True)
class CgroupRef:
    """The parts of one cgroup path; None if the path lacks a part."""

    runtime: str | None = None
    container_id: str | None = None
    outer: tuple[str, ...] = ()
    """Ids of the containers around this one, outermost first: nodes of kind or Docker-in-Docker."""
    pod_uid: str | None = None
    qos: str | None = None
    unit: str | None = None
    """The systemd unit around the container, or of the process."""
    job: tuple[str, str] | None = None
    """Scheduler and job id; for `slurm-sluid` the SLUID, for which `slurm.py` finds the number."""
    step: str | None = None
    task: str | None = None
    monitor: bool = False
    """Whether the process is a helper of a container (conmon, lxc.monitor, a mount), not the workload."""

    def to_dict(self) -> dict[str, object]:
        """As JSON: tuples become lists."""
        return asdict(self) | {"outer": list(self.outer), "job": None if self.job is None else list(self.job)}


def parse(text: str) -> CgroupRef:
    """Parse the most specific of all lines: on hybrid hosts the v2 line may name only the runtime's own service."""
    paths = {_path(line) for line in text.split("\n")}  # a set: the dozen lines of v1 mostly have one path
    return max((_specificity(path, parse_path(path)) for path in paths), key=lambda pair: pair[0])[1]


def _path(line: str) -> str:
    """The path in `HIERARCHY:CONTROLLERS:PATH`, which may contain colons; a bare path is returned unchanged."""
    if line.startswith("/"):
        return line
    hierarchy, _, controllers_and_path = line.partition(":")
    return controllers_and_path.partition(":")[2] if hierarchy.isdigit() else ""


def _specificity(path: str, ref: CgroupRef) -> tuple[tuple[object, ...], CgroupRef]:
    levels = len(ref.outer) + (ref.container_id is not None)
    parts = (ref.pod_uid, ref.job, ref.step, ref.task, ref.unit, ref.qos)
    # The path is the last criterion, so that the result does not depend on the order of lines.
    return (levels, *(value is not None for value in parts), ref.monitor, path.count("/"), path), ref


def parse_path(path: str) -> CgroupRef:
    """Parse one path; ` (deleted)` of a removed cgroup is ignored."""
    names = path.removesuffix(" (deleted)").split("/")
    if names[0] or any(len(name) > NAME_MAX for name in names):
        return CgroupRef()
    if ":" in path:
        names = [part for name in names for part in COLON.sub(r"\1/\2-\3.scope", name).split("/")]
    names = [name for name in names if name not in ("", ".", "..")]
    walk = _Walk(["", "", *names, "", ""])
    while walk.at < len(names) + 2 and not walk.monitor:
        walk.read()
        walk.at += 1
    return walk.result()


@dataclass(slots=True)
class _Walk:
    """The state while reading a path downwards; `names` is padded by two, so each name has a parent and a child."""

    names: list[str]
    at: int = 2
    parent: str = ""
    child: str = ""
    containers: list[tuple[str, str]] = field(default_factory=list)
    pod_uid: str | None = None
    pod_at: int = 0
    qos: str | None = None
    unit: str | None = None
    unit_outside: str | None = None
    job: tuple[str, str] | None = None
    step: str | None = None
    task: str | None = None
    monitor: bool = False
    slurm: bool = False

    def read(self) -> None:
        self.parent, raw, self.child = self.names[self.at - 1 : self.at + 2]
        name = _unescape(raw) if "\\" in raw else raw
        levels = len(self.containers)
        under = UNDER.get(self.parent)
        if under is not None and (match := under[0].fullmatch(name)):
            under[1](self, match)
        elif match := FORM.fullmatch(name):
            READERS[match.lastgroup or ""](self, match)
        is_unit = name.endswith((".service", ".scope")) and name[0] != "." and name.isprintable()
        if is_unit and len(self.containers) == levels:
            self.unit = name

    def contain(self, runtime: str, container_id: str) -> None:
        if self.containers and self.containers[-1][1] == container_id:
            self.containers.pop()  # some runtimes repeat the id in a child cgroup
        self.containers.append((runtime, container_id))
        self.unit_outside = self.unit

    def pod(self, uid: str, qos: str | None) -> None:
        self.pod_uid, self.qos, self.pod_at = uid.replace("_", "-"), qos, self.at

    def work(self, kind: str, job_id: str) -> None:
        self.job, self.step, self.task = (kind, job_id), None, None

    def result(self) -> CgroupRef:
        runtime, container_id = self.containers[-1] if self.containers else (None, None)
        return CgroupRef(
            runtime=runtime,
            container_id=container_id,
            outer=tuple(outer_id for _, outer_id in self.containers[:-1]),
            pod_uid=self.pod_uid,
            qos=self.qos,
            unit=self.unit_outside if self.containers else self.unit,
            job=self.job,
            step=self.step,
            task=self.task,
            monitor=self.monitor,
        )


Match = re.Match[str]
Reader = Callable[[_Walk, Match], None]


def _unescape(name: str) -> str:
    r"""Undo systemd's escapes of printable ASCII, such as `\x2d` for a dash."""

    def plain(match: Match) -> str:
        char = chr(int(match[1], 16))
        return char if " " < char < "\x7f" and char != "/" else match[0]

    return re.sub(r"\\x([0-9a-f]{2})", plain, name)


def _helper(walk: _Walk, _: Match) -> None:
    walk.monitor = True


def _oci(walk: _Walk, match: Match) -> None:
    prefix, container_id, scope = match["prefix"], match["oci_id"], match["scope"]
    if prefix.endswith("conmon"):
        walk.monitor = True
    # In a slice, containers of CRI-O are scopes; another directory is the sandbox of the pod.
    elif scope or (prefix in RUNTIMES and not (prefix == "crio" and walk.parent.endswith(".slice"))):
        walk.contain(RUNTIMES.get(prefix, "unknown"), container_id)


def _bare(walk: _Walk, match: Match) -> None:
    runtime = BARE_RUNTIMES.get(walk.parent, "unknown")
    if walk.pod_at == walk.at - 1:
        runtime = "kubernetes"
    elif walk.names[walk.at - 2] == "ecs" and walk.job is not None:
        runtime = "docker"
    is_pod = walk.parent in POD_HOLDERS or walk.child.startswith("libpod-")
    if not (is_pod and runtime == "unknown"):
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
        walk.monitor = True
    elif NAME.fullmatch(machine):
        walk.contain("nspawn", machine)


def _systemd_pod(walk: _Walk, match: Match) -> None:
    walk.pod(match["uid"], match["qos"] or "guaranteed")


def _plain_pod(walk: _Walk, match: Match) -> None:
    # A pod without a class is guaranteed, but only if the path was not cut off above it.
    walk.pod(match["plain_uid"], QOS.get(walk.parent))


def _slurm(walk: _Walk, _: Match) -> None:
    walk.slurm = True


def _slurm_job(walk: _Walk, match: Match) -> None:
    if walk.slurm or walk.child.startswith("step_"):
        walk.work(*(("slurm", match["slurm_id"]) if match["slurm_id"] else ("slurm-sluid", match[0])))


def _slurm_part(walk: _Walk, match: Match) -> None:
    if walk.job is not None and walk.job[0].startswith("slurm"):
        if match["part"] == "step":
            walk.step, walk.task = match["part_id"], None
        elif walk.step is not None:
            walk.task = match["part_id"]


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
    "helper": (r".+\.mount|lxc\.monitor(?:\..+)?|conmon", _helper),
    "oci": (rf"(?P<prefix>[a-z][a-z0-9_-]*)-(?P<oci_id>{ID})(?P<scope>\.scope)?", _oci),
    "bare": (ID, _bare),
    "systemd_pod": (SYSTEMD_POD, _systemd_pod),
    "plain_pod": (rf"pod(?P<plain_uid>{POD_UID})", _plain_pod),
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
PBS_ID = re.compile(r"\d[\w.\[\]-]*", re.ASCII)
UNDER: dict[str, tuple[re.Pattern[str], Reader]] = {
    "lxc": (NAME, _container("lxc")),
    "lxc.payload": (NAME, _container("lxc")),
    "ecs": (re.compile(rf"[0-9a-f]{{32}}|{UUID}"), _job("ecs")),
    "oar": (re.compile(r".+_(\d+)", re.ASCII), _job("oar", 1)),
    "oar.slice": (re.compile(r".+_(\d+)\.scope", re.ASCII), _job("oar", 1)),
}
"""Names that are recognized by their parent directory."""
