"""The names that providers report for the ids in cgroups and device plugins, and how names of several providers join.

Each poll of a provider replaces its `Names` as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from gpuledger.model import Owner
from gpuledger.model.record import dataclass

Labels = tuple[tuple[str, str], ...]
NAMES = ("name", "image", "namespace", "pod", "pod_uid", "pod_labels", "labels")
"""Fields of a container that several providers report."""


@dataclass(frozen=True, slots=True)
class PodLabels:
    """The pod that labels of a container name. Whoever starts a container in Docker can choose them."""

    uid: str
    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Container:
    """A running container, as its runtime reports it."""

    id: str
    name: str = ""
    """The name in Docker or Podman, or in its pod."""
    image: str = ""
    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""
    pod_labels: PodLabels | None = None
    """Used only if the container's cgroup has the same pod uid."""
    labels: Labels = ()
    device_ids: tuple[str, ...] = ()
    """Ids of GPUs passed to it, for `devices.parse`. They grant access and do not prove use."""
    visible_ids: tuple[str, ...] = ()
    """GPUs that only its NVIDIA_VISIBLE_DEVICES names."""


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """A part of a GPU that a scheduler gave to a container of a pod. The kubelet does not know of it."""

    container: str
    device_id: str = ""
    """For `devices.parse`."""
    group: str = ""
    """Instead of a device, the group of pods that share the GPU of one reservation pod."""
    source: str = ""
    """The scheduler; empty if it is not known how large the part is."""
    compute: float | None = None
    """Part of the device's compute; None if it is not limited."""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of this node."""

    uid: str
    namespace: str = ""
    name: str = ""
    workload_kind: str = ""
    workload_name: str = ""
    labels: Labels = ()
    """The labels on the allow-list."""
    other_uids: tuple[str, ...] = ()
    """The uid in the cgroup of a static pod, which differs from the uid in the API."""
    metrics_url: str = ""
    """Where the pod exposes its own metrics, by its annotations."""
    claims: tuple[str, ...] = ()
    """Names of its ResourceClaims."""
    shares: tuple[DeviceShare, ...] = ()
    shares_problem: str = ""
    """Why its annotations do not tell the size of its shares."""


@dataclass(frozen=True, slots=True, order=True)
class KubeletAllocation:
    """A device that the kubelet allocated to a container of a pod, whether it is used or not."""

    namespace: str
    pod: str
    container: str
    resource: str
    device_id: str
    claim: tuple[str, str, str] = ("", "", "")
    """Namespace and name of the ResourceClaim, and the device of its driver."""


@dataclass(frozen=True, slots=True)
class Names:
    """All names of one provider."""

    containers: Mapping[str, Container] = field(default_factory=dict)
    """By full id."""
    pods: Mapping[str, Pod] = field(default_factory=dict)
    """By uid."""
    allocations: tuple[KubeletAllocation, ...] = ()
    capacities: Mapping[tuple[str, str, str], DeviceShare] = field(default_factory=dict)
    """What claims consume of shared devices."""
    replicas: tuple[str, ...] = ()
    """The ids of all replicas of shared devices, allocated or not."""
    jobs: Mapping[tuple[int, int | None], tuple[str, ...]] = field(default_factory=dict)
    """Batch jobs by GPU index and MIG instance id, or None for the whole GPU."""
    accounts: Mapping[str, str] = field(default_factory=dict)
    """The account to which the scheduler bills a job, by the id of the job."""
    job_uids: Mapping[str, str] = field(default_factory=dict)
    """The uid of the user of a job, by the id of the job."""
    uid: int | None = None
    """The user whose daemon reported the names, which count only for containers in cgroups of that user. None if they
    count for all containers: the daemon belongs to root or to the exporter's own user, or has a network address."""


class NamesIndex:
    """The names of all providers, found by id."""

    def __init__(self, names: tuple[Names, ...] = ()) -> None:
        self.names = names

    def is_of(self, names: tuple[Names, ...]) -> bool:
        """Whether the index was built from these same objects."""
        return len(names) == len(self.names) and all(a is b for a, b in zip(names, self.names, strict=True))

    def named(self, owner: Owner, uid: int | None = None) -> Owner:
        """The owner with the names of its container and its pod; `uid` is the owner of the container's cgroup."""
        container = self.container(owner.container_id, uid)
        if container is not None:
            container = _in_labelled_pod(container, owner.pod_uid)
            owner = replace(
                owner,
                container=container.name,
                image=container.image,
                namespace=container.namespace,
                pod=container.pod,
                pod_uid=container.pod_uid or owner.pod_uid,
                labels=container.labels,
            )
        pod = self._pod(owner.pod_uid)
        if pod is not None:
            owner = replace(
                owner,
                namespace=pod.namespace,
                pod=pod.name,
                workload_kind=pod.workload_kind or owner.workload_kind,
                workload_name=pod.workload_name or owner.workload_name,
                labels=tuple(dict((*owner.labels, *pod.labels)).items()),
                metrics_url=pod.metrics_url,
            )
        return owner

    def account(self, job_id: str) -> str:
        """The account to which a job is billed; empty if it is not known."""
        return next((names.accounts[job_id] for names in self.names if job_id in names.accounts), "")

    def job_uids(self) -> Mapping[str, str]:
        """The uid of the user of each job, by the id of the job."""
        return {job: uid for names in self.names for job, uid in names.job_uids.items()}

    def container(self, container_id: str, uid: int | None = None) -> Container | None:
        """The most complete report of a container of this user, its empty fields filled from the other reports."""
        reports = [names.containers[container_id] for names in self.names
                   if container_id in names.containers and names.uid == uid]  # fmt: skip
        if not reports:
            return None
        best = max(reports, key=lambda report: (bool(report.pod), bool(report.name), bool(report.image)))
        for other in reports:
            best = replace(best, **{name: getattr(best, name) or getattr(other, name) for name in NAMES})
        return best

    def is_in_pod(self, owner: Owner) -> bool:
        """Whether a container is in the pod of its cgroup; a static pod has another uid there than in the API."""
        container = self.container(owner.container_id)
        uid, pod = container.pod_uid if container else "", self._pod(owner.pod_uid)
        return not (uid and owner.pod_uid) or owner.pod_uid == uid or (pod is not None and pod.uid == uid)

    def _pod(self, uid: str) -> Pod | None:
        if not uid:
            return None
        reports = [names.pods[uid] for names in self.names if uid in names.pods]
        return max(reports, key=lambda pod: bool(pod.workload_kind), default=None)


def _in_labelled_pod(container: Container, pod_uid: str) -> Container:
    """The container in the pod that its labels name, if the cgroup has the uid of that pod."""
    labels = container.pod_labels
    if labels is None or container.pod_uid or labels.uid != pod_uid:
        return container
    return replace(
        container,
        name=labels.container or container.name,
        namespace=labels.namespace,
        pod=labels.pod,
        pod_uid=labels.uid,
    )
