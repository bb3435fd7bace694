"""The pods of one node, from a list and the events after it: names, workloads and running containers.

Pure. Malformed JSON raises AnswerError and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from gpuledger.errors import AnswerError
from gpuledger.net.address import parse_url
from gpuledger.net.answers import ElementsError, load_json
from gpuledger.net.jsonvalues import as_dict, as_dicts, as_line, as_text, as_text_map
from gpuledger.owners.names import Container, Names, Pod
from gpuledger.owners.providers.fractions import device_shares

MOST_PODS, MOST_CONTAINERS = 10_000, 1000
"""A node runs a few hundred pods at most."""
EXPIRED = "expired"
"""The kind of AnswerError for a version that the server no longer has (410)."""
STATIC_UID = "kubernetes.io/config.hash"
"""The annotation with the uid that a static pod has in its cgroup; in the API it has another one."""
CONTAINER_KINDS = (("containerStatuses", "containers"), ("initContainerStatuses", "initContainers"),
                   ("ephemeralContainerStatuses", "ephemeralContainers"))  # fmt: skip
"""Where status and spec of each kind of container are."""

Workload = tuple[str, str]
"""Kind and name, such as `("Deployment", "vllm")`."""
SCRAPE = "prometheus.io"
"""Prefix of the annotations that Prometheus uses by convention to find metrics."""
SCHEMES, PORT, PATH = ("http", "https"), re.compile("[0-9]{1,5}"), re.compile("/(?!/)[!-~]*")
"""What annotations may choose. The host is always the pod's own address."""
MIRROR = "kubernetes.io/config.mirror"
"""Marks the API's copy of a static pod, which only a file on the node owns."""
TEMPLATE_HASHES = {"pod-template-hash": "Deployment", "rollouts-pod-template-hash": "Rollout"}
"""The label with the end of a ReplicaSet's name, and the kind of object that created that ReplicaSet."""
RAY_KIND, RAY_NAME = "ray.io/originated-from-crd", "ray.io/originated-from-cr-name"
# A CronJob appends the minutes since 1970 (seconds before Kubernetes 1.21). A number that begins with 20 is a date in a
# name: as minutes it would be 2008, before there were CronJobs.
SCHEDULED = re.compile(r"(.+)-(?!20)[0-9]{8,}", re.DOTALL)


class Pods:
    """The pods of one node."""

    def __init__(self, node_name: str, is_allowed: Callable[[str], object]) -> None:
        self._node_name = node_name
        self._is_allowed = is_allowed
        self._pods: dict[str, tuple[Pod, tuple[Container, ...]]] = {}
        self._names: Names | None = None
        self.version = ""
        """The version from which to watch; empty before the first page."""

    def put_page(self, body: bytes) -> str:
        """Add a page of a list; the token of the next page, empty after the last."""
        page = read_json(body)
        meta, items = as_dict(page.get("metadata")), page.get("items")
        self.version = as_text(meta.get("resourceVersion"))
        if not isinstance(items, list) or not self.version:
            raise AnswerError("did not return a list of pods", kind="format")
        for item in items:
            self.put(item)
        token = meta.get("continue")
        return token if isinstance(token, str) else ""

    def apply(self, line: bytes) -> None:
        """Apply an event of a watch."""
        event = read_json(line)
        kind, item = as_text(event.get("type")), as_dict(event.get("object"))
        if kind in ("ADDED", "MODIFIED"):
            self.put(item)
        elif kind == "DELETED":
            self.drop(item)
        elif kind == "ERROR":
            if item.get("code") == 410:
                raise AnswerError("no longer has the watched version", kind=EXPIRED)
            reason = as_line(item.get("message")) or "no reason given"
            raise AnswerError(f"ended the watch: {reason}", kind="http")
        elif kind != "BOOKMARK":
            raise AnswerError(f"sent an unknown event, {kind[:60]!r}", kind="format")
        self.version = as_text(as_dict(item.get("metadata")).get("resourceVersion")) or self.version

    def put(self, item: object) -> None:
        """Add a pod or change it."""
        entry = read_pod(item, self._is_allowed)
        if entry is None or as_dict(as_dict(item).get("spec")).get("nodeName", self._node_name) != self._node_name:
            return
        uid = entry[0].uid
        if self._pods.get(uid) != entry:  # most events change fields that are not read here
            self._pods[uid] = entry
            self._names = None
        if len(self._pods) > MOST_PODS:
            raise AnswerError(f"lists more than {MOST_PODS} pods on this node", kind="size")

    def drop(self, item: object) -> None:
        """Remove a pod."""
        if self._pods.pop(as_text(as_dict(as_dict(item).get("metadata")).get("uid")), None) is not None:
            self._names = None

    def empty(self) -> Pods:
        """The same node without pods, to be filled by a new list."""
        return Pods(self._node_name, self._is_allowed)

    def replace(self, listed: Pods) -> None:
        """Take over the pods of a new list."""
        self.version = listed.version
        if self._pods != listed._pods:
            self._pods, self._names = listed._pods, None

    @property
    def changed(self) -> bool:
        """Whether `names` differs from its last value."""
        return self._names is None

    @property
    def names(self) -> Names:
        """All names; the same object until a pod changes."""
        if self._names is None:
            pods = {uid: pod for uid, (pod, _) in self._pods.items()}
            static = {uid: pod for pod in pods.values() for uid in pod.other_uids if uid not in pods}
            containers = {container.id: container for _, running in self._pods.values() for container in running}
            self._names = Names(containers, pods | static)
        return self._names


def read_json(body: bytes) -> dict[str, Any]:
    """A JSON object; empty for other JSON."""
    try:
        return as_dict(load_json(body))
    except ElementsError as error:
        raise AnswerError(f"sent {error}", kind="size") from None
    except (ValueError, RecursionError):
        raise AnswerError("did not return JSON", kind="format") from None


