"""One time limit for several calls, which a server that sends one byte at a time cannot extend."""

from __future__ import annotations

import time


class Deadline:
    """The moment by which an operation of several calls must finish."""

    __slots__ = ("_at", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        """The time limit, for messages."""
        self._at = time.monotonic() + timeout_s

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; 0 after it."""
        return max(0.0, self._at - time.monotonic())

    def left_s(self) -> float:
        """Timeout of the next call; raises TimeoutError after the deadline."""
        if left_s := self.remaining_s:
            return left_s
        raise TimeoutError("timed out")
