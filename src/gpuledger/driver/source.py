"""All GPUs of the host, and the state of the driver.

The thread that calls `read` makes no driver call: other threads read the GPUs (`threads.py`), and one opens and closes
the driver. If a call hangs, the ticks continue without the values of its GPU.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuledger.driver import nvml
from gpuledger.driver.call import LOOK, NO_ANSWER, NO_GPU, VERSION_MISMATCH, Failures, hang, problem_of
from gpuledger.driver.events import END_S, XidWatch
from gpuledger.driver.gpm import SLOT_S
from gpuledger.driver.nvml import NvmlError
from gpuledger.driver.reader import GpuReader
from gpuledger.driver.threads import Gpu, Threads
from gpuledger.errors import DriverGoneError, GpuLostError
from gpuledger.model import Device, Driver, Reading, Tick
from gpuledger.model.problem import REPORT, WARNING, Problem
from gpuledger.runtime.deadline import Deadline
from gpuledger.runtime.poller import Backoff
from gpuledger.runtime.statelog import StateLog
from gpuledger.runtime.threads import Worker

log = logging.getLogger(__name__)

LIBRARY = "libnvidia-ml"
LibraryFile = tuple[int, int, int]
"""Device, inode and time of the last change, in nanoseconds."""
COUNT_EVERY = 10
"""Ticks between two counts of the GPUs."""
REOPEN_AFTER = 30
"""Ticks without an answer from any GPU after which the driver is opened again."""
SAME_UUID = Problem("the driver reports the uuid of another GPU", LOOK, "same_uuid")


class NvmlSource:
    """Reads the driver through NVML. A call that takes longer than `timeout_s` marks its GPU as down."""

    def __init__(
        self,
        *,
        timeout_s: float = 2.0,
        energy_interval_s: float = 0.0,
        pcie_throughput: bool = False,
        slot_s: float = SLOT_S,
        monotonic: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._timeout_s = timeout_s
        self._energy_interval_s = energy_interval_s
        self._pcie_throughput = pcie_throughput
        self._slot_s = slot_s
        self._monotonic = monotonic
        self._now_ns = now_ns
        self._failures: Failures = Counter()
        self._xids = XidWatch()
        self._gpus: list[Gpu] = []
        self._threads = Threads()
        self._stuck: list[Gpu] = []
        """GPUs of an earlier driver whose threads still hang in a call."""
        self._driver = Driver(up=False, problem=Problem("not opened yet", kind="starting"))
        self._control: Worker[Any] = Worker("nvml")
        self._watched: list[tuple[int, int]] = []
        self._backoff = Backoff(monotonic)
        self._known: dict[int, Device] = {}
        """By index; no uuid occurs twice."""
        self._state_log = StateLog(log)
        self._state_log.assume("driver", str(self._driver.problem))
        self._ticks = 0
        self._silent_ticks = 0
        self._outdated = False
        self._library: LibraryFile | None = None
        """The file of the library when it was loaded."""
        self._opening = False

    def errors(self) -> Mapping[tuple[str, str], int]:
        """Unexpected failures since the start, by call and error."""
        return {(call, str(NvmlError(code))): count for (call, code), count in dict(self._failures).items()}

    def problems(self) -> tuple[Problem, ...]:
        """Unexpected failures of driver calls as problems, with their fixes."""
        return tuple(_failure(call, code, count) for (call, code), count in sorted(dict(self._failures).items()))

    def read(self) -> Tick:
        """One tick of all GPUs; takes as long as the slowest of them, at most `timeout_s`."""
        if not self._driver.up:
            self._open()
        readings: tuple[Reading, ...] = ()
        if self._driver.up:
            try:
                readings = self._read_gpus()
            except DriverGoneError as gone:
                self._lose(gone.problem)
        if not self._driver.up:
            readings = tuple(self._down(device, self._driver.problem) for device in self._known.values())
        monotonic_ns = int(self._monotonic() * 1e9)
        return Tick(time_ns=self._now_ns(), driver=self._driver, readings=readings, monotonic_ns=monotonic_ns)

    def close(self) -> None:
        """Stop all threads; one that hangs in the driver ends with the process."""
        self._xids.stop()
        if not self._close_gpus() and self._driver.up:
            self._shut_down()
            self._driver = Driver(up=False)
        self._control.close()

    # -- the GPUs

    def _read_gpus(self) -> tuple[Reading, ...]:
        self._ticks += 1
        deadline = self._monotonic() + self._timeout_s
        started = [gpu for gpu in self._gpus if self._start(gpu)]
        self._threads.wait(started, self._timeout_s)
        readings: dict[int, list[Reading]] = {}
        gone: DriverGoneError | None = None
        for gpu in started:
            try:
                result = gpu.worker.result(deadline - self._monotonic())
            except DriverGoneError as error:
                gone = error
                continue
            except GpuLostError as error:
                self._fail(gpu, error.problem)
                continue
            except NvmlError as error:
                self._fail(gpu, problem_of(str(error), error.code, gpu.reader.index))
                continue
            except Exception as error:  # a bug in the reading of one GPU must not affect the others
                log.exception("GPU %d: reading failed", gpu.reader.index)
                self._fail(gpu, Problem(f"{type(error).__name__}: {error}", REPORT, "bug"))
                continue
            if result is None:
                self._set_problem(gpu, hang(gpu.reader.calls.current))
            else:
                gpu.backoff.reset()
                self._set_problem(gpu, None)
                readings[gpu.reader.index] = result
                self._threads.place(gpu, (result[0].driver_ns or 0) / 1e9)
        if gone is not None:
            try:
                raise gone
            finally:
                del gone  # as in Worker.result
        self._identify(readings)
        self._watch_xids(readings)
        self._silent_ticks = 0 if readings else self._silent_ticks + 1
        if self._gpus and self._silent_ticks == REOPEN_AFTER:
            self._lose(Problem("no GPU answers", LOOK, NO_ANSWER))
        elif self._ticks % COUNT_EVERY == 0:
            self._count()
        return tuple(
            reading
            for gpu in self._gpus
            for reading in readings.get(gpu.reader.index) or [self._down(self._known[gpu.reader.index], gpu.problem)]
        )

    def _identify(self, readings: dict[int, list[Reading]]) -> None:
        """Assign each uuid to one index. A driver reload may renumber the GPUs, so a reading precedes what was known.

        A second reading of the same uuid is removed.
        """
        claims: list[tuple[int, Device | None]] = [(index, parts[0].device) for index, parts in readings.items()]
        claims += [(gpu.reader.index, gpu.reader.device) for gpu in self._gpus]
        claims += self._known.items()
        known: dict[int, Device] = {}
        uuids: set[str] = set()
        for index, device in claims:
            if device is not None and index not in known and device.uuid not in uuids:
                known[index] = device
                uuids |= {device.uuid} - {""}
        for gpu in self._gpus:
            index = gpu.reader.index
            device = known.setdefault(index, Device(index=index, uuid=""))
            if index in readings and readings[index][0].device is not device:
                del readings[index]
                self._fail(gpu, SAME_UUID)
        self._known = dict(sorted(known.items()))

    def _watch_xids(self, readings: Mapping[int, list[Reading]]) -> None:
        """Watch the GPUs that are up; a lost GPU would fail the wait for all."""
        up = [gpu.reader for gpu in self._gpus if gpu.reader.index in readings]
        watched = [(reader.index, reader.opened) for reader in up]
        if watched != self._watched:
            self._watched = watched
            self._xids.watch([(reader.handle, reader.device) for reader in up if reader.device is not None])

    def _start(self, gpu: Gpu) -> bool:
        """Start reading the GPU, unless a call hangs or the backoff is not over."""
        if gpu.hangs() or (gpu.problem is not None and not gpu.backoff.due()):
            return False
        gpu.worker.start(gpu.job)
        return True

    def _fail(self, gpu: Gpu, problem: Problem) -> None:
        gpu.backoff.failed()
        self._set_problem(gpu, problem)

    def _set_problem(self, gpu: Gpu, problem: Problem | None) -> None:
        gpu.problem = problem
        index, text = gpu.reader.index, str(problem or "")
        self._state_log.change(f"gpu {index}", text, f"GPU {index} is down: {text}", f"GPU {index} is up again")

    def _down(self, device: Device, problem: Problem | None) -> Reading:
        xids, last_xid = self._xids.counts(device.uuid), self._xids.last(device.uuid)
        return Reading(device=device, up=False, problem=problem, xids=xids, last_xid=last_xid)

    # -- the driver

    def _open(self) -> None:
        """Call nvmlInit if the backoff allows; the result may arrive in a later tick."""
        if self._control.busy and not self._opening:  # nvmlDeviceGetCount or nvmlShutdown is late
            try:
                if self._control.result(0) is None:
                    self._set_driver(Driver(up=False, problem=hang("an earlier call to the driver")))
                    return
            except NvmlError:
                pass
        if not self._control.busy:
            self._stuck = [gpu for gpu in self._stuck if not gpu.worker.ended(0.0)]
            if self._stuck:
                call = self._stuck[0].reader.calls.current
                self._set_driver(Driver(up=False, problem=hang(f"an earlier {call}")))
                return
            if not self._backoff.due() or (self._outdated and not self._unload_library()):
                return
            self._control.start(_initialise)
            self._opening = True
        try:
            opened = self._control.result(self._timeout_s)
            self._library = self._library or _library_file()
        except DriverGoneError as error:
            self._fail_to_open(error.problem)
            return
        except NvmlError as error:
            self._fail_to_open(problem_of(str(error), error.code))
            return
        if opened is None:
            self._set_driver(Driver(up=False, problem=hang("nvmlInit")))
            return
        self._opening = False
        driver, count = opened
        self._gpus = [self._gpu(index) for index in range(count)]
        self._known = {index: self._known.get(index, Device(index=index, uuid="")) for index in range(count)}
        self._backoff.reset()
        self._set_driver(driver if count else replace(driver, problem=NO_GPU))

    def _fail_to_open(self, problem: Problem) -> None:
        self._backoff.failed()
        self._library = self._library or _library_file()
        self._outdated = problem.kind == VERSION_MISMATCH
        self._opening = False
        self._set_driver(Driver(up=False, problem=problem))

    def _gpu(self, index: int) -> Gpu:
        reader = GpuReader(
            index,
            self._failures,
            self._xids,
            self._now_ns,
            energy_interval_s=self._energy_interval_s,
            pcie_throughput=self._pcie_throughput,
            slot_s=self._slot_s,
            monotonic=self._monotonic,
        )
        worker: Worker[list[Reading]] = Worker(f"gpu {index}", idle=reader.sample, end=reader.close)
        return Gpu(reader=reader, worker=worker, backoff=Backoff(self._monotonic))

    def _count(self) -> None:
        """Reopen the driver if GPUs were added or removed (hotplug, passthrough)."""
        if not self._control.busy:
            self._control.start(nvml.COUNT)
        try:
            count = self._control.result(self._timeout_s)
        except NvmlError as error:
            self._failures["nvmlDeviceGetCount", error.code] += 1
            return
        if count is not None and count != len(self._gpus):
            self._known.clear()
            self._lose(Problem(f"the number of GPUs changed from {len(self._gpus)} to {count}", kind="gpu_count"))

    def _lose(self, problem: Problem) -> None:
        """Stop all readers after the driver is gone; the next tick opens it again."""
        self._xids.stop()
        self._stuck += self._close_gpus()
        self._gpus, self._watched = [], []
        self._set_driver(Driver(up=False, problem=problem))
        if not self._stuck:
            self._shut_down()
        self._outdated = problem.kind == VERSION_MISMATCH
        self._silent_ticks = 0

    def _close_gpus(self) -> list[Gpu]:
        """End the threads of the GPUs; returns the GPUs whose threads hang in a call."""
        for gpu in self._gpus:
            gpu.worker.close()
        deadline = Deadline(END_S)
        return [gpu for gpu in self._gpus if gpu.worker.busy or not gpu.worker.ended(deadline.remaining_s)]

    def _shut_down(self) -> None:
        """Call nvmlShutdown, unless a thread still hangs in another call."""
        if not self._control.busy and self._xids.ended(END_S):
            self._control.start(_shut_down)
            self._control.result(self._timeout_s)

    def _unload_library(self) -> bool:
        """Unmap the library of a replaced driver, so that nvmlInit loads the new one; False while a thread uses it.

        The readers have ended by then; the XID thread may hang. As long as the file is the same, the library stays: the
        module may not be replaced for weeks, and a library keeps some memory each time that it is unmapped.
        """
        if not self._xids.ended(0.0):
            return False
        file = _library_file()
        if file is None or file != self._library:
            self._library = None
            nvml.library.unload()
        self._outdated = False
        return True

    def _set_driver(self, driver: Driver) -> None:
        self._driver = driver
        text = str(driver.problem or "")
        count = len(self._gpus)
        recovery = f"driver {driver.driver_version} is up with {count} GPU{'s' * (count != 1)}"
        self._state_log.change("driver", text, text if driver.up else f"the driver cannot be read: {text}", recovery)


def _failure(call: str, code: int, count: int) -> Problem:
    times = "once" if count == 1 else f"{count} times"
    problem = problem_of(f"{call} failed {times}: {NvmlError(code)}; its value is missing", code)
    return replace(problem, severity=WARNING, about="driver")


def _initialise() -> tuple[Driver, int]:
    try:
        nvml.initialize()
    except NvmlError as error:
        problem = problem_of(f"nvmlInit: {error}", error.code)
        raise DriverGoneError(problem.what, problem.fix, problem.kind) from error
    cuda = nvml.CUDA_VERSION()
    driver = Driver(
        up=True,
        driver_version=nvml.DRIVER_VERSION(),
        nvml_version=nvml.NVML_VERSION(),
        cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
    )
    return driver, nvml.COUNT()


def _library_file() -> LibraryFile | None:
    """The file that is loaded as libnvidia-ml: the link beside the mapped file, which an update changes."""
    try:
        maps = Path("/proc/self/maps").read_bytes().decode("utf-8", "replace")
        mapped = next((line.split(maxsplit=5)[5] for line in maps.split("\n") if f"/{LIBRARY}." in line), None)
        file = None if mapped is None else Path(mapped).with_name(f"{LIBRARY}.so.1").stat()
    except OSError:
        return None
    return None if file is None else (file.st_dev, file.st_ino, file.st_mtime_ns)


def _shut_down() -> bool:
    try:
        nvml.SHUTDOWN()
    except NvmlError as error:
        log.debug("nvmlShutdown: %s", error)
    return True
