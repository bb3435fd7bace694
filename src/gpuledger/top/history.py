"""What the GPUs did since `top` runs, in so many steps at most."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger.top.seen import Gpu, Seen

LONGEST = 600
"""Pictures: ten minutes of one a second, and more than the widest screen shows."""


@dataclass(frozen=True, slots=True)
class Point:
    """One GPU in one picture; each from 0 to 1, None where it is not known."""

    busy: float | None
    memory: float | None
    power: float | None


class History:
    """Keeps the last points of each GPU there is."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._points: dict[str, deque[Point]] = {}
        self._times: deque[float] = deque(maxlen=longest)

    def add(self, seen: Seen) -> None:
        """Remember a picture; the same one again changes nothing."""
        if seen.time is None or (self._times and seen.time == self._times[-1]):
            return
        self._times.append(seen.time)
        self._points = {
            gpu.uuid: self._points.get(gpu.uuid, deque(maxlen=self._longest)) for gpu in seen.gpus
        }  # fmt: skip
        for gpu in seen.gpus:
            self._points[gpu.uuid].append(_point(gpu))

    @property
    def seconds(self) -> float:
        """From the oldest picture to the newest."""
        return max(0.0, self._times[-1] - self._times[0]) if self._times else 0.0

    def of(self, gpu: Gpu) -> Iterable[Point]:
        """The oldest first."""
        return self._points.get(gpu.uuid, ())


def _point(gpu: Gpu) -> Point:
    return Point(gpu.busy, ratio(gpu.used_bytes, gpu.total_bytes), ratio(gpu.power_watts, gpu.limit_watts))


def ratio(part: float | None, whole: float | None) -> float | None:
    """How much of the whole it is."""
    return part / whole if part is not None and whole else None
