"""All GPUs of the host, and the driver coming and going under them.

No driver call is ever made in the thread that calls `read`: each GPU has a worker, and so has the driver as a whole.
A call that hangs costs one GPU its numbers, and one thread; the tick goes on without it.
"""

from __future__ import annotations

import _ctypes
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pynvml

from gpuledger.model import Device, Driver, Reading, Tick
from gpuledger.net.poller import Backoff
from gpuledger.problem import Problem
from gpuledger.said import Said
from gpuledger.sources.nvml.call import DriverGoneError, GpuLostError
from gpuledger.sources.nvml.events import XidWatch
from gpuledger.sources.nvml.reader import GpuReader
from gpuledger.sources.worker import Worker

log = logging.getLogger(__name__)

COUNT_EVERY = 10
"""Ticks between two looks at how many GPUs there are."""
OUTDATED = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
REOPEN_AFTER = 30
"""Ticks without an answer from any GPU after which the driver itself is opened anew."""


@dataclass(slots=True)
class Gpu:
    """A GPU, its thread, and how it is."""

    reader: GpuReader
    worker: Worker[list[Reading]]
    backoff: Backoff
    reason: str = ""

    def job(self) -> list[Reading]:
        """Runs in the GPU's thread: a lost GPU is looked for anew."""
        if self.reason or self.reader.device is None:
            self.reader.open()
        return self.reader.read()


