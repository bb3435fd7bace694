"""Which thread reads which GPU: one for all GPUs that answer fast, and one for each that does not.

A thread for each GPU costs a quarter of the CPU time of a tick while calls are fast, because the threads wait for each
other's interpreter. If calls are slow, as those of a shared H200 (10 ms a tick), threads read the GPUs side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.driver.reader import GpuReader
from gpuledger.model import Reading
from gpuledger.model.problem import Problem
from gpuledger.runtime.poller import Backoff
from gpuledger.runtime.threads import Lane, Worker

SLOW_S, FAST_S = 0.005, 0.0025
"""Mean time of driver calls in a tick above which a GPU gets its own thread, and below which it gives it up."""
PATIENCE_S = 0.1
"""Eight GPUs at the limit take 40 ms. If their thread takes longer, a call hangs or has become slow."""
PACE = 0.2
"""Weight of the last tick in the mean."""


@dataclass(slots=True)
class Gpu:
    """A GPU with its worker and its state."""

    reader: GpuReader
    worker: Worker[list[Reading]]
    backoff: Backoff
    problem: Problem | None = None
    driver_s: float = SLOW_S
    """Mean time of driver calls in a tick."""

    def job(self) -> list[Reading]:
        """Read the GPU; a GPU that was down is opened again."""
        if self.problem is not None or self.reader.device is None:
            self.reader.open()
        return self.reader.read()

    def hangs(self) -> bool:
        """Whether the thread is still inside a driver call."""
        try:
            return self.worker.busy and self.worker.result(0) is None
        except Exception:  # noqa: BLE001 - the call has returned, so it does not hang
            return False


class Threads:
    """Moves GPUs between the thread of the fast ones and threads of their own."""

    def __init__(self) -> None:
        self._common: Lane | None = None

    def wait(self, started: Sequence[Gpu], timeout_s: float) -> None:
        """Wait for the GPUs that share a thread. If one of them delays the others, each gets its own."""
        shared = [gpu.worker for gpu in started if gpu.worker.lane is self._common]
        if shared and self._common is not None and not shared[-1].wait(min(PATIENCE_S, timeout_s)):
            self._common.scatter()
            self._common = None

    def place(self, gpu: Gpu, driver_s: float) -> None:
        """Move a GPU that was read, if its calls have become fast or slow."""
        gpu.driver_s += PACE * (min(driver_s, 2 * SLOW_S) - gpu.driver_s)
        if self._common is not None and not self._common.workers:
            self._common = None
        if gpu.worker.lane is self._common:
            if gpu.driver_s > SLOW_S:
                gpu.worker.move(Lane(gpu.worker.name))
        elif gpu.driver_s < FAST_S:
            if self._common is None:
                self._common = gpu.worker.lane
            else:
                gpu.worker.move(self._common)
