"""The journal's file: read once at the start, then written by a thread of its own, each tick before it is shown.

Never synced to the disk: what a killed process wrote is still in the kernel's memory, and after a crash of the kernel
it is another boot, for which no journal counts.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from contextlib import suppress
from dataclasses import replace
from glob import escape
from pathlib import Path

from gpuledger.books.book import Books
from gpuledger.books.journal import LARGEST_BYTES, decode, encode
from gpuledger.books.kept import State
from gpuledger.errors import ConfigError, JournalError, UsageError
from gpuledger.model import JournalHealth, Tick
from gpuledger.said import Said
from gpuledger.sources.worker import Worker
from gpuledger.wholefile import replacing

log = logging.getLogger(__name__)

PATIENCE_S = 0.05
"""How long a tick waits until it is written; after that it is shown all the same."""
LAST_PATIENCE_S = 0.5
"""The same, when the exporter stops."""
HANGS_S = 10.0
"""A write that takes this long is told in the log."""


class JournalFile:
    """A journal on disk that one exporter at a time may write."""

    def __init__(self, path: str) -> None:
        self.path = Path(os.path.realpath(path))
        self._lock: int | None = None

    def lock(self) -> None:
        """Make sure that nobody else writes it; OSError when that cannot be known."""
        if self._lock is not None:
            return
        name = self.path.with_name(f"{self.path.name}.lock")
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ConfigError(
                f"--journal.path: {self.path} is the journal of another gpuledger that runs; name another file"
            ) from None
        except OSError:
            os.close(lock)
            raise
        self._lock = lock
        for partial in self.path.parent.glob(f".{escape(self.path.name)}.*"):  # of one that was killed as it wrote
            with suppress(OSError):
                partial.unlink()

    def read(self, boot_id: str) -> State | None:
        """What is in it; None when there is no such file. JournalError when it cannot be used."""
        try:
            if self.path.exists() and not self.path.is_file():
                raise JournalError("it is no regular file")
            with self.path.open("rb") as file:
                data = file.read(LARGEST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise JournalError(f"{error.strerror}") from None
        if len(data) > LARGEST_BYTES:
            raise JournalError(f"it has more than {LARGEST_BYTES >> 20} MiB")
        state = decode(data)
        if not boot_id:
            raise JournalError("the id of this boot cannot be read")
        if state.boot_id != boot_id:
            raise JournalError("it is of another boot")
        return state

    def write(self, state: State) -> int:
        """Put this state in place of the last one; the file's size."""
        data = encode(state)
        try:
            self.lock()
        except OSError as error:
            raise UsageError(f"cannot write {self.path}: {error.strerror}; name a file that can be written") from None
        with replacing(self.path) as file:
            file.write(data)
        return len(data)

    def close(self) -> None:
        """Let another have it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class JournaledBooks:
    """Books that begin where a journal ends, and write it on. A journal that fails costs a log line, never a tick."""

    def __init__(self, books: Books, path: str, *, boot_id: str, interval_s: float = 0.0) -> None:
        self._books = books
        self._file = JournalFile(path)
        self._boot_id = boot_id
        self._interval_ns = int(interval_s * 1e9)
        self._guard = threading.Lock()
        self._said = Said(log)
        self._health = JournalHealth()
        self._tick_ns: int | None = None
        """Of the last tick that is booked."""
        self._taken_ns: int | None = None
        """Of the last tick that was given to be written."""
        self._since = 0.0
        self._closed = False
        with suppress(OSError):  # told when it is to be written
            self._file.lock()
        self._begin()
        self._writer: Worker[int] = Worker("journal")

    def _begin(self) -> None:
        path = self._file.path
        try:
            state = self._file.read(self._boot_id)
        except JournalError as error:
            log.warning("journal %s is not used: %s; totals begin anew", path, error)
            return
        if state is None:
            log.info("journal %s is not there yet; totals begin anew", path)
            return
        now_ns = time.time_ns()
        self._books.resume(state, now_ns)
        log.info("totals go on from journal %s, written %.1f s ago", path, (now_ns - state.time_ns) / 1e9)

    def book(self, tick: Tick) -> Tick:
        """The tick with its books, written down if that is due."""
        with self._guard:
            tick = self._books.book(tick)
            self._tick_ns = tick.time_ns
            self._fetch(0.0)
            past_ns = None if self._taken_ns is None else tick.time_ns - self._taken_ns
            if past_ns is None or not 0 <= past_ns < self._interval_ns:  # also when the clock was set back
                self._take(PATIENCE_S)
            return replace(tick, journal=self._health)

    def close(self) -> None:
        """Write what is not written yet; takes a second at most."""
        if not self._guard.acquire(timeout=LAST_PATIENCE_S):
            return
        try:
            self._fetch(LAST_PATIENCE_S)
            if self._tick_ns != self._taken_ns:
                self._take(LAST_PATIENCE_S)
            self._closed = True
            self._writer.close()
            self._file.close()
        finally:
            self._guard.release()

    def _take(self, patience_s: float) -> None:
        if self._closed or self._writer.busy or self._tick_ns is None:
            return
        state = self._books.keep(self._boot_id, self._tick_ns)
        self._taken_ns, self._since = self._tick_ns, time.monotonic()
        self._writer.start(lambda: self._file.write(state))
        self._fetch(patience_s)

    def _fetch(self, patience_s: float) -> None:
        """Take note of how the last write went, if it is done."""
        if not self._writer.busy:
            return
        reason = ""
        try:
            size_bytes = self._writer.result(patience_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, the tick is shown
            reason = str(error) or type(error).__name__
            self._health = replace(self._health, failures=self._health.failures + 1)
        else:
            if size_bytes is not None:
                self._health = replace(self._health, written_ns=self._taken_ns, size_bytes=size_bytes)
            elif time.monotonic() - self._since < HANGS_S:
                return
            else:
                reason = f"writing {self._file.path} does not end"
        self._said.change(
            "journal", reason, f"the journal is not written: {reason}", f"journal {self._file.path} is written again"
        )
