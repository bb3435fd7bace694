"""The journal's file: read once at the start, then written by a thread of its own, each tick before it is published.

It is never synced to disk: the page cache survives the exporter, and a journal is invalid after a reboot anyway.
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

from gpuledger.atomicfile import replacing
from gpuledger.books.book import Books
from gpuledger.books.journal import LARGEST_BYTES, State, decode, encode
from gpuledger.errors import ConfigError, JournalError, UsageError
from gpuledger.model import JournalHealth, Tick
from gpuledger.sources.worker import Worker
from gpuledger.statelog import StateLog

log = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 0.05
"""How long a tick waits for its journal before it is published anyway."""
CLOSE_TIMEOUT_S = 0.5
"""The same when the exporter stops."""
HANGS_S = 10.0
"""A write that takes longer is reported in the log."""


class JournalFile:
    """A journal on disk. A lock file prevents two exporters from writing it."""

    def __init__(self, path: str) -> None:
        self.path = Path(os.path.realpath(path))
        self._lock: int | None = None

    def lock(self) -> None:
        """Acquire the lock; ConfigError if another exporter has it, OSError if the lock file cannot be opened."""
        if self._lock is not None:
            return
        name = self.path.with_name(f"{self.path.name}.lock")
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ConfigError(
                f"--journal.path: {self.path} is in use by another running gpuledger", "choose another file", "locked"
            ) from None
        except OSError:
            os.close(lock)
            raise
        self._lock = lock
        for partial in self.path.parent.glob(f".{escape(self.path.name)}.*"):  # left by an exporter that was killed
            with suppress(OSError):
                partial.unlink()

    def read(self, boot_id: str) -> State | None:
        """The state in the file; None if there is no file. JournalError if it cannot be used."""
        try:
            if self.path.exists() and not self.path.is_file():
                raise JournalError("not a regular file", kind="damaged")
            with self.path.open("rb") as file:
                data = file.read(LARGEST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise JournalError(f"{error.strerror}", kind="unreadable") from None
        if len(data) > LARGEST_BYTES:
            raise JournalError(f"larger than {LARGEST_BYTES >> 20} MiB", kind="too_large")
        state = decode(data)
        if not boot_id:
            raise JournalError("the boot id cannot be read", kind="boot")
        if state.boot_id != boot_id:
            raise JournalError("written in another boot", kind="boot")
        return state

    def write(self, state: State) -> int:
        """Replace the file atomically; its size in bytes."""
        data = encode(state)
        try:
            self.lock()
        except OSError as error:
            raise UsageError(
                f"cannot write {self.path}: {error.strerror}", "choose a writable file", "unwritable"
            ) from None
        with replacing(self.path) as file:
            file.write(data)
        return len(data)

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class JournaledBooks:
    """Books with a journal. A tick is published even if its journal cannot be written."""

    def __init__(self, books: Books, path: str, *, boot_id: str, interval_s: float = 0.0) -> None:
        self._books = books
        self._file = JournalFile(path)
        self._boot_id = boot_id
        self._interval_ns = int(interval_s * 1e9)
        self._guard = threading.Lock()
        self._state_log = StateLog(log)
        self._health = JournalHealth()
        self._booked_ns: int | None = None
        """Time of the last booked tick."""
        self._submitted_ns: int | None = None
        """Time of the last tick that was passed to the writer."""
        self._submitted_at = 0.0
        """The same on the monotonic clock."""
        self._closed = False
        with suppress(OSError):  # the first write reports it
            self._file.lock()
        self._resume()
        self._writer: Worker[int] = Worker("journal")

    def _resume(self) -> None:
        path = self._file.path
        try:
            state = self._file.read(self._boot_id)
        except JournalError as error:
            log.warning("cannot resume from journal %s: %s; totals start from zero", path, error)
            return
        if state is None:
            log.info("journal %s does not exist yet; totals start from zero", path)
            return
        now_ns = time.time_ns()
        self._books.resume(state, now_ns)
        log.info("totals continue from journal %s, written %.1f s ago", path, (now_ns - state.time_ns) / 1e9)

    def book(self, tick: Tick) -> Tick:
        """The booked tick; the journal is written if it is due."""
        with self._guard:
            tick = self._books.book(tick)
            self._booked_ns = tick.time_ns
            self._collect(0.0)
            since_ns = None if self._submitted_ns is None else tick.time_ns - self._submitted_ns
            if since_ns is None or not 0 <= since_ns < self._interval_ns:  # negative if the clock was set back
                self._submit(WRITE_TIMEOUT_S)
            return replace(tick, journal=self._health)

    def close(self) -> None:
        """Write the last tick if it is not written yet; takes at most a second."""
        if not self._guard.acquire(timeout=CLOSE_TIMEOUT_S):
            return
        try:
            self._collect(CLOSE_TIMEOUT_S)
            if self._booked_ns != self._submitted_ns:
                self._submit(CLOSE_TIMEOUT_S)
            self._closed = True
            self._writer.close()
            self._file.close()
        finally:
            self._guard.release()

    def _submit(self, timeout_s: float) -> None:
        """Pass the state to the writer, unless it is still busy."""
        if self._closed or self._writer.busy or self._booked_ns is None:
            return
        state = self._books.state(self._boot_id, self._booked_ns)
        self._submitted_ns, self._submitted_at = self._booked_ns, time.monotonic()
        self._writer.start(lambda: self._file.write(state))
        self._collect(timeout_s)

    def _collect(self, timeout_s: float) -> None:
        """Take the result of the last write if it is done."""
        if not self._writer.busy:
            return
        reason = ""
        try:
            size_bytes = self._writer.result(timeout_s)
        except Exception as error:  # noqa: BLE001 - the tick is published anyway
            reason = str(error) or type(error).__name__
            self._health = replace(self._health, failures=self._health.failures + 1)
        else:
            if size_bytes is not None:
                self._health = replace(self._health, written_ns=self._submitted_ns, size_bytes=size_bytes)
            elif time.monotonic() - self._submitted_at < HANGS_S:
                return
            else:
                reason = f"writing {self._file.path} takes longer than {HANGS_S:.0f} s"
        self._state_log.change(
            "journal", reason, f"journal is not written: {reason}", f"journal {self._file.path} is written again"
        )
