"""Something made of files: made anew when they change, and the last good one kept when that fails."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from gpuledger.said import Said

T = TypeVar("T")

log = logging.getLogger(__name__)

AGAIN_S = 5.0
"""Also without a change a failed attempt is made again: the process may have been out of file descriptors."""


def seen(paths: Iterable[str]) -> Hashable:
    """Differs from before when one of the files was written, replaced or removed; symbolic links are followed."""
    return tuple(_state(path) for path in paths)


def _state(path: str) -> Hashable:
    try:
        found = os.stat(path)  # noqa: PTH116 - a Path for every request would be waste
    except OSError as error:
        return error.errno
    except ValueError:  # no path at all, such as one with a zero byte: whoever opens it says so
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Reloaded(Generic[T]):
    """`look` says in which state the files are; when it says something new, `load` makes the thing.

    The first `load` is made at once, and what it raises goes to the caller. Later ones happen in the thread that asks,
    while others get what there was before: nobody waits for them.
    """

    def __init__(
        self,
        name: str,
        look: Callable[[], Hashable],
        load: Callable[[], T],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._look, self._load, self._monotonic = name, look, load, monotonic
        self._said = Said(log)
        self._failed_at: float | None = None
        self._looking = threading.Lock()
        self._state = look()  # before it is loaded: a change in between is seen the next time
        self._value = load()

    def get(self) -> T:
        """The thing as it is now."""
        if self._looking.acquire(blocking=False):
            try:
                self._refresh()
            finally:
                self._looking.release()
        return self._value

    def _refresh(self) -> None:
        state = self._look()
        again = self._failed_at is not None and self._monotonic() >= self._failed_at + AGAIN_S
        if state == self._state and not again:
            return
        self._state = state
        try:
            self._value = self._load()
        except (OSError, ValueError) as error:
            self._failed_at = self._monotonic()
            self._said.change(self._name, str(error), f"{self._name}: {error}; the last good one stays in use", "")
        else:
            if self._failed_at is None:
                log.info("%s has changed and is in use now", self._name)
            self._failed_at = None
            self._said.change(self._name, "", "", f"{self._name} is good again and in use now")