class NvmlSource:
    """The source that reads the driver. `timeout_s` is how long a call may take before its GPU counts as hung."""

    def __init__(
        self,
        *,
        timeout_s: float = 2.0,
        pcie_throughput: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._timeout_s = timeout_s
        self._pcie_throughput = pcie_throughput
        self._monotonic = monotonic
        self._now_ns = now_ns
        self._errors: Counter[tuple[str, str]] = Counter()
        self._xids = XidWatch()
        self._gpus: list[Gpu] = []
        self._stuck: list[Gpu] = []
        self._driver = Driver(up=False, problem=Problem("not opened yet"))
        self._control: Worker[Any] = Worker("nvml")
        self._watched: list[tuple[int, int]] = []
        self._backoff = Backoff(monotonic)
        self._known: dict[int, Device] = {}
        self._said = Said(log)
        self._said.assume("driver", self._driver.reason)
        self._ticks = 0
        self._silent_ticks = 0
        self._outdated = False
        self._opening = False

    def errors(self) -> Mapping[tuple[str, str], int]:
        """Unforeseen failures of driver calls since start."""
        return dict(self._errors)

    def read(self) -> Tick:
        """One tick of all GPUs; takes as long as the slowest of them, at most `timeout_s`."""
        if not self._driver.up:
            self._open()
        readings: tuple[Reading, ...] = ()
        if self._driver.up:
            try:
                readings = self._read_gpus()
            except DriverGoneError as gone:
                self._lose(str(gone), gone.code)
        if not self._driver.up:
            readings = tuple(self._down(device, self._driver.reason) for device in self._known.values())
        return Tick(time_ns=self._now_ns(), driver=self._driver, readings=readings)

    def close(self) -> None:
        """Stop all threads that can stop; one that hangs in the driver ends with the process."""
        self._xids.stop()
        for gpu in self._gpus:
            gpu.worker.close()
        if not any(gpu.worker.busy for gpu in self._gpus) and self._driver.up and not self._control.busy:
            self._control.start(_shut_down)
        self._control.close()

    # -- the GPUs

    def _read_gpus(self) -> tuple[Reading, ...]:
        self._ticks += 1
        deadline = self._monotonic() + self._timeout_s
        asked = [gpu for gpu in self._gpus if self._ask(gpu)]
        readings: dict[int, list[Reading]] = {}
        gone: DriverGoneError | None = None
        for gpu in asked:
            try:
                answer = gpu.worker.result(deadline - self._monotonic())
            except DriverGoneError as error:
                gone = error
                continue
            except (GpuLostError, pynvml.NVMLError) as error:
                self._fail(gpu, str(error))
                continue
            except Exception as error:  # a bug of ours in one GPU's reading must not take the others along
                log.exception("GPU %d: reading failed", gpu.reader.index)
                self._fail(gpu, f"{type(error).__name__}: {error}")
                continue
            if answer is None:
                self._set_reason(gpu, f"{gpu.reader.calls.current} does not return")
            else:
                gpu.backoff.reset()
                self._set_reason(gpu, "")
                self._known[gpu.reader.index] = answer[0].device
                readings[gpu.reader.index] = answer
        if gone is not None:
            try:
                raise gone
            finally:
                del gone  # as in Worker.result
        self._watch_xids(readings)
        self._silent_ticks = 0 if readings else self._silent_ticks + 1
        if self._gpus and self._silent_ticks == REOPEN_AFTER:
            self._lose("no GPU answers", 0)
        elif self._ticks % COUNT_EVERY == 0:
            self._count()
        return tuple(
            reading for gpu in self._gpus for reading in readings.get(gpu.reader.index) or [self._down_gpu(gpu)]
        )

    def _watch_xids(self, readings: Mapping[int, list[Reading]]) -> None:
        """Keep the watch on the GPUs that are up: one that is lost would fail the wait for all."""
        up = [gpu.reader for gpu in self._gpus if gpu.reader.index in readings]
        watched = [(reader.index, reader.opened) for reader in up]
        if watched != self._watched:
            self._watched = watched
            self._xids.watch([(reader.handle, reader.device) for reader in up if reader.device is not None])

    def _ask(self, gpu: Gpu) -> bool:
        """Start the GPU's reading, unless it still hangs in the last one or is not yet worth trying again."""
        if gpu.worker.busy:
            try:
                late = gpu.worker.result(0)
            except Exception:  # noqa: BLE001 - an old failure; the next reading tells how it is now
                late = []
            if late is None:
                return False
        if gpu.reason and not gpu.backoff.due():
            return False
        gpu.worker.start(gpu.job)
        return True

    def _fail(self, gpu: Gpu, reason: str) -> None:
        gpu.backoff.failed()
        self._set_reason(gpu, reason)

    def _set_reason(self, gpu: Gpu, reason: str) -> None:
        gpu.reason = reason
        index = gpu.reader.index
        self._said.change(f"gpu {index}", reason, f"GPU {index} is down: {reason}", f"GPU {index} is back")

    def _down_gpu(self, gpu: Gpu) -> Reading:
        index = gpu.reader.index
        device = gpu.reader.device or self._known.get(index) or Device(index=index, uuid="")
        return self._down(device, gpu.reason)

    def _down(self, device: Device, reason: str) -> Reading:
        xids, last_xid = self._xids.seen(device.uuid), self._xids.last(device.uuid)
        return Reading(device=device, up=False, problem=Problem(reason), xids=xids, last_xid=last_xid)

    # -- the driver

    def _open(self) -> None:
        """Try nvmlInit when it is worth trying; the result may come in a later tick."""
        if self._control.busy and not self._opening:  # an nvmlDeviceGetCount or nvmlShutdown that came late
            try:
                if self._control.result(0) is None:
                    self._say_driver(Driver(up=False, problem=Problem("a call to the driver before does not return")))
                    return
            except pynvml.NVMLError:
                pass
        if not self._control.busy:
            self._stuck = [gpu for gpu in self._stuck if _hangs(gpu)]
            if self._stuck:
                call = self._stuck[0].reader.calls.current
                self._say_driver(Driver(up=False, problem=Problem(f"{call} of the driver before does not return")))
                return
            if not self._backoff.due() or (self._outdated and not self._forget_library()):
                return
            self._control.start(_initialise)
            self._opening = True
        try:
            opened = self._control.result(self._timeout_s)
        except (DriverGoneError, pynvml.NVMLError) as error:
            self._backoff.failed()
            self._outdated = error.code == OUTDATED if isinstance(error, DriverGoneError) else False
            self._opening = False
            self._say_driver(Driver(up=False, problem=Problem(str(error))))
            return
        if opened is None:
            self._say_driver(Driver(up=False, problem=Problem("nvmlInit does not return")))
            return
        self._opening = False
        driver, count = opened
        self._gpus = [self._gpu(index) for index in range(count)]
        self._backoff.reset()
        self._say_driver(driver)

    def _gpu(self, index: int) -> Gpu:
        reader = GpuReader(index, self._errors, self._xids, self._now_ns, pcie_throughput=self._pcie_throughput)
        self._known.setdefault(index, Device(index=index, uuid=""))  # so that it is down, not missing, until it answers
        return Gpu(reader, Worker(f"gpu {index}"), Backoff(self._monotonic))

    def _count(self) -> None:
        """GPUs may be added or taken away (hotplug, passthrough): then everything starts again."""
        if not self._control.busy:
            self._control.start(pynvml.nvmlDeviceGetCount)
        try:
            count = self._control.result(self._timeout_s)
        except pynvml.NVMLError as error:
            self._errors[("nvmlDeviceGetCount", str(error))] += 1
            return
        if count is not None and count != len(self._gpus):
            self._known.clear()
            self._lose(f"there are now {count} GPUs instead of {len(self._gpus)}", 0)

    def _lose(self, reason: str, code: int) -> None:
        """The driver is gone: end the readers and begin again at the next tick."""
        self._xids.stop()
        for gpu in self._gpus:
            gpu.worker.close()
        self._stuck += [gpu for gpu in self._gpus if gpu.worker.busy]
        self._gpus, self._watched = [], []
        self._say_driver(Driver(up=False, problem=Problem(reason)))
        if not self._stuck and not self._control.busy:
            self._control.start(_shut_down)
            self._control.result(self._timeout_s)
        self._outdated = code == OUTDATED
        self._silent_ticks = 0

    def _forget_library(self) -> bool:
        """The driver was replaced: unmap the old library, so that nvmlInit loads the new one from disk.

        Not before the last thread has left it: the readers have ended, the watch for XIDs may need another second.
        """
        if self._xids.listening:
            return False
        library = pynvml.nvmlLib
        if library is not None:
            pynvml.nvmlLib = None
            pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - the binding has no way to reload
            _ctypes.dlclose(library._handle)  # noqa: SLF001
        self._outdated = False
        return True

    def _say_driver(self, driver: Driver) -> None:
        self._driver = driver
        back = f"driver {driver.driver_version} is up with {len(self._gpus)} GPUs"
        self._said.change("driver", driver.reason, f"the driver cannot be read: {driver.reason}", back)


def _hangs(gpu: Gpu) -> bool:
    """Whether its thread is still inside the driver."""
    try:
        return gpu.worker.busy and gpu.worker.result(0) is None
    except Exception:  # noqa: BLE001 - it came back, with an error that is of no interest any more
        return False


def _initialise() -> tuple[Driver, int]:
    """Load the library and count the GPUs."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DriverGoneError(f"nvmlInit: {error}", error.value) from error
    cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    driver = Driver(
        up=True,
        driver_version=pynvml.nvmlSystemGetDriverVersion(),
        nvml_version=pynvml.nvmlSystemGetNVMLVersion(),
        cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
    )
    return driver, pynvml.nvmlDeviceGetCount()


def _shut_down() -> bool:
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        log.debug("nvmlShutdown: %s", error)
    return True
