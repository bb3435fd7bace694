"""A value that is loaded from files, and loaded again when they change."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from gpuledger.errors import GpuledgerError
from gpuledger.runtime.statelog import StateLog

T = TypeVar("T")

log = logging.getLogger(__name__)

RETRY_S = 5.0
"""A failed load is retried without a change too: the process may have run out of file descriptors."""


def file_state(paths: Iterable[str]) -> Hashable:
    """A value that changes when one of the files is written, replaced or removed. Symbolic links are followed."""
    return tuple(_state(path) for path in paths)


def _state(path: str) -> Hashable:
    try:
        status = os.stat(path)  # noqa: PTH116 - called for every request
    except OSError as error:
        return error.errno
    except ValueError:  # contains a NUL byte; opening it reports the error
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class Reloaded(Generic[T]):
    """The result of `load`, refreshed whenever `state` changes. If a later load fails, the last valid value is kept.

    The first load happens in the constructor, which passes on its errors. Later loads happen in the thread that calls
    `get`; other threads get the previous value meanwhile.
    """

    def __init__(
        self,
        name: str,
        state: Callable[[], Hashable],
        load: Callable[[], T],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._state_of_files, self._load, self._monotonic = name, state, load, monotonic
        self._log = StateLog(log)
        self._failed_at: float | None = None
        self._refreshing = threading.Lock()
        self._state = state()  # before loading, so that a change in between is noticed next time
        self._value = load()

    def get(self) -> T:
        """The current value."""
        if self._refreshing.acquire(blocking=False):
            try:
                self._refresh()
            finally:
                self._refreshing.release()
        return self._value

    def _refresh(self) -> None:
        state = self._state_of_files()
        retry = self._failed_at is not None and self._monotonic() >= self._failed_at + RETRY_S
        if state == self._state and not retry:
            return
        self._state = state
        try:
            self._value = self._load()
        except (OSError, ValueError, GpuledgerError) as error:
            self._failed_at = self._monotonic()
            problem = f"reloading {self._name} failed: {error}; the last valid version is still used"
            self._log.change(self._name, str(error), problem, "")
        else:
            if self._failed_at is None:
                log.info("%s changed and was reloaded", self._name)
            self._failed_at = None
            self._log.change(self._name, "", "", f"{self._name} is valid again and was reloaded")
