"""When to try again something that failed: soon at first, then ever more rarely."""

from __future__ import annotations

from collections.abc import Callable

FIRST_S = 1.0
LONGEST_S = 30.0


class Backoff:
    """Doubles the wait with each failure, from 1 s to 30 s."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._wait_s = FIRST_S
        self._next = monotonic()

    def due(self) -> bool:
        """Whether it is worth trying now."""
        return self._monotonic() >= self._next

    def failed(self) -> None:
        """Wait longer next time."""
        self._next = self._monotonic() + self._wait_s
        self._wait_s = min(self._wait_s * 2, LONGEST_S)

    def reset(self) -> None:
        """It worked."""
        self._wait_s = FIRST_S
        self._next = self._monotonic()
