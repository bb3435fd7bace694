"""What is wrong in a tick, worst first, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuledger.model import MemoryAccount, Reading, Tick
from gpuledger.view import advice

PROBLEM, WARNING, NOTE = LEVELS = ("problem", "warning", "note")
"""Something does not work; something is missing; worth knowing."""
HEAT = {"sw_thermal_slowdown", "hw_thermal_slowdown"}
POWER = {"hw_slowdown", "hw_power_brake_slowdown"}
XID_FIX = (
    "`sudo dmesg | grep -i xid` says more, NVIDIA's XID catalog what it means: 13, 31 and 43 are faults of the "
    "program, 48, 63, 64, 74, 79, 94 and 95 of the hardware"
)
REASONS_LEFT_OUT = {"process is gone"}
"""It is short-lived, and nothing can be done."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    level: str
    """One of LEVELS."""
    about: str
    what: str
    fix: str


def problems(tick: Tick) -> list[Problem]:
    """Worst first, in the order in which they cause each other."""
    found = [*_driver(tick), *_names(tick), *_books(tick), *_exporter(tick)]
    return sorted(found, key=lambda one: LEVELS.index(one.level))


def _driver(tick: Tick) -> Iterator[Problem]:
    if not tick.driver.up:
        yield Problem(PROBLEM, "driver", f"cannot be read: {tick.driver.reason}", advice.fix_of(tick.driver.reason))
        return
    if not tick.readings:
        yield Problem(PROBLEM, "driver", "answers, but lists no GPU", advice.NO_GPU_FIX)
    for reading in tick.readings:
        yield from _gpu(reading, tick.memory.get(reading.device.uuid))
    for (call, error), count in tick.health.driver_errors:
        what = f"{call} failed {count} time{'s' * (count != 1)}: {error}; what it tells is missing"
        yield Problem(WARNING, "driver", what, advice.fix_of(error))


def _gpu(reading: Reading, memory: MemoryAccount | None) -> Iterator[Problem]:
    device = reading.device
    name = f"GPU {device.index}" + (f" {device.mig_profile}" if device.parent_uuid else "")
    if not reading.up:
        fix = advice.fix_of(reading.reason, device.index)
        yield Problem(PROBLEM, name, f"cannot be read: {reading.reason}", fix)
        return
    yield from _hardware(reading, name)
    if memory is not None and memory.unknown_bytes:
        yield Problem(WARNING, name, advice.of_memory(memory), advice.MEMORY_FIX)


def _hardware(reading: Reading, name: str) -> Iterator[Problem]:
    slowed = {reason for reason, on in reading.clock_events if on}
    if slowed & HEAT:
        hottest = max((c for _, c in reading.temperatures_c), default=None)
        what = "is slowed down by heat" + (f", at {hottest} °C" if hottest is not None else "")
        yield Problem(WARNING, name, what, "look at fans, airflow and the room; `nvidia-smi -q -d TEMPERATURE`")
    elif slowed & POWER:
        fix = "look at the power supply and its cables; `nvidia-smi -q -d PERFORMANCE` names the reason"
        yield Problem(WARNING, name, "is slowed down by its hardware: power brake, or power is short", fix)
    for xid, count in reading.xids:
        yield Problem(WARNING, name, f"reported XID {xid}, {count} time{'s' * (count != 1)}", XID_FIX)
    if dict(reading.ecc_errors).get("uncorrected"):
        fix = "`nvidia-smi -q -d ECC,ROW_REMAPPER`; have it replaced when they come back after a reset"
        yield Problem(WARNING, name, f"{dict(reading.ecc_errors)['uncorrected']} uncorrected memory errors", fix)
    if reading.row_remap_pending:
        fix = f"`sudo nvidia-smi --gpu-reset -i {reading.device.index}`, when nobody is on it"
        yield Problem(WARNING, name, "a memory row waits to be remapped", fix)
    if reading.row_remap_failed:
        yield Problem(PROBLEM, name, "a memory row could not be remapped", "have the GPU replaced")


def _names(tick: Tick) -> Iterator[Problem]:
    owners = tick.owners
    if owners.host_pid_namespace is False:
        what = "the exporter has a namespace of its own: the driver lists no processes of the host"
        yield Problem(PROBLEM, "PID namespace", what, advice.NAMESPACE_FIX)
    down = [health for health in owners.providers if not health.up]
    for health in down:
        if health.fetches:
            what, fix = advice.of_provider(health)
            yield Problem(PROBLEM, advice.called(health), what, fix)
    if not down:
        for reason, count in owners.unresolved:
            if reason not in REASONS_LEFT_OUT:
                yield Problem(WARNING, "owners", f"{count} process{'es' * (count != 1)}: {reason}", advice.OWNER_FIX)
    if owners.unknown_device_ids:
        what = f"{owners.unknown_device_ids} device ids of the kubelet or a runtime have a form nobody knows"
        yield Problem(WARNING, "device ids", what, "`gpuledger explain --device-id ID` shows how an id is read")


def _books(tick: Tick) -> Iterator[Problem]:
    for reading in tick.readings:
        account = tick.accounts.get(reading.device.uuid)
        if account is not None and account.residual_mj:
            what = f"{account.residual_mj / 1000:g} J do not add up"
            yield Problem(PROBLEM, f"GPU {reading.device.index}", what, advice.REPORT_FIX)
    if tick.dropped_processes:
        listed = tick.resident_pids()
        hidden = len(listed - {use.resident.pid for use in tick.processes})
        now = f"{hidden} of {len(listed)} processes are" if hidden else "some processes were, since the start,"
        what = f"{now} not shown one by one"
        yield Problem(NOTE, "processes", what, "raise `--process.max`; their energy is in the sums all the same")


def _exporter(tick: Tick) -> Iterator[Problem]:
    health = tick.health
    for stage in health.stages:
        if not stage.success and stage.name != "read":  # which is the driver, told above
            yield Problem(PROBLEM, "exporter", f"its stage {stage.name} fails", advice.REPORT_FIX)
    if health.interval_ns and health.duration_ns > health.interval_ns:
        what = (
            f"a tick takes {health.duration_ns / 1e9:.1f} s, longer than the {health.interval_ns / 1e9:g} s between two"
        )
        yield Problem(WARNING, "exporter", what, "raise `--tick.interval`")
    if health.upstream is not None and not health.upstream.up:
        what, fix = advice.explained(health.upstream.reason)
        yield Problem(PROBLEM, "dcgm-exporter", what, fix)
    if tick.dcgm is not None and not tick.dcgm.up:
        what, fix = advice.explained(tick.dcgm.reason)
        yield Problem(PROBLEM, "DCGM", what, fix)
    if tick.journal is not None and tick.journal.failures:
        failures = tick.journal.failures
        what = f"the journal could not be written {failures} time{'s' * (failures != 1)}"
        yield Problem(
            WARNING, "journal", what, "the log of the exporter says why; look at space and rights of its folder"
        )
