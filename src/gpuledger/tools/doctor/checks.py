"""Pure checks of ticks and of file permissions. Problems of the tick itself are in `web/snapshot/problems.py`."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gpuledger import __version__
from gpuledger.config.exporter import Config
from gpuledger.model import SHORT_ID, DcgmHealth, Driver, Owners, Reading, Tick
from gpuledger.model.owners import PROVIDERS
from gpuledger.owners.kernel.access import Access
from gpuledger.tools.doctor.finding import Finding, of_tick, ok, problem, unused, warning
from gpuledger.web.snapshot.problems import HIDDEN, SLOW, UNKNOWN_MEMORY, UNRESOLVED, problems

MIN_DRIVER = 510
"""The first driver branch that reports reserved memory separately from used memory."""
MAX_PIDS = 5
EARLIEST_NS = 1_704_067_200 * 10**9
"""2024-01-01, before the first release of this program."""
MAX_STEP_NS = 500_000_000
MAX_AHEAD_US, MAX_BEHIND_US = 2_000_000, 60_000_000
"""Driver samples outside of this range around the current time are ignored."""
PERSISTENCE_FIX = "`sudo nvidia-smi -pm 1`, or `sudo systemctl enable --now nvidia-persistenced`, keeps it initialised"
CLOCK_FIX = (
    "`timedatectl` shows the clock; `sudo chronyc makestep` (or `sudo systemctl restart systemd-timesyncd`) sets it"
)
MIG_FIX = (
    "run as root; in a container `docker run --cap-add SYS_ADMIN -e NVIDIA_MIG_MONITOR_DEVICES=all`, "
    "on Kubernetes `privileged: true`"
)
NESTED_FIX = (
    "--owners.nested=inner makes the pods owners, if you trust everyone who can create cgroups in the container"
)
PROC_FIX = "mount the host's /proc: `-v /proc:/host/proc:ro` and `--path.procfs=/host/proc`"


def of_ticks(first: Tick, before: Tick, tick: Tick, access: Access, settings: Config) -> list[Finding]:
    """All checks of the ticks of this host, followed by the problems of the last tick."""
    root = Path(settings.path_procfs)
    has_gpus = tick.driver.up and bool(tick.readings)
    return [
        *driver(tick.driver, tick.readings),
        *slow_start(first, tick),
        *driver_versions(tick.driver),
        *(gpus(tick.readings) if has_gpus else []),
        *(mig(tick.readings) if has_gpus else []),
        *(accounting(tick.readings, needed=settings.collector_dcgm) if has_gpus else []),
        *(memory(tick, access) if has_gpus else []),
        *(processes(before, tick, access, root) if has_gpus else []),
        *dcgm(tick.dcgm),
        *permissions(access, root),
        *providers(tick.owners, settings),
        *tick_problems(tick, access),
    ]


def tick_problems(tick: Tick, access: Access) -> list[Finding]:
    """The problems of a tick, without those that follow from an invisible process list or an unreadable /proc.

    The duration of a tick is not a problem here: the first ticks load libraries and wait for the driver.
    """
    explained = {SLOW}
    if not access.host_pid_namespace:
        explained |= {UNRESOLVED, UNKNOWN_MEMORY}
    elif not access.cgroup:
        explained |= {UNRESOLVED, HIDDEN}
    return [of_tick(cause) for cause in problems(tick) if cause.kind not in explained]


def driver(state: Driver, readings: tuple[Reading, ...]) -> list[Finding]:
    """The driver, if it responds and lists GPUs."""
    count = sum(not reading.device.parent_uuid for reading in readings)
    if not state.up or not count:
        return []
    return [ok("driver", f"{state.driver_version} responds and lists {count} GPU{'s' * (count != 1)}")]


def slow_start(first: Tick, tick: Tick) -> list[Finding]:
    """A driver or GPU that did not respond in the first tick, but does now."""
    slow = "the driver" if hangs(first.driver) and tick.driver.up else ""
    down = {reading.device.index for reading in first.readings if hangs(reading)}
    recovered = sorted(reading.device.index for reading in tick.readings if reading.up and reading.device.index in down)
    if not slow and recovered:
        slow = f"GPU {', '.join(map(str, recovered))}"
    return [warning("driver start", f"{slow} took seconds for the first response", PERSISTENCE_FIX)] if slow else []


def hangs(state: Driver | Reading) -> bool:
    """Whether a driver call has not returned."""
    return state.problem is not None and state.problem.kind == "hang"


def driver_versions(state: Driver) -> list[Finding]:
    """All versions that matter, and whether the driver is too old."""
    text = ", ".join(f"{name} {number}" for name, number in versions(state).items() if number)
    major = state.driver_version.partition(".")[0]
    if major.isdecimal() and int(major) < MIN_DRIVER:
        what = f"{text}: this driver counts its own reserved memory as used"
        return [warning("versions", what, f"install a driver of the R{MIN_DRIVER} branch or newer")]
    return [ok("versions", text)]


def versions(state: Driver) -> dict[str, str]:
    """Versions by name; empty if unknown."""
    return {
        "gpuledger": __version__,
        "driver": state.driver_version,
        "NVML": state.nvml_version,
        "CUDA": state.cuda_version,
        "nvidia-ml-py": _installed("nvidia-ml-py"),
        "Python": platform.python_version(),
        "h2": _installed("h2"),
        "PyYAML": _installed("PyYAML"),
        "kernel": platform.release(),
    }


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def gpus(readings: Iterable[Reading]) -> list[Finding]:
    """Each GPU that can be read, and whether the driver lists its processes."""
    findings = []
    for reading in _whole_gpus(readings):
        name = f"gpu {reading.device.index}"
        if reading.up and reading.residents is None and not reading.mig_enabled:
            fix = "`nvidia-smi --query-compute-apps=pid,used_memory --format=csv` shows whether the driver lists any"
            findings.append(warning(name, f"{reading.device.name} does not report its processes", fix))
        elif reading.up:
            findings.append(ok(name, f"{reading.device.name} ({reading.device.uuid})"))
    return findings


def mig(readings: Iterable[Reading]) -> list[Finding]:
    """Whether the instances of GPUs in MIG mode can be read."""
    readings = tuple(readings)
    partitioned = [reading for reading in _whole_gpus(readings) if reading.mig_enabled]
    if not partitioned:
        return [unused("mig", "no GPU is in MIG mode")]
    findings = []
    for gpu in partitioned:
        name = f"mig of gpu {gpu.device.index}"
        instances = [reading for reading in readings if reading.device.parent_uuid == gpu.device.uuid]
        unreadable = [
            reading for reading in instances if reading.residents is None or reading.memory_used_bytes is None
        ]
        if unreadable or (not instances and gpu.residents is None):
            count = len(unreadable) or "all"
            text = f"no permission to read {count} of its instances: their memory and processes are missing"
            findings.append(problem(name, text, MIG_FIX))
        elif not instances:
            text = "MIG is on, but there is no instance, or this user may not see it"
            fix = f"`sudo nvidia-smi mig -lgi` lists instances; `sudo nvidia-smi mig -cgi 19 -C` creates one; {MIG_FIX}"
            findings.append(warning(name, text, fix))
        else:
            findings.append(ok(name, f"{len(instances)} instances are readable"))
    return findings


def accounting(readings: Iterable[Reading], *, needed: bool) -> list[Finding]:
    """The driver's accounting mode, which only DCGM needs."""
    reported = [reading for reading in _whole_gpus(readings) if reading.accounting_enabled is not None]
    off = [str(reading.device.index) for reading in reported if not reading.accounting_enabled]
    where = f"GPU {', '.join(off)}"
    if off and needed:
        text = f"accounting mode is off on {where}, so DCGM has no process data"
        return [warning("accounting", text, "`sudo nvidia-smi -am 1`, before the processes start; MIG disables it")]
    if off:
        return [ok("accounting", f"off on {where}; only --collector.dcgm needs it (`sudo nvidia-smi -am 1`)")]
    return [ok("accounting", "on" if reported else "not reported by these GPUs")]


