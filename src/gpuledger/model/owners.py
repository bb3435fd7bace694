"""The owners of processes: facts from the kernel, and names from runtimes, kubelets and schedulers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple

from gpuledger.model.problem import Problem
from gpuledger.model.readings import Device, Labelled
from gpuledger.model.record import dataclass


@dataclass(frozen=True, slots=True)
class Facts:
    """A process as the kernel reports it; (pid, start_ticks) identifies it within one boot."""

    pid: int
    start_ticks: int
    start_time_ms: int
    """Unix time."""
    name: str = ""
    uid: int | None = None
    cgroup: str = ""
    """The text of /proc/<pid>/cgroup."""
    user: str = ""
    """Name of the uid on the host."""
    inner_pid: int | None = None
    """Its pid inside its container, if different."""
    mps_server: str = ""
    """MPS_OF_ROOT or MPS_OF_USER if it has the name of an MPS server, which any process can choose; else empty."""
    program: str = ""
    """Hash of the executable and of its script or module; a command line is never shown."""


@dataclass(frozen=True, slots=True)
class HostUse:
    """What a process has used of the host itself."""

    start_ticks: int
    cpu_ns: int
    """CPU time of all its threads since its start."""
    memory_bytes: int
    """Resident memory."""


MPS_OF_ROOT, MPS_OF_USER = "root", "user"
"""Whether the process, or the control daemon that started it, has root's privileges on the host."""
SHORT_ID = 12
"""Characters of a container id that stand in for a missing name, as in `docker ps`."""
HOST = "host"
"""The name shown for processes that are in no container, unit or job."""
UNKNOWN = "unknown"
"""The name shown if the owner was not found."""


def job_id(job: str) -> str:
    """The id without the scheduler: 211 of slurm/211."""
    return job.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a process. An empty field is unknown or not applicable: a systemd service has no container."""

    container: str = ""
    container_id: str = ""
    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""
    pod_match: str = ""
    """How the pod's name was found: `device` if it is the only pod that holds the device; empty if it was reported."""
    runtime: str = ""
    image: str = ""
    workload_kind: str = ""
    workload_name: str = ""
    unit: str = ""
    job: str = ""
    """The scheduler and its id, as `slurm/211`."""
    step: str = ""
    task: str = ""
    user: str = ""
    account: str = ""
    """The account that the scheduler bills."""
    labels: tuple[tuple[str, str], ...] = ()
    metrics_url: str = ""
    """Where the pod exposes its own metrics, by its annotations `prometheus.io/...`."""
    reason: str = ""
    """Why the owner is incomplete; OUTSIDE for a process of the host; empty if it is complete."""
    outer: Owner | None = None
    """The outermost container around the owner, with --owners.nested=inner."""

    @property
    def display_name(self) -> str:
        """`namespace/pod/container` or the most specific known part, as in the page, `top`, `report` and `explain`.

        It does not change when the process restarts. A process in no container, unit or job belongs to `host`;
        `unknown` means that the owner was not found.
        """
        name = "/".join(part for part in self.display_parts if part)
        return name or self.job or self.unit or (HOST if self.reason == OUTSIDE else UNKNOWN)

    @property
    def display_parts(self) -> tuple[str, str, str]:
        """Namespace, pod and container as shown; ids stand in for missing names."""
        pod = self.pod or (f"pod {self.pod_uid}" if self.pod_uid else "")
        return self.namespace if self.pod else "", pod, self.container or self.container_id[:SHORT_ID]


UNKNOWN_OWNER = Owner()
"""The owner of a process if nothing is known about it."""
OUTSIDE = "not in a container"
"""The reason of a host process, as opposed to a process whose owner was not found."""


@dataclass(frozen=True, slots=True)
class Entitlement:
    """What the owner of an allocation asked for of the device."""

    source: str
    """`device`, `mig`, `replica`, `kai`, `hami`, `volcano` or `dra`."""
    compute_ratio: float | None = None
    """Part of the compute of the whole GPU; None if the owner did not ask for a part."""
    memory_bytes: int | None = None
    device_ratio: float = 1.0
    """Part of the compute of the whole GPU that the device has."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A device allocated to a pod's container, a container or a batch job, whether it is used or not."""

    device: Device
    owner: Owner
    """Namespace, pod and container; name and id of a container; or number and account of a job."""
    resource: str = ""
    """The resource of the kubelet, such as nvidia.com/gpu; empty for containers and jobs."""
    replica: str = ""
    entitlement: Entitlement | None = None
    """None if it is not known."""

    @property
    def key(self) -> AllocationKey:
        """Its identity."""
        return allocation_key(self.device, self.owner)

    @property
    def kind(self) -> str:
        """TO_POD, TO_CONTAINER or TO_JOB."""
        return self.key[1]


