"""Permissions to read the host's processes. Probed once at start; shown in the log and in metrics."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from gpuledger.model import Labelled

log = logging.getLogger(__name__)

INIT_PID_NAMESPACE = "pid:[4026531836]"
"""The host's PID namespace has this fixed number."""
DAC_READ_SEARCH, SYS_PTRACE = 1 << 2, 1 << 19
"""Bits of the capability sets in /proc/self/status."""


@dataclass(frozen=True, slots=True)
class Access:
    """Whether the host's processes are visible, and which of their files can be read."""

    host_pid_namespace: bool
    cgroup: bool
    maps: bool
    environ: bool

    @property
    def readable(self) -> Labelled:
        """The files and 0 or 1, as metrics show them."""
        return (("cgroup", int(self.cgroup)), ("maps", int(self.maps)), ("environ", int(self.environ)))


def probe(root: Path) -> Access:
    """Probe /proc/1 for the file that any user may read; the other files depend on capabilities."""
    capabilities = _capabilities()
    maps = bool(capabilities & SYS_PTRACE)
    return Access(
        host_pid_namespace=in_host_pid_namespace(),
        cgroup=_is_readable(root / "1" / "cgroup"),
        maps=maps,
        environ=maps and bool(capabilities & DAC_READ_SEARCH),
    )


def in_host_pid_namespace() -> bool:
    """Whether this process is in the host's PID namespace, so that pids are those of the host."""
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


def _is_readable(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError:
        return False
    return True


def announce(access: Access, root: Path) -> None:
    """Log missing permissions and how to grant them."""
    if not access.host_pid_namespace:
        log.warning(
            "this exporter has its own PID namespace, so the driver lists no processes of the host; "
            "run it with --pid=host (Docker, Podman) or hostPID: true (Kubernetes)"
        )
    if not access.cgroup:
        log.warning("cannot read %s/1/cgroup, so no process has an owner; mount the host's /proc there", root)
    if not access.maps:
        log.info("cannot read memory maps of other processes; add the capability SYS_PTRACE to infer memory holders")
    if not access.environ:
        log.info(
            "cannot read environments of other processes; add SYS_PTRACE and DAC_READ_SEARCH to infer memory holders "
            "from NVIDIA_VISIBLE_DEVICES"
        )
