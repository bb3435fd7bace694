"""The processes on a device: process lists, utilization samples and accounting.

The binding's functions are not used: they call the driver twice (first for the size) and fail if a list grows in
between. This module reads into buffers of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterator
from struct import Struct
from typing import Any

from gpuledger.driver import nvml
from gpuledger.driver.call import NO_ROWS, UNSUPPORTED, Calls
from gpuledger.driver.nvml import Handle
from gpuledger.model import Accounting, Resident, Sample

PROCESS_V3 = Struct("=I4xQII")  # pid, bytes, GPU instance, compute instance
PROCESS_V1 = Struct("=I4xQ")
SAMPLE_NEW = Struct("=QIIIIIII4x")  # timestamp, pid, sm, memory, encoder, decoder, jpeg, optical flow
SAMPLE_OLD = Struct("=I4xQIIII")
SAMPLE_REQUEST = Struct("=IIQQ")  # version, capacity or count, last time, address of the samples
LIST_FORMS = (("_v3", PROCESS_V3), ("_v2", PROCESS_V3), ("", PROCESS_V1))
LISTS = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
)
NO_MEMORY = 2**64 - 1  # WDDM, and processes of other users under some hypervisors
NO_INSTANCE = 2**32 - 1
GROWTH_TRIES = 5
CLOCK_SLACK_US = 1_000_000


class RecordArray:
    """A driver call that fills an array of C records; the array grows if the driver reports that it is too small."""

    def __init__(self, symbol: str, record: Struct, capacity: int = 32) -> None:
        self.__name__ = symbol
        self._record = record
        self._capacity = capacity
        self._buffer = ctypes.create_string_buffer(self._capacity * record.size)

    def __call__(self, handle: Handle, *arguments: Any) -> Iterator[tuple[int, ...]]:
        """The rows as tuples of integers."""
        function = nvml.library.function(self.__name__)
        for _ in range(GROWTH_TRIES):
            code, count = self._fill(function, handle, *arguments)
            if code != nvml.INSUFFICIENT_SIZE:
                break
            self._capacity = max(count * 2, self._capacity * 2)
            self._buffer = ctypes.create_string_buffer(self._capacity * self._record.size)
        if code != nvml.SUCCESS:
            raise nvml.NvmlError(code)
        filled = memoryview(self._buffer)[: min(count, self._capacity) * self._record.size]
        return self._record.iter_unpack(filled)

    def _fill(self, function: Any, handle: Handle) -> tuple[int, int]:
        count = ctypes.c_uint(self._capacity)
        code = function(handle, ctypes.byref(count), self._buffer)
        return code, count.value


class OldSamples(RecordArray):
    """nvmlDeviceGetProcessUtilization: always 0 on some Blackwell boards, so it is the fallback."""

    pid_at, timestamp_at = 0, 1

    def __init__(self) -> None:
        super().__init__("nvmlDeviceGetProcessUtilization", SAMPLE_OLD)

    def _fill(self, function: Any, handle: Handle, *arguments: Any) -> tuple[int, int]:
        count = ctypes.c_uint(self._capacity)
        code = function(handle, self._buffer, ctypes.byref(count), ctypes.c_ulonglong(arguments[0]))
        return code, count.value


class NewSamples(RecordArray):
    """nvmlDeviceGetProcessesUtilizationInfo, R550 and newer."""

    pid_at, timestamp_at = 1, 0

    def __init__(self) -> None:
        super().__init__("nvmlDeviceGetProcessesUtilizationInfo", SAMPLE_NEW)
        self._request = ctypes.create_string_buffer(SAMPLE_REQUEST.size)

    def _fill(self, function: Any, handle: Handle, *arguments: Any) -> tuple[int, int]:
        version = 1 << 24 | SAMPLE_REQUEST.size
        SAMPLE_REQUEST.pack_into(
            self._request, 0, version, self._capacity, arguments[0], ctypes.addressof(self._buffer)
        )
        code = function(handle, self._request)
        return code, SAMPLE_REQUEST.unpack(self._request)[1]


class ResidentLists:
    """The compute, graphics and MPS lists of a device, merged."""

    def __init__(self) -> None:
        self._forms = {kind: [RecordArray(name + form, record) for form, record in LIST_FORMS] for kind, name in LISTS}
        self._rows: dict[str, list[tuple[int, ...]] | None] = {}
        """The last rows of each list."""

    def read(self, calls: Calls, handle: Handle, *, has_changed: bool = True) -> tuple[Resident, ...] | None:
        """The processes with a context; None if no list is supported or the compute list failed.

        Only the compute list is read, unless it has changed or `has_changed`: a new process takes memory.
        """
        merged: dict[tuple[int, int, int], tuple[str, int | None]] = {}
        supported = False
        for kind in self._forms:
            if kind == "compute" or has_changed:
                rows = self._list(calls, handle, kind)
                has_changed |= rows != self._rows.get(kind)
                self._rows[kind] = rows
            else:
                rows = self._rows[kind]
            if rows is None:
                if kind == "compute" and self._forms[kind]:
                    return None  # a temporary failure; the other lists alone would be incomplete
                continue
            supported = True
            for pid, memory, *instance in rows:
                gi, ci = instance or (NO_INSTANCE, NO_INSTANCE)
                key = (pid, gi, ci)
                memory_bytes = None if memory == NO_MEMORY else memory
                if key in merged:  # each list reports all of a process's memory
                    other_kind, other = merged[key]
                    known = [number for number in (memory_bytes, other) if number is not None]
                    merged[key] = (f"{other_kind}+{kind}", max(known, default=None))
                else:
                    merged[key] = (kind, memory_bytes)
        if not supported:
            return None
        return tuple(
            Resident(
                pid=pid,
                kind=kind,
                memory_bytes=memory_bytes,
                gpu_instance_id=_instance(gi),
                compute_instance_id=_instance(ci),
            )
            for (pid, gi, ci), (kind, memory_bytes) in merged.items()
        )

    def _list(self, calls: Calls, handle: Handle, kind: str) -> list[tuple[int, ...]] | None:
        forms = self._forms[kind]
        while forms:
            try:
                return list(calls.require(forms[0], handle))
            except nvml.NvmlError as error:
                if error.code in NO_ROWS:
                    return []
                if error.code not in UNSUPPORTED:
                    calls.failed(forms[0].__name__, error)
                    return None
                forms.pop(0)  # try the next older version of the call
        return None


def _instance(number: int) -> int | None:
    return None if number == NO_INSTANCE else number


def window_us(last_seen_us: int | None, now_us: int) -> tuple[int, int]:
    """Samples after the first and until the second time are valid and were not used yet.

    The first is `last_seen_us`, or a second ago if that is unknown or the clock was set back since.
    """
    until_us = now_us + CLOCK_SLACK_US
    if last_seen_us is None or last_seen_us > until_us:
        return now_us - CLOCK_SLACK_US, until_us
    return last_seen_us, until_us


class UtilizationSamples:
    """Process utilization; each of the driver's samples is used once."""

    def __init__(self) -> None:
        self._forms: list[NewSamples | OldSamples] = [NewSamples(), OldSamples()]
        self._last_seen_us: int | None = None

    def read(self, calls: Calls, handle: Handle, now_us: int) -> tuple[Sample, ...] | None:
        """The samples since the last call; () if no process worked; None if unsupported or failed."""
        while self._forms:
            try:
                rows = list(calls.require(self._forms[0], handle, self._last_seen_us or 0))
            except nvml.NvmlError as error:
                if error.code in NO_ROWS:
                    rows = []
                elif error.code in UNSUPPORTED:
                    self._forms.pop(0)
                    continue
                else:
                    calls.failed(self._forms[0].__name__, error)
                    return None
            form = self._forms[0]
            return self._fresh([(row[form.pid_at], row[form.timestamp_at], *row[2:6]) for row in rows], now_us)
        return None

    def _fresh(self, rows: list[tuple[int, ...]], now_us: int) -> tuple[Sample, ...] | None:
        """Drop invalid samples: percentages above 100, old or future timestamps, and the whole first answer.

        The first answer covers about 10 s of the past, or is a wrong 100 %. Samples of different processes have
        different timestamps, so the next call starts at the latest of them.
        """
        first = self._last_seen_us is None
        since_us, until_us = window_us(self._last_seen_us, now_us)
        newest: dict[int, Sample] = {}
        latest_us = since_us
        for pid, timestamp_us, sm, memory, encoder, decoder in rows:
            if not since_us < timestamp_us <= until_us or pid == 0:
                continue
            if sm > 100 or memory > 100 or encoder > 100 or decoder > 100:
                continue
            latest_us = max(latest_us, timestamp_us)
            if pid not in newest or newest[pid].timestamp_us < timestamp_us:
                newest[pid] = Sample(
                    pid=pid,
                    timestamp_us=timestamp_us,
                    sm_pct=sm,
                    memory_pct=memory,
                    encoder_pct=encoder,
                    decoder_pct=decoder,
                )
        self._last_seen_us = latest_us
        return None if first else tuple(newest.values())