def memory(tick: Tick, access: Access) -> list[Finding]:
    """Whether the listed processes explain the used memory."""
    if not access.host_pid_namespace:
        return [ok("memory", "cannot be compared: the process list is empty")]
    if any(account.unknown_bytes for account in tick.memory.values()):
        return []
    if any(reading.system_memory_total_bytes is not None for reading in tick.readings):
        return [ok("memory", "cannot be compared: the GPU has no memory of its own, and shares that of the system")]
    unknown = sorted({r.pid for reading in tick.readings for r in reading.residents or () if r.memory_bytes is None})
    if unknown:
        text = f"the driver does not report the memory of {len(unknown)} processes, such as {unknown[0]}"
        fix = "`nvidia-smi` shows N/A for them; the driver reports it on Linux without a hypervisor"
        return [warning("memory", text, fix)]
    return [ok("memory", "the listed processes explain the used memory")]


def processes(before: Tick, tick: Tick, access: Access, root: Path) -> list[Finding]:
    """Whether the processes that the driver lists are in /proc; one that exits between two ticks may be missing."""
    listed = tick.resident_pids()
    if not access.host_pid_namespace or not access.cgroup:
        return []
    missing = sorted((listed & before.resident_pids()) - tick.facts.keys() - before.facts.keys())
    if missing:
        pids = ", ".join(map(str, missing[:MAX_PIDS])) + (", ..." if len(missing) > MAX_PIDS else "")
        text = f"the driver lists processes that are not in {root}: {pids}"
        return [warning("processes", text, f"{PROC_FIX}; or the processes are dead")]
    return [ok("processes", f"{len(listed)} on the GPUs, all of them in {root}")]


def dcgm(health: DcgmHealth | None) -> list[Finding]:
    """DCGM, if it responds; None if it is not configured."""
    if health is None:
        return [unused("dcgm", "--collector.dcgm is off")]
    return [ok("dcgm", f"{health.version} responds ({health.mode}, {health.library})")] if health.up else []