def read_pod(item: object, is_allowed: Callable[[str], object]) -> tuple[Pod, tuple[Container, ...]] | None:
    """A pod with its allowed labels, and its running containers; None for other JSON."""
    meta, spec, status = (as_dict(as_dict(item).get(part)) for part in ("metadata", "spec", "status"))
    uid, name, namespace = (as_text(meta.get(key)) for key in ("uid", "name", "namespace"))
    if not uid or not name:
        return None
    labels, annotations = as_text_map(meta.get("labels")), as_text_map(meta.get("annotations"))
    kind, owner = workload(as_dicts(meta.get("ownerReferences")), labels, name, annotations)
    static_uid = annotations.get(STATIC_UID, "")
    containers = [as_text(container.get("name")) for container in as_dicts(spec.get("containers"))]
    shares, shares_problem = device_shares(labels, annotations, containers)
    pod = Pod(
        uid=uid,
        namespace=namespace,
        name=name,
        workload_kind=kind,
        workload_name=owner,
        labels=tuple(sorted((label, value) for label, value in labels.items() if is_allowed(label))),
        other_uids=(static_uid,) if static_uid and static_uid != uid else (),
        metrics_url=metrics_url(annotations, spec, status),
        claims=tuple(_claims(spec, status)),
        shares=shares,
        shares_problem=shares_problem,
    )
    return pod, tuple(_containers(pod, spec, status))


def _claims(spec: Mapping[str, object], status: Mapping[str, object]) -> Iterator[str]:
    """The names of the pod's ResourceClaims, those that were created for it included."""
    for entries in (as_dicts(spec.get("resourceClaims")), as_dicts(status.get("resourceClaimStatuses"))):
        yield from (name for entry in entries if (name := as_text(entry.get("resourceClaimName"))))


def metrics_url(annotations: Mapping[str, str], spec: Mapping[str, object], status: Mapping[str, object]) -> str:
    """Where the pod exposes its own metrics, by its annotations; empty if it does not, or if one is malformed."""
    if annotations.get(f"{SCRAPE}/scrape") != "true" or not (host := _own_address(spec, status)):
        return ""
    scheme, port = annotations.get(f"{SCRAPE}/scheme") or "http", annotations.get(f"{SCRAPE}/port", "")
    path = annotations.get(f"{SCRAPE}/path") or "/metrics"
    path = path if path.startswith("/") else f"/{path}"
    if scheme not in SCHEMES or not PORT.fullmatch(port) or not PATH.fullmatch(path):
        return ""
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{path}"
    return url if parse_url(url) else ""


def _own_address(spec: Mapping[str, object], status: Mapping[str, object]) -> str:
    """The pod's address; empty if it leads to another server.

    A pod in the host's network has the address of the node: its annotations could name any port of the node. Loopback
    and link-local addresses lead to the exporter's own host and to metadata services.
    """
    address = as_text(status.get("podIP"))
    try:
        ip = ip_address(address)
    except ValueError:
        return ""
    is_own = not (ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified)
    is_own &= not (ip.version == 6 and (ip.is_reserved or ip.ipv4_mapped))  # such as ::ffff:127.0.0.1
    is_own &= spec.get("hostNetwork") is not True and address != status.get("hostIP")
    return address if is_own else ""


def _containers(pod: Pod, spec: Mapping[str, object], status: Mapping[str, object]) -> list[Container]:
    running = []
    for status_key, spec_key in CONTAINER_KINDS:
        images = {as_text(entry.get("name")): as_text(entry.get("image")) for entry in as_dicts(spec.get(spec_key))}
        for entry in as_dicts(status.get(status_key)):
            container_id = as_text(entry.get("containerID")).rpartition("://")[2]
            if not container_id or not isinstance(as_dict(entry.get("state")).get("running"), Mapping):
                continue
            name, image = as_text(entry.get("name")), as_text(entry.get("image"))
            if not image or image.startswith("sha256:"):  # if an image has several names, runtimes report none
                image = images.get(name) or image
            running.append(Container(container_id, name, image, pod.namespace, pod.name, pod.uid))
    return running[:MOST_CONTAINERS]


def workload(
    owner_references: Sequence[Mapping[str, object]],
    pod_labels: Mapping[str, str],
    pod_name: str,
    annotations: Mapping[str, str],
) -> Workload:
    """The workload of a pod; a pod without a controller is its own.

    Only the pod is read, so that no right to read other objects is needed. If the pod does not show what created its
    controller, the result is the controller.
    """
    kind, name = _controller(owner_references)
    if not kind or not name or kind == "Node" or MIRROR in annotations:
        return "Pod", pod_name
    ray_kind, ray_name = pod_labels.get(RAY_KIND, ""), pod_labels.get(RAY_NAME, "")
    if ray_kind.startswith("Ray") and ray_name:  # both a cluster's pods and a job's submitter have them
        return ray_kind, ray_name
    if kind == "ReplicaSet":
        for label, creator in TEMPLATE_HASHES.items():
            created_by = name.removesuffix(f"-{pod_labels[label]}") if pod_labels.get(label) else name
            if created_by and created_by != name:
                return creator, created_by
    if kind == "Job" and (scheduled := SCHEDULED.fullmatch(name)):
        return "CronJob", scheduled[1]
    return kind, name


def _controller(owner_references: Sequence[Mapping[str, object]]) -> Workload:
    """The owner marked as controller, or else the only owner."""
    controllers = [owner for owner in owner_references if owner.get("controller") is True]
    if not controllers and len(owner_references) == 1:
        controllers = [owner_references[0]]
    return (as_text(controllers[0].get("kind")), as_text(controllers[0].get("name"))) if controllers else ("", "")