class Accounts:
    """The driver's accounting of processes; read only if accounting mode is on."""

    def __init__(self) -> None:
        self._known: frozenset[int] | None = None

    def read(self, calls: Calls, handle: Handle, residents: Collection[int]) -> tuple[Accounting, ...]:
        """The accounts of listed processes, and once of each process that came and went since the last call.

        The driver keeps a few hundred ended processes. Processes that ended before the first call are ignored.
        """
        pids = calls.get(nvml.ACCOUNTING_PIDS, handle)
        listed = self._known if pids is None else frozenset(pids)
        new = frozenset() if listed is None or self._known is None else listed - self._known - frozenset(residents)
        accounts = _accounts(calls, handle, sorted({*residents, *new}))
        if listed is not None:
            self._known = listed - {account.pid for account in accounts if account.running and account.pid in new}
        return accounts


def _accounts(calls: Calls, handle: Handle, pids: list[int]) -> tuple[Accounting, ...]:
    accounts = []
    for pid in pids:
        try:
            stats = calls.require(nvml.ACCOUNTING_STATS, handle, pid)
        except nvml.NvmlError as error:
            if error.code in UNSUPPORTED:
                return ()
            if error.code not in NO_ROWS:
                calls.failed("nvmlDeviceGetAccountingStats", error)
            continue
        gpu_pct, memory_pct, peak_memory_bytes, time_ms, start_us, is_running = stats
        accounts.append(
            Accounting(
                pid=pid,
                running=bool(is_running),
                gpu_pct=gpu_pct if gpu_pct <= 100 else None,
                memory_pct=memory_pct if memory_pct <= 100 else None,
                peak_memory_bytes=peak_memory_bytes,
                time_ms=time_ms,
                start_us=start_us,
            )
        )
    return tuple(accounts)
