"""The workload a pod belongs to, told from the pod alone, so that no right to read other objects is needed.

Where the pod does not prove who stands above its owner, the owner itself is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gpuledger.owners.kubejson import text

Workload = tuple[str, str]
"""Kind and name, as `("Deployment", "vllm")`."""

MIRROR = "kubernetes.io/config.mirror"
"""Marks the API's image of a static pod, which only a file on the node owns."""
TEMPLATE_HASHES = {"pod-template-hash": "Deployment", "rollouts-pod-template-hash": "Rollout"}
"""The label that repeats the end of a ReplicaSet's name, and the kind of who made that ReplicaSet."""
RAY_KIND, RAY_NAME = "ray.io/originated-from-crd", "ray.io/originated-from-cr-name"
# A CronJob appends the minutes since 1970 (seconds before Kubernetes 1.21). What begins with 20 is a date somebody
# wrote: in minutes it would be 2008, years before there were CronJobs.
SCHEDULED = re.compile(r"(.+)-(?!20)[0-9]{8,}", re.DOTALL)


def workload(
    owner_references: Sequence[Mapping[str, object]],
    pod_labels: Mapping[str, str],
    pod_name: str,
    annotations: Mapping[str, str],
) -> Workload:
    """Kind and name of the workload; a pod that nobody controls is its own."""
    kind, name = _controller(owner_references)
    if not kind or not name or kind == "Node" or MIRROR in annotations:
        return "Pod", pod_name
    ray_kind, ray_name = pod_labels.get(RAY_KIND, ""), pod_labels.get(RAY_NAME, "")
    if ray_kind.startswith("Ray") and ray_name:  # both a cluster's pods and a job's submitter carry them
        return ray_kind, ray_name
    if kind == "ReplicaSet":
        for label, maker in TEMPLATE_HASHES.items():
            made = name.removesuffix(f"-{pod_labels[label]}") if pod_labels.get(label) else name
            if made and made != name:
                return maker, made
    if kind == "Job" and (scheduled := SCHEDULED.fullmatch(name)):
        return "CronJob", scheduled[1]
    return kind, name


def _controller(owner_references: Sequence[Mapping[str, object]]) -> Workload:
    """The owner that controls the pod; the only owner where none says so."""
    found = [owner for owner in owner_references if owner.get("controller") is True]
    if not found and len(owner_references) == 1:
        found = [owner_references[0]]
    return (text(found[0].get("kind")), text(found[0].get("name"))) if found else ("", "")
