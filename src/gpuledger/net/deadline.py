"""One time limit for several calls, so that a server that sends one byte at a time cannot extend it."""

from __future__ import annotations

import time


class Deadline:
    """The moment by which an operation of several calls must finish."""

    __slots__ = ("_at", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        """The whole limit, for messages."""
        self._at = time.monotonic() + timeout_s

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self._at

    def left_s(self) -> float:
        """Seconds that the next call may take; raises TimeoutError if there are none."""
        left_s = self._at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return left_s
