"""Which servers to read, and which owner each of them belongs to. Pure.

A setting is `OWNER=URL`, or `annotations` for the pods of this node that have the annotations of Prometheus:

    NAMESPACE/POD=http://10.0.0.7:8000/metrics
    CONTAINER=http://localhost:8000/metrics     a container of Docker or Podman, by name
    unit:vllm.service=URL                       processes of a systemd unit
    job:slurm/211=URL                           processes of a batch job
    pid:4711=URL                                one process
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.config.parsers import ANNOTATIONS, owner_and_url
from gpuledger.model import ContainerUse, Owner, ProcessUse

PROCESS_KINDS = ("unit", "job", "pid")


@dataclass(frozen=True, slots=True)
class Target:
    """A server's metrics, and the owner that its tokens belong to."""

    owner: str
    """The owner as configured; `namespace/pod` of an annotated pod."""
    url: str
    pod_uid: str = ""
    """The uid of an annotated pod: tokens belong to this pod only, not to a later one of the same name."""

    @property
    def of_processes(self) -> bool:
        """Whether the owner is matched to processes, not to containers."""
        return self.owner.partition(":")[0] in PROCESS_KINDS

    def has_container(self, use: ContainerUse) -> bool:
        """Whether a container belongs to the owner."""
        owner = use.owner
        if self.of_processes or not owner.container_id:
            return False
        if self.pod_uid:
            return owner.pod_uid == self.pod_uid
        if "/" in self.owner:
            return bool(owner.pod) and self.owner == f"{owner.namespace}/{owner.pod}"
        return not owner.pod and self.owner == owner.container

    def has_process(self, use: ProcessUse) -> bool:
        """Whether a process belongs to the owner."""
        kind, _, name = self.owner.partition(":")
        owner = use.owner
        if kind == "pid":
            return str(use.resident.pid) == name
        if kind == "unit":
            return owner.unit == name and not owner.container_id
        return kind == "job" and bool(owner.job) and name in (owner.job, owner.job.rpartition("/")[2])


def parse_target(text: str) -> Target | None:
    """The target of a setting; None for `annotations`. Raises ValueError."""
    return None if text == ANNOTATIONS else Target(*owner_and_url(text))


def annotated(owner: Owner) -> Target | None:
    """The target that the annotations of a pod name."""
    if not owner.metrics_url or not owner.pod_uid or not owner.pod:
        return None
    return Target(f"{owner.namespace}/{owner.pod}", owner.metrics_url, owner.pod_uid)
