"""The problems of a tick, worst first, each with how to fix it.

Problems of the driver, a GPU, a provider, the dcgm-exporter and DCGM are created where they are detected and only
completed here. Problems that show only in the tick as a whole are created here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from gpuledger.catalog import metrics
from gpuledger.model import MemoryAccount, Reading, Tick
from gpuledger.model.problem import NOTE, PROBLEM, SEVERITIES, WARNING, Problem

GIB = 1 << 30
HEAT = {"sw_thermal_slowdown", "hw_thermal_slowdown"}
POWER = {"hw_slowdown", "hw_power_brake_slowdown"}
SHORT_LIVED = {"process is gone"}
"""Reasons for an unknown owner that pass without action."""
UNRESOLVED, UNKNOWN_MEMORY, SLOW, HIDDEN = "unresolved", "unknown_memory", "slow", "hidden"
"""Kinds of problems that `doctor` leaves out if it reports their cause."""

DRIVER_FIX = "see what `nvidia-smi` reports; `sudo dmesg | grep -i -e nvrm -e xid` may show the cause"
NO_GPU_FIX = "`nvidia-smi -L` lists the GPUs the driver sees; in a container, pass them: `docker run --gpus all`"
NAMESPACE_FIX = "`docker run --pid=host` or `podman run --pid=host`; on Kubernetes `hostPID: true`"
PROC_FIX = "mount the host's /proc without hidepid=, or run the exporter as root with the capability SYS_PTRACE"
MEMORY_FIX = (
    "`sudo fuser -v /dev/nvidia*` lists the processes that have the device open: in a VM, in another container, or dead"
)
OWNER_FIX = "`gpuledger explain PID` shows each step and why it stops"
RECOVERY_FIXES = {
    "gpu_reset": "`sudo nvidia-smi --gpu-reset -i {gpu}`, once no process uses the GPU",
    "drain_p2p": "stop the processes that use the GPU over NVLink",
    "drain_and_reset": "stop the processes that use the GPU over NVLink, then `sudo nvidia-smi --gpu-reset -i {gpu}`",
    "node_reboot": "reboot the node",
    "system_reboot": "reboot the node",
}
FABRIC_FIX = "`nvidia-smi -q -i ID` shows the fabric; check `systemctl status nvidia-fabricmanager`"
COUNTER_FIX = (
    "the totals stay usable; reset the GPU or update its driver to get the counter back, on a vGPU that of the host"
)
OVERSOLD_FIX = (
    f"compare `{metrics.gpu_entitlement_compute_ratio}` of its pods: a scheduler oversells it, or a pod has "
    "annotations of its own"
)
REPORT_FIX = "please report it, with `gpuledger doctor --bundle FILE`"
LOG_FIX = "`gpuledger once --log.level debug` logs more"
XID_FIX = (
    "`sudo dmesg | grep -i xid` shows details, and NVIDIA's XID catalog explains them: 13, 31 and 43 are faults of the "
    "program; 48, 63, 64, 74, 79, 94 and 95 of the hardware"
)


def problems(tick: Tick) -> list[Problem]:
    """Worst first; within a severity, causes before their effects."""
    unsorted = [*_driver(tick), *_names(tick), *_books(tick), *_exporter(tick)]
    return sorted(unsorted, key=lambda problem: SEVERITIES.index(problem.severity))


def _driver(tick: Tick) -> Iterator[Problem]:
    if not tick.driver.up:
        yield _unreadable(tick.driver.problem, "driver")
        return
    if not tick.readings:
        yield Problem("the driver responds but lists no GPU", NO_GPU_FIX, "no_gpu", about="driver")
    for reading in tick.readings:
        yield from _gpu(reading, tick.memory.get(reading.device.uuid))
    yield from tick.health.driver_problems


def _unreadable(cause: Problem | None, about: str) -> Problem:
    """A driver or GPU that is down."""
    cause = cause or Problem("no reason given")
    return replace(cause, what=f"cannot be read: {cause.what}", fix=cause.fix or DRIVER_FIX, about=about)


def _gpu(reading: Reading, memory: MemoryAccount | None) -> Iterator[Problem]:
    device = reading.device
    name = f"GPU {device.index}" + (f" {device.mig_profile}" if device.parent_uuid else "")
    if not reading.up:
        yield _unreadable(reading.problem, name)
        return
    yield from _hardware(reading, name)
    yield from _health(reading, name)
    if memory is not None and memory.unknown_bytes:
        what = f"{memory.unknown_bytes / GIB:.1f} GiB are in use, but the driver lists no process for them"
        if memory.inferred_bytes:
            candidates = f"{memory.candidates} container{'s' * (memory.candidates != 1)}"
            what += f"; inferred for {candidates} that may hold them"
        yield Problem(what, MEMORY_FIX, UNKNOWN_MEMORY, severity=WARNING, about=name)


def _hardware(reading: Reading, name: str) -> Iterator[Problem]:
    slowed_by = {reason for reason, is_active in reading.clock_events if is_active}
    if slowed_by & HEAT:
        hottest = max((celsius for _, celsius in reading.temperatures_c), default=None)
        what = "slowed down by heat" + (f", at {hottest} °C" if hottest is not None else "")
        fix = "check the fans, the airflow and the room; `nvidia-smi -q -d TEMPERATURE`"
        yield Problem(what, fix, "heat", severity=WARNING, about=name)
    elif slowed_by & POWER:
        fix = "check the power supply and its cables; `nvidia-smi -q -d PERFORMANCE` names the reason"
        what = "slowed down by the hardware: power brake or insufficient power"
        yield Problem(what, fix, "power", severity=WARNING, about=name)
    for xid, count in reading.xids:
        yield Problem(f"reported XID {xid}, {_times(count)}", XID_FIX, "xid", severity=WARNING, about=name)
    uncorrected = dict(reading.ecc_errors).get("uncorrected")
    if uncorrected:
        what = f"{uncorrected} uncorrected memory errors"
        fix = "`nvidia-smi -q -d ECC,ROW_REMAPPER`; replace the GPU if they return after a reset"
        yield Problem(what, fix, "ecc", severity=WARNING, about=name)
    if reading.row_remap_pending:
        fix = f"`sudo nvidia-smi --gpu-reset -i {reading.device.index}`, once no process uses the GPU"
        yield Problem("a memory row is waiting to be remapped", fix, "row_remap", severity=WARNING, about=name)
    if reading.row_remap_failed:
        yield Problem(
            "a memory row could not be remapped", "replace the GPU", "row_remap", severity=PROBLEM, about=name
        )


def _health(reading: Reading, name: str) -> Iterator[Problem]:
    """What the driver itself calls a fault."""
    for action, is_required in reading.recovery_actions:
        if is_required:
            what = f"the driver asks for recovery: {action.replace('_', ' ')}"
            fix = RECOVERY_FIXES.get(action, DRIVER_FIX).format(gpu=reading.device.index)
            yield Problem(what, fix, "recovery", severity=PROBLEM, about=name)
    if reading.memory_unrepairable:
        yield Problem("memory cannot be repaired", "replace the GPU", "memory", severity=PROBLEM, about=name)
    if reading.sram_threshold_exceeded:
        what = "more uncorrected errors of the on-chip memory than NVIDIA accepts"
        yield Problem(what, "replace the GPU", "sram", severity=PROBLEM, about=name)
    limited_by = [condition.replace("_", " ") for condition, is_active in reading.fabric_conditions if is_active]
    if reading.fabric_failed:
        yield Problem("registration with the NVLink fabric failed", FABRIC_FIX, "fabric", severity=PROBLEM, about=name)
    elif limited_by:
        what = f"the NVLink fabric limits the GPU: {', '.join(limited_by)}"
        yield Problem(what, FABRIC_FIX, "fabric", severity=WARNING, about=name)


def _names(tick: Tick) -> Iterator[Problem]:
    owners = tick.owners
    if owners.host_pid_namespace is False:
        what = "the exporter runs in its own PID namespace: the driver lists no processes of the host"
        yield Problem(what, NAMESPACE_FIX, "pid_namespace", severity=PROBLEM, about="PID namespace")
    if dict(owners.readable).get("cgroup") == 0:
        yield Problem("processes of others are hidden, so they have no owner", PROC_FIX, HIDDEN, about="processes")
    down = [health for health in owners.providers if not health.up]
    for health in down:
        if health.fetches:
            cause = health.problem or Problem("no reason given")
            yield replace(cause, fix=cause.fix or LOG_FIX, about=health.title)
    if not down:
        for reason, count in owners.unresolved:
            if reason not in SHORT_LIVED:
                what = f"{count} process{'es' * (count != 1)}: {reason}"
                yield Problem(what, OWNER_FIX, UNRESOLVED, severity=WARNING, about="owners")
    if owners.unknown_device_ids:
        what = f"{owners.unknown_device_ids} device ids from the kubelet or a runtime have an unknown format"
        fix = "`gpuledger explain --device-id ID` shows how an id is parsed; please report it"
        yield Problem(what, fix, "device_id", severity=WARNING, about="device ids")
    yield from owners.malformed
    yield from _oversold(tick)


def _oversold(tick: Tick) -> Iterator[Problem]:
    """GPUs of which more was given away than there is."""
    compute: dict[str, float] = defaultdict(float)
    memory_bytes: dict[str, int] = defaultdict(int)
    for use in tick.allocations:
        if use.entitlement is not None:
            compute[use.device.gpu_uuid] += use.entitlement.compute_ratio or 0
            memory_bytes[use.device.gpu_uuid] += use.entitlement.memory_bytes or 0
    for reading in tick.readings:
        uuid, total = reading.device.uuid, reading.memory_total_bytes
        parts = []
        if compute[uuid] > 1.001:  # 7 x 1/7, rounded
            parts.append(f"{compute[uuid]:.2f} times its compute")
        if total and memory_bytes[uuid] > 1.001 * total:
            parts.append(f"{memory_bytes[uuid] / total:.2f} times its memory")
        if parts:
            what = f"the entitlements of pods add up to {' and '.join(parts)}"
            yield Problem(what, OVERSOLD_FIX, "entitlement", severity=WARNING, about=f"GPU {reading.device.index}")


def _books(tick: Tick) -> Iterator[Problem]:
    for reading in tick.readings:
        account = tick.accounts.get(reading.device.uuid)
        if account is not None and account.residual_mj:
            what = f"the books are off by {account.residual_mj / 1000:g} J"
            yield Problem(what, REPORT_FIX, "residual", severity=PROBLEM, about=f"GPU {reading.device.index}")
        if account is not None and account.counter_stuck:
            what = "the energy counter stands still while the GPU draws power: energy is power times time"
            yield Problem(what, COUNTER_FIX, "energy_counter", severity=WARNING, about=f"GPU {reading.device.index}")
    if tick.dropped_processes:
        listed = tick.resident_pids()
        hidden = len(listed - {use.resident.pid for use in tick.processes})
        now = f"{hidden} of {len(listed)} processes have" if hidden else "since the start, some processes had"
        fix = "raise `--process.max`; the sums include their energy in any case"
        yield Problem(f"{now} no row of their own", fix, "process_limit", severity=NOTE, about="processes")


def _exporter(tick: Tick) -> Iterator[Problem]:
    """Problems of the exporter itself."""
    health = tick.health
    for stage in health.stages:
        if not stage.success and stage.name != "read":  # a failure to read is a problem of the driver
            yield Problem(f"the {stage.name} stage failed", REPORT_FIX, "stage", severity=PROBLEM, about="exporter")
    if health.interval_ns and health.duration_ns > health.interval_ns:
        seconds, interval = health.duration_ns / 1e9, health.interval_ns / 1e9
        what = f"a tick takes {seconds:.1f} s, longer than the interval of {interval:g} s"
        yield Problem(what, "raise `--tick.interval`", SLOW, severity=WARNING, about="exporter")
    yield from _peers(tick)
    if tick.dcgm is not None and not tick.dcgm.up:
        yield _component(tick.dcgm.problem, "DCGM", "check whether nv-hostengine hangs")
    if tick.journal is not None and tick.journal.failures:
        what = f"the journal could not be written {_times(tick.journal.failures)}"
        fix = "see the exporter's log; check the free space and the permissions of the journal's directory"
        yield Problem(what, fix, "journal", severity=WARNING, about="journal")


def _peers(tick: Tick) -> Iterator[Problem]:
    """Problems with servers that are read or written."""
    health = tick.health
    if health.review_problem is not None:
        yield _component(health.review_problem, "own view", LOG_FIX)
    if health.otlp is not None and health.otlp.problem is not None:
        yield _component(health.otlp.problem, "otlp", LOG_FIX)
    for server in tick.servers or ():
        if server.problem is not None and server.problem.kind != "starting":
            cause = replace(server.problem, severity=WARNING)
            yield _component(cause, f"tokens of {server.name}", LOG_FIX)
    if health.upstream is not None and not health.upstream.up:
        yield _component(health.upstream.problem, "dcgm-exporter", LOG_FIX)
    elif health.upstream is not None and health.upstream.pods_problem is not None:
        yield replace(health.upstream.pods_problem, about="dcgm-exporter")


def _component(cause: Problem | None, about: str, fallback_fix: str) -> Problem:
    cause = cause or Problem("no reason given")
    return replace(cause, fix=cause.fix or fallback_fix, about=about)


def _times(count: int) -> str:
    return f"{count} time{'s' * (count != 1)}"
