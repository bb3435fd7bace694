"""What this exporter may see of the host: probed once at start, said in the log and in metrics."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from gpuledger.model import Labelled

log = logging.getLogger(__name__)

INIT_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel gives the first PID namespace this number at every boot."""
DAC_READ_SEARCH, SYS_PTRACE = 1 << 2, 1 << 19
"""Of the capability sets in /proc/self/status."""


@dataclass(frozen=True, slots=True)
class Access:
    """Whether the host's processes are seen, and which of their files can be read."""

    host_pid_namespace: bool
    cgroup: bool
    maps: bool
    environ: bool

    @property
    def readable(self) -> Labelled:
        """The files, as metrics show them."""
        return (("cgroup", int(self.cgroup)), ("maps", int(self.maps)), ("environ", int(self.environ)))


def probe(root: Path) -> Access:
    """Look at pid 1 for what anybody may read; for the rest the kernel goes by capabilities."""
    capabilities = _capabilities()
    maps = bool(capabilities & SYS_PTRACE)
    return Access(
        host_pid_namespace=in_host_pid_namespace(),
        cgroup=_readable(root / "1" / "cgroup"),
        maps=maps,
        environ=maps and bool(capabilities & DAC_READ_SEARCH),
    )


def in_host_pid_namespace() -> bool:
    """Whether pids mean the same here as on the host."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == INIT_PID_NAMESPACE
    except OSError:
        return False


def _capabilities() -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16)
    except (OSError, ValueError, IndexError):
        pass
    return 0


def _readable(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError:
        return False
    return True


def announce(access: Access, root: Path) -> None:
    """Say it once, with what to do about it."""
    if not access.host_pid_namespace:
        log.warning(
            "this exporter has a PID namespace of its own, so the driver lists NO processes of the host: "
            "run it with --pid=host (Docker, Podman) or hostPID: true (Kubernetes)"
        )
    if not access.cgroup:
        log.warning("%s/1/cgroup cannot be read: no process will have an owner; mount the host's /proc there", root)
    if not access.maps:
        log.info("the memory maps of others cannot be read: add the capability SYS_PTRACE to infer who holds memory")
    if not access.environ:
        log.info("environments of others cannot be read: add SYS_PTRACE and DAC_READ_SEARCH for accounts of Slurm jobs")
