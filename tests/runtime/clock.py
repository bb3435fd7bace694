"""A clock that moves only when a test waits."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable


class Clock:
    """Moves during waits, and runs the actions planned for those times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._plan: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def __call__(self) -> float:
        """The time now."""
        return self.now

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Run an action at this time."""
        self._plan.append((moment, next(self._order), action))
        self._plan.sort()

    def wait(self, timeout_s: float, is_over: Callable[[], bool]) -> bool:
        """Wait until `is_over`, at most so long; whether it is over."""
        end = self.now + timeout_s
        while not is_over() and self._plan and self._plan[0][0] <= end:
            moment, _, action = self._plan.pop(0)
            self.now = max(self.now, moment)
            action()
        if is_over():
            return True
        self.now = end
        return False


class Event(threading.Event):
    """An event whose waits take only time of the clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it was set."""
        assert timeout is not None
        return self._clock.wait(timeout, self.is_set)