def permissions(access: Access, root: Path) -> list[Finding]:
    """The PID namespace, and which files of other processes can be read."""
    findings = [ok("pid namespace", "the host's")] if access.host_pid_namespace else []
    if not access.cgroup:
        text = f"{root}/1/cgroup cannot be read: no process will have an owner"
        findings.append(problem("proc cgroup", text, f"{PROC_FIX}, without hidepid="))
    if not access.maps:
        text = "memory maps of other processes cannot be read: the search for unlisted memory holders is less accurate"
        fix = "`docker run --cap-add SYS_PTRACE`; systemd: `AmbientCapabilities=CAP_SYS_PTRACE`; or run as root"
        findings.append(warning("proc maps", text, fix))
    elif not access.environ:  # an environment needs both capabilities, so unreadable maps explain it
        text = "environments of other processes cannot be read: NVIDIA_VISIBLE_DEVICES of containers is unknown"
        fix = "`docker run --cap-add DAC_READ_SEARCH`; systemd: `AmbientCapabilities=CAP_DAC_READ_SEARCH`"
        findings.append(warning("proc environ", text, fix))
    if access.cgroup and access.maps and access.environ:
        findings.append(ok("proc", f"cgroup, maps and environ in {root} are readable"))
    return findings


def recording(tick: Tick) -> Finding:
    """The recording that replaces the driver."""
    if not tick.readings:
        return problem("source", "the recording contains no GPUs", "create another with `gpuledger record FILE`")
    return ok("source", f"a recording of {len(tick.readings)} devices; the driver and the host are not used")


def cgroups(text: str) -> list[Finding]:
    """The cgroup version, from the cgroup file of pid 1; nothing if it cannot be read."""
    lines = text.split()
    if not lines:
        return []
    unified = [line.startswith("0::") for line in lines]
    if all(unified):
        return [ok("cgroups", "version 2")]
    return [ok("cgroups", "versions 1 and 2 (hybrid)" if any(unified) else "version 1")]


def nested(nodes: Mapping[str, str], tick: Tick, setting: str) -> list[Finding]:
    """Containers that are nodes of Kubernetes, and whether their pods are owners."""
    used = {owner.container_id for owner in tick.owners.by_pid.values()}
    findings = []
    for container_id, tool in nodes.items():
        text = f"container {container_id[:SHORT_ID]} is a node of {tool or 'Kubernetes'}: "
        if setting == "inner":
            findings.append(ok("nested", f"{text}its pods are owners"))
        elif container_id in used:
            findings.append(warning("nested", f"{text}it owns the processes of its pods", NESTED_FIX))
        else:
            findings.append(ok("nested", f"{text}--owners.nested=inner would make its pods owners"))
    return findings


def providers(owners: Owners, settings: Config) -> list[Finding]:
    """Providers of names that respond, that have not responded in time, and that are not configured."""
    findings = []
    for health in owners.providers:
        if health.up:
            findings.append(ok(health.title, "responds"))
        elif not health.fetches:
            fix = "check whether it hangs; see its log"
            findings.append(problem(health.title, "has not responded within the time of this check", fix))
    used = {health.kind for health in owners.providers}
    if not any("containers" in kind.reports for kind in used):
        text = "there is no socket of Docker, Podman or a CRI runtime, or --environment excludes it"
        findings.append(unused("runtime", text))
    if PROVIDERS["podresources"] not in used:
        text = f"{settings.pod_resources_socket} does not exist, or --environment excludes it"
        findings.append(unused("kubelet", text))
    if PROVIDERS["kubernetes"] not in used and not settings.kubernetes_api:
        findings.append(unused("api server", "--kubernetes.api is off"))
    return findings


def clock(now_ns: int, wall_ns: int, steady_ns: int, sample_us: int | None) -> list[Finding]:
    """The clock: plausible, not set during the check, and in agreement with the driver's samples.

    `wall_ns` and `steady_ns` passed on the two clocks; `sample_us` is the time of the driver's newest sample. The
    exporter ignores samples from the future or the distant past, so a wrong clock costs the utilization of processes.
    """
    if now_ns < EARLIEST_NS:
        return [problem("clock", f"it is {now_ns // 10**9} s after 1970, before this program was written", CLOCK_FIX)]
    if abs(wall_ns - steady_ns) > MAX_STEP_NS:
        return [warning("clock", f"was set by {(wall_ns - steady_ns) / 1e9:+.1f} s during this check", CLOCK_FIX)]
    if sample_us is None:
        return [ok("clock", "runs; the driver has no samples to compare it with")]
    difference_us = sample_us - now_ns // 1000
    if not -MAX_BEHIND_US <= difference_us <= MAX_AHEAD_US:
        text = f"the driver's samples are {difference_us / 1e6:+.0f} s off: processes have no utilization"
        return [warning("clock", text, CLOCK_FIX)]
    return [ok("clock", "runs, and agrees with the driver's samples")]


def _whole_gpus(readings: Iterable[Reading]) -> list[Reading]:
    return [reading for reading in readings if not reading.device.parent_uuid]