AllocationKey = tuple[str, ...]
"""uuid of the device, kind of the owner, and its names."""
TO_POD, TO_CONTAINER, TO_JOB = "pod", "container", "job"
"""Kinds of owners of allocations."""


def allocation_key(device: Device, owner: Owner) -> AllocationKey:
    """The identity of an allocation; replicas for one container are one allocation."""
    if owner.pod:
        return device.uuid, TO_POD, owner.namespace, owner.pod, owner.container
    if owner.job:
        return device.uuid, TO_JOB, owner.job
    return device.uuid, TO_CONTAINER, owner.container_id


EVIDENCE = ("maps", "allocation", "environment")
"""Best first: the GPU is mapped into a process; the device is allocated; NVIDIA_VISIBLE_DEVICES names it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """An owner that may hold memory of a device, whether the driver lists a process of it or not."""

    device: Device
    owner: Owner
    evidence: str
    """One of EVIDENCE."""
    pid: int | None = None
    """The process with the GPU in its memory map, for `maps`."""


class ProviderKind(NamedTuple):
    """A kind of name provider."""

    title: str
    """Its name as users know it."""
    reports: frozenset[str] = frozenset()
    """Some of `containers`, `pods`, `workloads`, `jobs`, and `allocations` of devices to any of them."""


PROVIDERS = {
    "podresources": ProviderKind("kubelet", frozenset({"pods", "allocations"})),
    "cri": ProviderKind("container runtime", frozenset({"containers", "pods"})),
    "kubernetes": ProviderKind("api server", frozenset({"pods", "workloads"})),
    "docker": ProviderKind("docker", frozenset({"containers", "allocations"})),
    "podman": ProviderKind("podman", frozenset({"containers", "allocations"})),
    "containerd": ProviderKind("containerd", frozenset({"containers"})),
    "hpcdir": ProviderKind("job directory", frozenset({"jobs", "allocations"})),
}
"""By the label `provider`."""


def providers_of(report: str) -> tuple[str, ...]:
    """The kinds of providers that report pods, allocations and so on."""
    return tuple(name for name, kind in PROVIDERS.items() if report in kind.reports)


@dataclass(frozen=True, slots=True)
class ProviderHealth:
    """Health of one name provider."""

    name: str
    """Its kind, with a number if it is not the first of its kind: docker, docker-2."""
    up: bool
    problem: Problem | None
    since_ns: int
    """Unix time of the last change between up and down."""
    last_success_ns: int
    """Unix time; 0 before the first success."""
    fetches: int
    failures: int

    @property
    def kind(self) -> ProviderKind:
        """The kind of provider."""
        name = self.name.partition("-")[0]
        return PROVIDERS.get(name, ProviderKind(name))

    @property
    def title(self) -> str:
        """The name as users know it, with the number."""
        return self.kind.title + self.name.removeprefix(self.name.partition("-")[0])

    @property
    def reason(self) -> str:
        """The problem as one line; empty if there is none."""
        return str(self.problem or "")


@dataclass(frozen=True, slots=True)
class Owners:
    """The result of the resolve stage."""

    by_pid: Mapping[int, Owner] = field(default_factory=dict)
    running: frozenset[str] = frozenset()
    """Ids of containers that have left their GPUs, and have processes or are not checked yet."""
    allocations: tuple[Allocation, ...] = ()
    """Of pods, containers and jobs, in this order."""
    job_uids: Mapping[str, str] = field(default_factory=dict)
    """The user of each job, by the job's number, from the prolog of a scheduler."""
    holders: tuple[Holder, ...] = ()
    providers: tuple[ProviderHealth, ...] = ()
    unresolved: Labelled = ()
    """Processes whose owner is not fully known, by reason."""
    conflicts: int = 0
    """Processes on a device that is allocated to another pod, since the start."""
    unknown_device_ids: int = 0
    """Device ids of unknown format in this tick."""
    malformed: tuple[Problem, ...] = ()
    """Pods whose annotations do not tell what they asked for."""
    host_pid_namespace: bool | None = None
    readable: Labelled = ()
    """Files of other processes that can be read: 1, else 0."""


NO_OWNERS = Owners()
