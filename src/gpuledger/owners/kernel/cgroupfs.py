"""Parses cgroups and checks in the cgroup file system which part of a path only root could choose.

A cgroup can be created by the owner of its parent directory. Containers, pods and batch jobs are created by root, in
directories of root; a user creates cgroups in directories that systemd has delegated to that user.

Inside a private cgroup namespace, or with another `--path.procfs`, the directories of the host are not visible. Then
`cgroup.bounds_by_name` decides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gpuledger.owners.kernel import cgroup
from gpuledger.owners.kernel.cgroup import Bounds, CgroupRef

ROOT_UID, OVERFLOW_UID = 0, 65534
"""The kernel shows the overflow uid for users that a user namespace does not map, so it is no particular user."""
UP = "/.."
CONTAINER = re.compile(rf"(?<![0-9a-f]){cgroup.ID}(?![0-9a-f])")
MOUNTED = re.compile(r"^\S+ \S+ \S+ (\S+) /etc/(?:hostname|hosts|resolv\.conf) ", re.MULTILINE)
"""The sources of these files in /proc/PID/mountinfo: Docker and Podman keep them in a directory of the container."""

NODE_FILES = {"kic.txt": "minikube", "kind": "kind", "bin/k3d-entrypoint.sh": "k3d"}
"""Files in nodes that are containers, by the tool that creates such nodes; minikube has those of kind, too."""


class CgroupTree:
    """The cgroup file system of this host."""

    def __init__(self, procfs_root: Path = Path("/proc"), root: Path | None = None, uid: int | None = None) -> None:
        self._root = root or Path("/sys/fs/cgroup")
        self._is_of_procfs = root is not None or procfs_root == Path("/proc")
        """Whether the processes are in this tree; those of another /proc may not be."""
        self._trusted = {ROOT_UID, os.geteuid() if uid is None else uid, _namespace_owner()} - {OVERFLOW_UID}
        """Root, and the user that runs the exporter."""
        self._node = _node_of(procfs_root)

    def parse(self, text: str, *, nested: bool = False) -> CgroupRef:
        """The parts of a /proc/PID/cgroup; see `cgroup.parse`."""
        return cgroup.parse(text, self.bounds, nested=nested)

    def directories(self, controllers: str) -> Iterator[Path]:
        """The possible mount points of a hierarchy: one of v1, or v2 alone or in a hybrid tree."""
        if controllers:
            yield self._root / controllers.removeprefix("name=")
        else:
            yield from (self._root, self._root / "unified")

    def bounds(self, controllers: str, path: str, names: Sequence[str]) -> Bounds:
        """The part of a path that only root could choose."""
        bounds = cgroup.bounds_by_name(controllers, path, names)
        if bounds.uid in self._trusted:
            bounds = Bounds()
        if self._is_of_procfs and not path.startswith(UP):
            for directory in self.directories(controllers):
                bounds = min(bounds, self._delegated(str(directory), names), key=lambda one: one.end)
        node = self._node.get(controllers, ())
        return replace(bounds, start=len(node)) if node and tuple(names[: len(node)]) == node else bounds

    def _delegated(self, directory: str, names: Sequence[str]) -> Bounds:
        """The bounds by the owners of the directories; none if the directories of the host are not visible."""
        for index, name in enumerate(names):
            directory = f"{directory}/{name}"
            try:
                uid = os.stat(directory).st_uid  # noqa: PTH116 - half the cost of pathlib
            except OSError:
                return Bounds(end=index + 1) if index else Bounds()  # just removed, but from a directory of root
            if uid not in self._trusted:
                return Bounds(end=index + 1, uid=uid)
        return Bounds()


def _namespace_owner() -> int:
    """The host's uid of root in this user namespace: the user that runs a rootless container."""
    try:
        return int(Path("/proc/self/uid_map").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return ROOT_UID


def _node_of(procfs_root: Path) -> dict[str, tuple[str, ...]]:
    """The path of the container in which the host's init process runs, by controllers: a node of kind or k3d."""
    nodes = {}
    for controllers, path in cgroup.split_lines(_text(procfs_root / "1" / "cgroup")):
        names = cgroup.split_path(path)
        start = 0
        for end in range(1, len(names) + 1):
            if cgroup.parse_path("/" + "/".join(names[:end]), Bounds(start)).container_id:
                start = end
        if start:
            nodes[controllers] = tuple(names[:start])
    return nodes


def nodes_in_containers(procfs_root: Path) -> dict[str, str]:
    """The ids of containers that are nodes of Kubernetes, and the tool that creates such nodes; empty if not known."""
    tree = CgroupTree(procfs_root)
    refs = {path.parent: tree.parse(_text(path), nested=True) for path in procfs_root.glob("[0-9]*/cgroup")}
    inside = [list(ref.levels())[-1] for ref in refs.values() if ref.outer is not None and ref.pod_uid]
    nodes = {outermost.container_id: "" for outermost in inside if outermost.container_id}
    for folder, ref in refs.items():
        if ref.container_id in nodes:
            tools = [tool for name, tool in NODE_FILES.items() if os.path.lexists(folder / "root" / name)]
            nodes[ref.container_id] = tools[0] if tools else nodes[ref.container_id]
    return nodes


def own_containers(procfs_root: Path) -> frozenset[str]:
    """The ids of the containers in which the exporter itself runs; empty if they are not known.

    In a private cgroup namespace its own path is `/`, and the files that the runtime mounts have the id. They are those
    of another container after `--network container:NAME`, but then the cgroups of that container show its id.
    """
    own = procfs_root / "self"
    mounted = set(CONTAINER.findall(" ".join(MOUNTED.findall(_text(own / "mountinfo")))))
    others = procfs_root.glob("[0-9]*/cgroup") if mounted else ()
    mounted.difference_update(*(CONTAINER.findall(_text(path)) for path in others))
    return frozenset(mounted.union(CONTAINER.findall(_text(own / "cgroup"))))


def _text(path: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
