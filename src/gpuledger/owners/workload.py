"""What the Kubernetes API says, made sense of: bytes to answers, answers to pods, pods to workloads.

Pure, and nothing but an HttpError is raised, whatever comes. The workload is told from the pod alone, so that no right
to read other objects is needed; where the pod does not prove who stands above its owner, the owner itself is named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from gpuledger.owners.names import Container, Names, Pod
from gpuledger.owners.unixhttp import HEAD_LIMIT, HttpError, parse_head

Workload = tuple[str, str]
"""Kind and name, as `("Deployment", "vllm")`."""

LONGEST_TEXT = 512
"""Characters. An image's name with its tag and digest can have about that many; all others are shorter."""
MOST_PODS, MOST_CONTAINERS = 10_000, 1000
"""A node runs a few hundred pods at most."""
ANSWER_LIMIT = 32 << 20
"""Bytes of a list, or of one event. A pod has about 10 kB, and never more than 1.5 MB in the server's store."""
CHUNK = re.compile(rb"([0-9A-Fa-f]{1,7})[ \t]*(?:;[^\r\n]*)?\r\n")
MIRROR, STATIC_UID = "kubernetes.io/config.mirror", "kubernetes.io/config.hash"
"""Mark the API's image of a static pod, which only a file on the node owns, and tell the uid in its cgroup."""
TEMPLATE_HASHES = {"pod-template-hash": "Deployment", "rollouts-pod-template-hash": "Rollout"}
"""The label that repeats the end of a ReplicaSet's name, and the kind of who made that ReplicaSet."""
RAY_KIND, RAY_NAME = "ray.io/originated-from-crd", "ray.io/originated-from-cr-name"
# A CronJob appends the minutes since 1970 (seconds before Kubernetes 1.21). What begins with 20 is a date somebody
# wrote: in minutes it would be 2008, years before there were CronJobs.
SCHEDULED = re.compile(r"(.+)-(?!20)[0-9]{8,}", re.DOTALL)
KINDS = (("containerStatuses", "containers"), ("initContainerStatuses", "initContainers"),
         ("ephemeralContainerStatuses", "ephemeralContainers"))  # fmt: skip
"""Where the status and the wish of each kind of container stand."""


class ExpiredError(HttpError):
    """The server no longer knows the version we asked for."""


class Answer:
    """An HTTP answer that is fed as it arrives."""

    def __init__(self) -> None:
        self.status = 0
        self.done = False
        self.body = b""
        """As far as it is there."""
        self._raw = bytearray()
        self._left: int | None = None
        self._chunked = False

    def feed(self, data: bytes) -> None:
        """Take in some bytes; none mean that the connection has ended."""
        self._raw += data
        if self.status or self._has_head():
            self._chunks() if self._chunked else self._plain()
        if len(self.body) + len(self._raw) > ANSWER_LIMIT:
            raise HttpError(f"sent more than {ANSWER_LIMIT >> 20} MiB at once")
        if not data and not self.done:
            if not self.status or self._chunked or self._left is not None:
                raise HttpError("ended in the middle of an answer")
            self.done = True

    def lines(self) -> list[bytes]:
        """Take the lines out of the body that are complete."""
        *lines, self.body = self.body.split(b"\n")
        return [line for line in lines if line.strip()]

    def _has_head(self) -> bool:
        head, end, rest = self._raw.partition(b"\r\n\r\n")
        if not end:
            if len(head) > HEAD_LIMIT or head[:7] != b"HTTP/1."[: len(head)]:
                raise HttpError(f"did not answer in HTTP but with {bytes(head[:60])!r}")
            return False
        self.status, headers = parse_head(bytes(head))
        self._raw = rest
        self._chunked = "chunked" in headers.get("transfer-encoding", "")
        length = headers.get("content-length", "")
        self._left = int(length) if length.isdecimal() and len(length) < 16 else None
        self.done = self._left == 0
        return True

    def _plain(self) -> None:
        taken = bytes(self._raw[: self._left])
        self._raw.clear()
        self.body += taken
        if self._left is not None:
            self._left -= len(taken)
            self.done = self._left == 0

    def _chunks(self) -> None:
        parts = [self.body]
        while not self.done and (found := CHUNK.match(bytes(self._raw[:1024]))):
            size, start = int(found[1], 16), found.end()
            if size and len(self._raw) < start + size + 2:
                break
            self.done = size == 0
            parts.append(bytes(self._raw[start : start + size]))
            del self._raw[: start + size + 2]
        else:
            if not self.done and (len(self._raw) >= 1024 or b"\n" in self._raw):
                raise HttpError(f"sent {bytes(self._raw[:60])!r} where the size of a chunk belongs")
        self.body = b"".join(parts)


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
    labels, annotations = _texts(meta.get("labels")), _texts(meta.get("annotations"))
    kind, owner = workload(_mappings(meta.get("ownerReferences")), labels, name, annotations)
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
        wished = {text(wish.get("name")): text(wish.get("image")) for wish in _mappings(spec.get(wishes))}
        for entry in _mappings(status.get(statuses)):
            container_id = text(entry.get("containerID")).rpartition("://")[2]
            if not container_id or not isinstance(mapping(entry.get("state")).get("running"), Mapping):
                continue
            name, image = text(entry.get("name")), text(entry.get("image"))
            if not image or image.startswith("sha256:"):  # where several names fit, runtimes give none of them
                image = wished.get(name) or image
            found.append(Container(container_id, name, image, pod.namespace, pod.name, pod.uid))
    return found[:MOST_CONTAINERS]


def read_json(body: bytes) -> Mapping[str, object]:
    """A JSON object; empty for other JSON."""
    try:
        return mapping(json.loads(body))
    except (ValueError, RecursionError):
        raise HttpError(f"did not answer in JSON but with {body[:60]!r}") from None


def text(value: object) -> str:
    """A text that can be printed in UTF-8, which half a surrogate pair in JSON cannot; empty for what is none."""
    return value[:LONGEST_TEXT].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def line(value: object) -> str:
    """A short text of one line, for messages."""
    return " ".join(text(value)[:200].split())


def mapping(value: object) -> Mapping[str, object]:
    """A JSON object; empty for what is none."""
    return value if isinstance(value, dict) else {}


def _mappings(value: object) -> list[Mapping[str, object]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _texts(value: object) -> dict[str, str]:
    return {text(key): text(entry) for key, entry in mapping(value).items() if isinstance(entry, str)}
