"""What the kernel lets us see of the host: its processes, their files, their cgroups."""

from __future__ import annotations

from pathlib import Path

from gpuledger.doctor.finding import Finding, ok, problem, warning
from gpuledger.model import Tick
from gpuledger.owners.access import Access
from gpuledger.view.advice import NAMESPACE_FIX

MOST_NAMED = 5


def namespace(access: Access) -> list[Finding]:
    """Whether the host's processes are seen at all."""
    if access.host_pid_namespace:
        return [ok("pid namespace", "the host's")]
    text = "a namespace of its own: the driver lists NO processes of the host"
    return [problem("pid namespace", text, NAMESPACE_FIX)]


def rights(access: Access, root: Path) -> list[Finding]:
    """Which files of other processes may be read."""
    found = []
    if not access.cgroup:
        text = f"{root}/1/cgroup cannot be read: no process will have an owner"
        fix = "mount the host's /proc: `-v /proc:/host/proc:ro`, and `--path.procfs=/host/proc`; no hidepid= on it"
        found.append(problem("proc cgroup", text, fix))
    if not access.maps:
        text = "memory maps of others cannot be read: who holds memory without being listed is guessed less well"
        fix = "`docker run --cap-add SYS_PTRACE`; systemd: `AmbientCapabilities=CAP_SYS_PTRACE`; or run as root"
        found.append(warning("proc maps", text, fix))
    elif not access.environ:  # which needs both, so that the line above says it already
        text = "environments of others cannot be read: accounts of Slurm jobs and NVIDIA_VISIBLE_DEVICES are missing"
        fix = "`docker run --cap-add DAC_READ_SEARCH`; systemd: `AmbientCapabilities=CAP_DAC_READ_SEARCH`"
        found.append(warning("proc environ", text, fix))
    return found or [ok("proc", f"cgroup, maps and environ in {root} can be read")]


def cgroups(text: str) -> list[Finding]:
    """Which version, from the cgroup file of pid 1; nothing when it cannot be read, which is told elsewhere."""
    lines = text.split()
    if not lines:
        return []
    if all(line.startswith("0::") for line in lines):
        return [ok("cgroups", "version 2")]
    both = any(line.startswith("0::") for line in lines)
    return [ok("cgroups", "version 1, with 2 beside it (hybrid)" if both else "version 1")]


def processes(before: Tick, tick: Tick, access: Access, root: Path) -> list[Finding]:
    """Whether those that the driver lists are in /proc; one that ends between two ticks is not missed."""
    listed = tick.resident_pids()
    if not access.host_pid_namespace or not access.cgroup:
        return []
    missing = sorted((listed & before.resident_pids()) - tick.facts.keys() - before.facts.keys())
    if missing:
        named = ", ".join(map(str, missing[:MOST_NAMED])) + (", ..." if len(missing) > MOST_NAMED else "")
        text = f"the driver lists processes that are not in {root}: {named}"
        fix = (
            f"{root} must be the host's: `-v /proc:/host/proc:ro` and `--path.procfs=/host/proc`; they may be dead ones"
        )
        return [warning("processes", text, fix)]
    return [ok("processes", f"{len(listed)} on the GPUs, all of them in {root}")]
