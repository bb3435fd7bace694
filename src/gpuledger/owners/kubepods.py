"""The pods of one node, from a list and the events after it: names, workloads, running containers.

Pure, and nothing but an HttpError is raised, whatever comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuledger.httpclient import HttpError
from gpuledger.owners.kubejson import line, mapping, mappings, read_json, text, texts
from gpuledger.owners.names import Container, Names, Pod
from gpuledger.owners.workload import workload

MOST_PODS, MOST_CONTAINERS = 10_000, 1000
"""A node runs a few hundred pods at most."""
STATIC_UID = "kubernetes.io/config.hash"
"""Tells the uid in the cgroup of a static pod, which the API shows under another one."""
KINDS = (("containerStatuses", "containers"), ("initContainerStatuses", "initContainers"),
         ("ephemeralContainerStatuses", "ephemeralContainers"))  # fmt: skip
"""Where the status and the wish of each kind of container stand."""


class ExpiredError(HttpError):
    """The server no longer knows the version we asked for."""


class Pods:
    """The pods of one node, as a list and the events after it tell."""

    def __init__(self, node_name: str, is_allowed: Callable[[str], object]) -> None:
        self._node_name = node_name
        self._is_allowed = is_allowed
        self._found: dict[str, tuple[Pod, tuple[Container, ...]]] = {}
        self._names: Names | None = None
        self.version = ""
        """Where a watch has to go on; empty before the first page."""

    def put_page(self, body: bytes) -> str:
        """Add a page of a list; the token of the next page, empty after the last."""
        page = read_json(body)
        meta, items = mapping(page.get("metadata")), page.get("items")
        self.version = text(meta.get("resourceVersion"))
        if not isinstance(items, list) or not self.version:
            raise HttpError("sent no list of pods")
        for item in items:
            self.put(item)
        token = meta.get("continue")
        return token if isinstance(token, str) else ""

    def apply(self, told: bytes) -> None:
        """Add an event of a watch."""
        event = read_json(told)
        kind, item = text(event.get("type")), mapping(event.get("object"))
        if kind in ("ADDED", "MODIFIED"):
            self.put(item)
        elif kind == "DELETED":
            self.drop(item)
        elif kind == "ERROR":
            if item.get("code") == 410:
                raise ExpiredError("has forgotten the version we watched from")
            raise HttpError(f"broke the watch: {line(item.get('message')) or 'no reason given'}")
        elif kind != "BOOKMARK":
            raise HttpError(f"sent an event called {kind[:60]!r}")
        self.version = text(mapping(item.get("metadata")).get("resourceVersion")) or self.version

    def put(self, item: object) -> None:
        """Add a pod or change it."""
        found = read_pod(item, self._is_allowed)
        if found is None or mapping(mapping(item).get("spec")).get("nodeName", self._node_name) != self._node_name:
            return
        if self._found.get(found[0].uid) != found:  # most events are about things that nobody asks for here
            self._found[found[0].uid] = found
            self._names = None
        if len(self._found) > MOST_PODS:
            raise HttpError(f"says that this node has more than {MOST_PODS} pods")

    def drop(self, item: object) -> None:
        """Forget a pod."""
        if self._found.pop(text(mapping(mapping(item).get("metadata")).get("uid")), None) is not None:
            self._names = None

    def none(self) -> Pods:
        """The same node before anything is known."""
        return Pods(self._node_name, self._is_allowed)

    def replace(self, listed: Pods) -> None:
        """Forget all pods but these."""
        self.version = listed.version
        if self._found != listed._found:
            self._found, self._names = listed._found, None

    @property
    def changed(self) -> bool:
        """Whether `names` will be others than before."""
        return self._names is None

    @property
    def names(self) -> Names:
        """The same object while nothing changes."""
        if self._names is None:
            pods = {uid: pod for uid, (pod, _) in self._found.items()}
            others = {uid: pod for pod in pods.values() for uid in pod.other_uids if uid not in pods}
            containers = {container.id: container for _, found in self._found.values() for container in found}
            self._names = Names(containers, pods | others)
        return self._names


def read_pod(item: object, is_allowed: Callable[[str], object]) -> tuple[Pod, tuple[Container, ...]] | None:
    """A pod and its running containers, with the labels that are allowed; None for what is no pod."""
    meta, spec, status = (mapping(mapping(item).get(part)) for part in ("metadata", "spec", "status"))
    uid, name, namespace = (text(meta.get(key)) for key in ("uid", "name", "namespace"))
    if not uid or not name:
        return None
    labels, annotations = texts(meta.get("labels")), texts(meta.get("annotations"))
    kind, owner = workload(mappings(meta.get("ownerReferences")), labels, name, annotations)
    static_uid = annotations.get(STATIC_UID, "")
    pod = Pod(
        uid=uid,
        namespace=namespace,
        name=name,
        workload_kind=kind,
        workload_name=owner,
        labels=tuple(sorted((label, value) for label, value in labels.items() if is_allowed(label))),
        other_uids=(static_uid,) if static_uid and static_uid != uid else (),
    )
    return pod, tuple(_containers(pod, spec, status))


def _containers(pod: Pod, spec: Mapping[str, object], status: Mapping[str, object]) -> list[Container]:
    found = []
    for statuses, wishes in KINDS:
        wished = {text(wish.get("name")): text(wish.get("image")) for wish in mappings(spec.get(wishes))}
        for entry in mappings(status.get(statuses)):
            container_id = text(entry.get("containerID")).rpartition("://")[2]
            if not container_id or not isinstance(mapping(entry.get("state")).get("running"), Mapping):
                continue
            name, image = text(entry.get("name")), text(entry.get("image"))
            if not image or image.startswith("sha256:"):  # where several names fit, runtimes give none of them
                image = wished.get(name) or image
            found.append(Container(container_id, name, image, pod.namespace, pod.name, pod.uid))
    return found[:MOST_CONTAINERS]
