"""What providers know: names for the ids that cgroups and device plugins give.

A provider hands over a whole `Names` at a time, and it replaces the one before; nobody sees half of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Container:
    """A running container, as its runtime knows it."""

    id: str
    name: str = ""
    """Docker's or Podman's name, or the container's name in its pod."""
    image: str = ""
    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""
    labels: Labels = ()
    device_ids: tuple[str, ...] = ()
    """GPUs it was given, in the runtime's own words; `devices.parse` reads them. Access, not use."""
    visible_ids: tuple[str, ...] = ()
    """GPUs that only its NVIDIA_VISIBLE_DEVICES names."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of this node."""

    uid: str
    namespace: str = ""
    name: str = ""
    workload_kind: str = ""
    workload_name: str = ""
    labels: Labels = ()
    """Only those on the allow-list."""
    other_uids: tuple[str, ...] = ()
    """A static pod has another uid in its cgroup than in the API."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A device the kubelet gave to a container of a pod, whether it is used or not."""

    namespace: str
    pod: str
    container: str
    resource: str
    device_id: str


@dataclass(frozen=True, slots=True)
class Names:
    """All that one provider knows now."""

    containers: Mapping[str, Container] = field(default_factory=dict)
    """By full id."""
    pods: Mapping[str, Pod] = field(default_factory=dict)
    """By uid."""
    allocations: tuple[Allocation, ...] = ()
    jobs: Mapping[tuple[int, int | None], tuple[str, ...]] = field(default_factory=dict)
    """Batch jobs by GPU index and MIG instance id, or None for the whole GPU."""
