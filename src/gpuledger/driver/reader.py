"""Reads one GPU with its MIG instances: which calls, how often and in which order."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from gpuledger.driver import nvml, slow, values
from gpuledger.driver.buffered import BufferedSlots
from gpuledger.driver.call import LOOK, NO_ANSWER, Calls, Failures
from gpuledger.driver.deferral import Deferral
from gpuledger.driver.events import XidWatch
from gpuledger.driver.gpm import SLOT_S, Gpm
from gpuledger.driver.nvml import Handle, NvmlError
from gpuledger.driver.processes import Accounts, ResidentLists, UtilizationSamples
from gpuledger.driver.rounds import Rounds
from gpuledger.driver.values import Fields, read_parts
from gpuledger.errors import DriverGoneError, GpuLostError
from gpuledger.model import Device, Labelled, Reading
from gpuledger.model.problem import Problem

SLOW_EVERY, GAUGES_EVERY = 10, 5
"""Ticks between two readings of the values that change rarely, and of those that few need every second."""
MIG_SAMPLES_AT = 0.7
"""When MIG instances are sampled, relative to the time between two readings."""


class MigInstance:
    """A MIG instance. It has its own memory, activity and processes; all other values belong to its GPU."""

    def __init__(self, handle: Handle, device: Device) -> None:
        self.handle = handle
        self.device = device
        self.gpm = Gpm(device.gpu_instance_id)
        self._lists = ResidentLists()
        self._measured: Fields = {}
        """The last activity."""
        self._is_new = False
        """Whether it was measured after the last reading."""

    def read(self, calls: Calls) -> Reading:
        """The values of the instance, with the activity that was measured last."""
        calls.about = self.device.uuid
        is_held, self._is_new = bool(self._measured) and not self._is_new, False
        try:
            return Reading(
                device=self.device,
                residents=self._lists.read(calls, self.handle),
                activity_held=is_held,
                **self._measured,
                **values.memory(calls, self.handle),
            )
        finally:
            calls.about = ""

    def sample(self, calls: Calls, parent: Handle, *, late: bool) -> None:
        """Take a sample. The activity up to a `late` one is that of the tick; an earlier one only begins its time."""
        calls.about = self.device.uuid
        try:
            measured = self.gpm.read(calls, parent)
        finally:
            calls.about = ""
        if late:
            self._measured, self._is_new = measured, True


class MigSample(NamedTuple):
    """A planned sample of a MIG instance."""

    instance: MigInstance
    due_s: float
    late: bool


class GpuReader:
    """Reads one GPU, always in the same thread; other threads may read `calls.current`."""

    def __init__(
        self,
        index: int,
        failures: Failures,
        xids: XidWatch,
        now_ns: Callable[[], int],
        *,
        energy_interval_s: float = 0.0,
        pcie_throughput: bool = False,
        slot_s: float = SLOT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.index = index
        self.calls = Calls(failures, index)
        self._xids = xids
        self._now_ns = now_ns
        self._energy_interval_s = energy_interval_s
        self._pcie_throughput = pcie_throughput
        self._slot_s = slot_s
        self._monotonic = monotonic
        self.device: Device | None = None
        self.handle: Handle = None
        self._gpm = self._new_gpm()
        self._migs: list[MigInstance] = []
        self._rounds = Rounds()
        self._mig_samples: list[MigSample] = []
        """The samples of MIG instances that are due before the next reading."""
        self._mig_sample_s = 0.0
        """Time of one of them."""
        self._read_s: float | None = None
        """When the last reading began."""
        self._tick_s = 0.0
        """Time between the last two readings; 0 if unknown."""
        self._due_s: list[float] = []
        """When to take the remaining GPM samples before the next reading; empty unless the GPU is shared."""
        self._sampling_ns = 0
        """Time spent in driver calls since the last reading."""
        self.opened = 0
        """How often the GPU was opened; the handle changes each time."""

    def open(self) -> None:
        """Get the GPU's handle and identity, and forget which calls it supports."""
        self.calls.forget()
        self.handle = self.calls.require(nvml.HANDLE_BY_INDEX, self.index)
        self.device = values.identity(self.calls, self.handle, self.index)
        self._power_and_heat = values.PowerAndHeat()
        self._counters, self._links = slow.Counters(), slow.Links()
        self._lists = ResidentLists()
        self._samples = UtilizationSamples()
        self._accounts = Accounts()
        self._buffered = BufferedSlots()
        self._deferral = Deferral(self._energy_interval_s)
        self.close()
        self._gpm = self._new_gpm()
        self._migs = []
        self._constants: Fields = {}
        self._rare: Fields = {}
        self._gauges: Fields = {}
        self._measured: Fields = {}
        """Activity, as it was read last."""
        self._engine_pct: float | None = None
        """Graphics activity by the samples of processes; None if GPM has to measure it."""
        self._counted: Fields = {}
        """Energy and utilization by process, as they were read last."""
        self._memory_used_bytes: int | None = None
        self._nvlink: tuple[int, int] | None = None
        self._ticks = 0
        self.opened += 1

    def close(self) -> None:
        """Free what the driver allocated for this GPU."""
        for gpm in (self._gpm, *(mig.gpm for mig in self._migs)):
            gpm.close()
        self._due_s, self._mig_samples, self._rounds = [], [], Rounds()

    def _new_gpm(self) -> Gpm:
        return Gpm(slot_s=self._slot_s, monotonic=self._monotonic)

    def read(self) -> list[Reading]:
        """The reading of the GPU, then those of its MIG instances."""
        calls, handle = self.calls, self.handle
        now_s = self._monotonic()
        self._tick_s, self._read_s = 0.0 if self._read_s is None else now_s - self._read_s, now_s
        calls.spent_ns, self._sampling_ns = self._sampling_ns, 0
        calls.answered = 0
        self._due_s = []  # no further sample of a GPU that cannot be read
        turn = self._ticks + self.index  # GPUs take turns with calls that are rare
        is_slow = self._ticks == 0 or turn % SLOW_EVERY == 0
        if is_slow:
            self._read_slow()
        if self._ticks < 2 or turn % GAUGES_EVERY == 0:
            self._read_gauges()
        fields: Fields = {**self._rare, **self._gauges}
        self._read_present(fields)
        pids = self._read_processes(fields, all_lists=is_slow)
        is_shared = pids is not None and len(pids) > 1
        if not is_shared:
            self._buffered.forget()
        elif self._gpm.is_unsupported:
            fields["slots"] = self._buffered.read(calls, handle, self._now_ns() // 1000)
        if self._pcie_throughput:
            fields.update(read_parts(slow.PCIE_THROUGHPUT, calls, handle))
        migs = [mig.read(calls) for mig in self._migs]
        self._ticks += 1
        if calls.answered == 0:
            problem = calls.last_problem or Problem("the GPU answers no call", LOOK, NO_ANSWER)
            raise GpuLostError(problem.what, problem.fix, problem.kind)
        assert self.device is not None  # noqa: S101 - open() came first
        xids, last_xid = self._xids.counts(self.device.uuid), self._xids.last(self.device.uuid)
        spent_ns = calls.spent_ns
        if is_shared:
            self._due_s = self._gpm.plan()
        if migs and not self._mig_samples:
            migs = self._plan_mig_samples(migs, fields["power_mw"])
        return [Reading(device=self.device, xids=xids, last_xid=last_xid, driver_ns=spent_ns, **fields), *migs]

    def _read_present(self, fields: Fields) -> None:
        """Read what changes from second to second: memory, power, heat and utilization."""
        fields.update(read_parts((values.memory, self._power_and_heat), self.calls, self.handle))
        fields["temperatures_c"] = (*self._gauges["temperatures_c"], *fields["temperatures_c"])
        utilization = values.utilization(self.calls, self.handle)
        if self._ticks > 0:  # the first value after nvmlInit may be a wrong 100 %
            fields.update(utilization)

    def _read_processes(self, fields: Fields, *, all_lists: bool) -> set[int] | None:
        """Read the processes and what is counted of them; returns those of the GPU, None if they are not known."""
        memory_used_bytes = fields.get("memory_used_bytes")
        has_changed = all_lists or memory_used_bytes is None or memory_used_bytes != self._memory_used_bytes
        self._memory_used_bytes = memory_used_bytes
        residents = self._lists.read(self.calls, self.handle, has_changed=has_changed)
        fields["residents"] = residents
        pids = None if residents is None or fields["mig_enabled"] else {resident.pid for resident in residents}
        if pids:
            fields["clocks_mhz"] = self._clocks_mhz()
        self._read_counters(fields, pids)
        return pids

    def sample(self) -> float | None:
        """Take a GPM sample if one is due; returns the seconds until the next, None if none comes before a reading."""
        if self._mig_samples:
            return self._sample_mig()
        now_s = self._monotonic()
        if self._due_s and self._due_s[0] <= now_s:
            spent_ns = self.calls.spent_ns
            taken = self._gpm.sample(self.calls, self.handle)
            self._sampling_ns += self.calls.spent_ns - spent_ns
            now_s = self._monotonic()
            self._due_s = [due_s for due_s in self._due_s if due_s > now_s] if taken else []
        return self._due_s[0] - now_s if self._due_s else None

    def _plan_mig_samples(self, migs: list[Reading], power_mw: int | None) -> list[Reading]:
        """Plan the samples until the next reading; marks activity that is outdated."""
        read_s = self._read_s or 0.0
        processes = {mig.device.uuid: frozenset(r.pid for r in mig.residents or ()) for mig in migs}
        plan = self._rounds.plan(processes, power_mw, len(migs) * self._mig_sample_s, read_s)
        if plan.at_once:
            self._mig_samples += [MigSample(mig, read_s, late=False) for mig in self._migs]
        if plan.late:
            late_s = read_s + MIG_SAMPLES_AT * self._tick_s
            self._mig_samples += [MigSample(mig, late_s, late=True) for mig in self._migs]
        return [replace(mig, activity_outdated=True) for mig in migs] if plan.outdated else migs

    def _sample_mig(self) -> float | None:
        """Sample a MIG instance if it is due; returns the seconds until the next sample.

        A sample that would delay the next reading comes after it: the first sample of an instance takes up to 0.35 s.
        """
        now_s, sample = self._monotonic(), self._mig_samples[0]
        if now_s < sample.due_s:
            return sample.due_s - now_s
        del self._mig_samples[0]
        if sample.instance in self._migs:
            spent_ns = self.calls.spent_ns
            try:
                sample.instance.sample(self.calls, self.handle, late=sample.late)
            except (GpuLostError, DriverGoneError):  # the next reading reports it
                self._mig_samples = []
            self._sampling_ns += self.calls.spent_ns - spent_ns
        took_s = self._monotonic() - now_s
        if sample.late:
            self._mig_sample_s = took_s
        if not self._mig_samples or now_s + 2 * took_s > (self._read_s or 0.0) + self._tick_s:
            return None
        return 0.0

    def _read_slow(self) -> None:
        was_mig = self._rare.get("mig_enabled")
        if not self._constants:
            self._constants = read_parts(slow.CONSTANTS, self.calls, self.handle)
        rare = self._constants | read_parts((self._counters, self._links, *slow.SLOW), self.calls, self.handle)
        rare["nvlink_bytes_per_s"] = self._nvlink_rate(rare)
        self._rare = rare
        if was_mig is not None and rare["mig_enabled"] != was_mig:
            self.open()  # MIG changes which calls the GPU supports
            self._rare = rare
        self._find_migs()

    def _nvlink_rate(self, rare: Fields) -> int | None:
        """Bytes per second in both directions since the previous reading of the counters."""
        sent, received = rare.get("nvlink_transmit_bytes"), rare.get("nvlink_receive_bytes")
        now: tuple[int, int] | None = None if sent is None or received is None else (sent + received, self._now_ns())
        previous, self._nvlink = self._nvlink, now
        if now is None or previous is None or now[0] < previous[0] or now[1] <= previous[1]:
            return None
        return (now[0] - previous[0]) * 10**9 // (now[1] - previous[1])

    def _find_migs(self) -> None:
        instances = []
        known = {mig.device: mig for mig in self._migs}
        enabled = self._rare["mig_enabled"]
        count = (self.calls.get(nvml.MAX_MIG_COUNT, self.handle) or 0) if enabled else 0
        for i in range(count):
            try:
                handle = self.calls.require(nvml.MIG_HANDLE, self.handle, i)
            except NvmlError:  # NOT_FOUND: the slot is empty
                continue
            device = self._mig_identity(handle)
            if device is not None:
                instance = known.pop(device, None) or MigInstance(handle, device)
                instance.handle = handle  # a recreated instance may have the old uuid
                instances.append(instance)
        for removed in known.values():
            removed.gpm.close()
        self._migs = instances

    def _mig_identity(self, handle: Handle) -> Device | None:
        def get(function: Callable[..., Any], handle: Handle) -> Any:
            """The result of a call. Failures are not recorded: the instance may have been removed."""
            try:
                return self.calls.require(function, handle)
            except NvmlError:
                return None

        uuid = get(nvml.UUID, handle)
        if uuid is None or self.device is None:
            return None
        attributes: Any = get(nvml.ATTRIBUTES, handle)
        name = get(nvml.NAME, handle) or ""
        return Device(
            index=self.index,
            uuid=uuid,
            name=name,
            multiprocessors=attributes[0] if attributes is not None else None,
            parent_uuid=self.device.uuid,
            gpu_instance_id=get(nvml.GPU_INSTANCE_ID, handle),
            compute_instance_id=get(nvml.COMPUTE_INSTANCE_ID, handle),
            mig_profile=name.rpartition(" MIG ")[2] if " MIG " in name else "",
        )

    def _read_gauges(self) -> None:
        self._gauges = read_parts(values.GAUGES, self.calls, self.handle)
        self._gauges["clocks_mhz"] = (*self._rare["clocks_mhz"], *self._gauges["clocks_mhz"])
        engines = read_parts(values.ENGINES, self.calls, self.handle)
        if self._ticks > 0:  # as for utilization
            self._gauges.update(engines)

    def _clocks_mhz(self) -> Labelled:
        """The last clocks, with the present one of the SMs: activity is compared at the same clock."""
        sm_mhz = self.calls.get(nvml.CLOCK, self.handle, values.SM_CLOCK)
        known = self._gauges["clocks_mhz"]
        return known if sm_mhz is None else tuple((name, sm_mhz if name == "sm" else mhz) for name, mhz in known)

    def _read_counters(self, fields: Fields, pids: set[int] | None) -> None:
        """Read energy, utilization by process and activity, unless they are left to a later reading."""
        calls, handle, now_ns = self.calls, self.handle, self._now_ns()
        # The mean of a second, if the GPU has it: the other changes all the time if a program pauses for milliseconds.
        power_mw = fields["power_mw"] if fields["power_average_mw"] is None else fields["power_average_mw"]
        utilization_pct = fields.get("utilization_pct")
        is_due = self._deferral.is_due(pids, power_mw, utilization_pct, self._read_s or 0.0)
        counted = self._counted
        if is_due or counted["samples"] is None or counted["energy_mj"] is None:
            counted = self._counted = values.ENERGY(calls, handle)
            counted["samples"] = samples = self._samples.read(calls, handle, now_ns // 1000)
            # To a percent the same as GPM's graphics activity, which takes 1.5 ms. Samples may come late.
            is_late = samples is None or (utilization_pct and not samples)
            self._engine_pct = None if is_late else min(100.0, float(sum([sample.sm_pct for sample in samples or ()])))
            if self._rare["accounting_enabled"] and fields["residents"] is not None:
                pids_listed = {resident.pid for resident in fields["residents"]}
                fields["accounting"] = self._accounts.read(calls, handle, pids_listed)
        else:
            fields["deferred"] = True
        fields["energy_mj"] = counted["energy_mj"]
        fields["samples"] = () if "deferred" in fields else counted["samples"]
        if pids or "deferred" not in fields:
            self._measured = self._gpm.read(calls, handle, graphics=self._engine_pct is None)
            if (activity := self._measured.get("activity")) is not None and self._engine_pct is not None:
                self._measured["activity"] = replace(activity, graphics_pct=self._engine_pct)
        fields.update(self._measured)
