"""XID errors, counted by event, because the driver reports only the last one."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence

from gpuledger.driver import nvml
from gpuledger.driver.call import GONE
from gpuledger.driver.nvml import Handle
from gpuledger.model import Device, Labelled
from gpuledger.runtime.deadline import Deadline

log = logging.getLogger(__name__)

WAIT_MS = 500
"""An event ends the wait at once. Each wait without an event wakes a thread; the exporter's end waits for the last."""
END_S = 2 * WAIT_MS / 1000
"""Time to end for a thread that does not hang in the driver."""


class XidWatch:
    """Waits for XID events in a thread of its own. The counts survive a reload of the driver."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[int]] = {}
        self._last: dict[str, int] = {}
        self._stop: threading.Event | None = None
        self._threads: list[threading.Thread] = []

    def watch(self, gpus: Sequence[tuple[Handle, Device]]) -> None:
        """Watch these GPUs instead of the previous ones. Does not wait for the driver."""
        self.stop()
        self._stop = threading.Event()
        thread = threading.Thread(target=self._run, args=(list(gpus), self._stop), name="xid", daemon=True)
        thread.start()
        self._threads = [*(t for t in self._threads if t.is_alive()), thread]

    def stop(self) -> None:
        """Stop watching. The thread ends within WAIT_MS; see `ended`."""
        if self._stop is not None:
            self._stop.set()
            self._stop = None

    def ended(self, timeout_s: float) -> bool:
        """Whether all threads have ended. NVML crashes if it is shut down while one waits for events."""
        deadline = Deadline(timeout_s)
        for thread in self._threads:
            thread.join(deadline.remaining_s)
        return not any(thread.is_alive() for thread in self._threads)

    def counts(self, uuid: str) -> Labelled:
        """Number of events on a GPU, by XID."""
        return tuple((str(code), n) for code, n in sorted(self._counts.get(uuid, Counter()).copy().items()))

    def last(self, uuid: str) -> int | None:
        """The last XID on a GPU."""
        return self._last.get(uuid)

    def _run(self, gpus: Sequence[tuple[Handle, Device]], stop: threading.Event) -> None:
        try:
            events = nvml.EVENT_SET()
            try:
                devices = _register(events, gpus)
                if devices:
                    self._listen(events, devices, stop)
            finally:
                nvml.EVENT_FREE(events)
        except nvml.NvmlError as error:
            log.debug("cannot watch XID errors: %s", error)

    def _listen(self, events: object, devices: dict[int | None, Device], stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                address, kind, xid = nvml.EVENT_WAIT(events, WAIT_MS)
            except nvml.NvmlError as error:
                if error.code == nvml.TIMEOUT:
                    continue
                if error.code in GONE:
                    return  # the source starts another watch once the driver is back
                stop.wait(WAIT_MS / 1000)  # a lost GPU fails the wait at once; the source will leave it out
                continue
            device = devices.get(address)
            if stop.is_set() or device is None or kind != nvml.XID_CRITICAL_ERROR:
                continue
            log.warning("GPU %d (%s): XID %d", device.index, device.uuid, xid)
            self._counts.setdefault(device.uuid, Counter())[xid] += 1
            self._last[device.uuid] = xid


def _register(events: object, gpus: Sequence[tuple[Handle, Device]]) -> dict[int | None, Device]:
    devices: dict[int | None, Device] = {}
    for handle, device in gpus:
        try:
            nvml.register_events(handle, nvml.XID_CRITICAL_ERROR, events)
        except nvml.NvmlError as error:
            log.debug("GPU %d sends no XID events: %s", device.index, error)
        else:
            devices[handle.value] = device
    return devices
