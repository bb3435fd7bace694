"""The journal's file: read once at the start, then written by a thread of its own, each tick before it is published.

It is never synced to disk: the page cache survives the exporter, and a journal is invalid after a reboot anyway. The
same thread writes the workload fingerprints to a second file, which is valid across boots.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.errors import ConfigError, JournalError, UsageError
from gpuledger.ledger.state import State
from gpuledger.model import JournalHealth, Tick
from gpuledger.runtime.deadline import Deadline
from gpuledger.runtime.statelog import StateLog
from gpuledger.runtime.threads import Worker
from gpuledger.storage import fingerprints, journal
from gpuledger.storage.atomicfile import PRIVATE, give_to_owner, open_directory, replacing, resolve
from gpuledger.storage.fingerprints import WorkloadState

if TYPE_CHECKING:
    from gpuledger.books import Books

log = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 0.05
"""How long a tick waits for its journal before it is published anyway."""
CLOSE_TIMEOUT_S = 0.5
"""The same when the exporter stops."""
HANGS_S = 10.0
"""A write that takes longer is reported in the log."""
FINGERPRINTS_NS = 60_000_000_000
"""Minimum time between two writes of the fingerprints."""
JOURNAL, FINGERPRINTS = "journal", "fingerprints"


def _read(path: Path, most_bytes: int) -> bytes | None:
    """The content of a file; None if there is no file.

    JournalError if it cannot be read, is too large, or was put into a shared directory by another user.
    """
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise JournalError("not a regular file", kind="damaged")
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
            owner = os.fstat(descriptor).st_uid
            if owner not in (0, os.geteuid(), path.parent.stat().st_uid):
                raise JournalError(f"belongs to another user (uid {owner})", kind="unreadable")
            data = file.read(most_bytes + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalError(f"{error.strerror}", kind="unreadable") from None
    if len(data) > most_bytes:
        raise JournalError(f"larger than {most_bytes >> 20} MiB", kind="too_large")
    return data


class JournalFile:
    """A journal on disk, and the fingerprints beside it. A lock file prevents two exporters from writing them."""

    def __init__(self, path: str) -> None:
        self.path = resolve(path)
        self.fingerprints_path = self.path.with_name(f"{self.path.name}.fingerprints")
        self._lock: int | None = None

    def lock(self) -> None:
        """Acquire the lock; ConfigError if another exporter has it, OSError if the lock file cannot be opened."""
        if self._lock is not None:
            return
        lock = self._open_lock(self.path.with_name(f"{self.path.name}.lock"))
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

    def _open_lock(self, name: Path) -> int:
        """Open or create the lock file. It is private: any user that can open it can lock it.

        A lock file that root creates is given to the owner of the directory: root can import fingerprints before the
        first start of an exporter that runs as another user.
        """
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        directory = open_directory(name.parent)
        try:
            lock = os.open(name.name, flags | os.O_CREAT | os.O_EXCL, PRIVATE, dir_fd=directory)
        except FileExistsError:
            try:
                lock = os.open(name.name, flags | os.O_NONBLOCK, dir_fd=directory)
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise ConfigError(
                        f"--journal.path: {name} is a symbolic link", "delete the link, or choose another directory"
                    ) from None
                raise
            with suppress(OSError):
                os.fchmod(lock, PRIVATE)
        else:
            with suppress(OSError):
                give_to_owner(lock, directory)
        finally:
            os.close(directory)
        return lock

    def read(self, boot_id: str) -> State | None:
        """The state in the file; None if there is no file. JournalError if it cannot be used."""
        data = _read(self.path, journal.LARGEST_BYTES)
        if data is None:
            return None
        state = journal.decode(data)
        if not boot_id:
            raise JournalError("the boot id cannot be read", kind="boot")
        if state.boot_id != boot_id:
            raise JournalError("written in another boot", kind="boot")
        return state

    def write(self, state: State) -> int:
        """Replace the file atomically; its size in bytes."""
        return self._replace(self.path, journal.encode(state))

    def read_fingerprints(self) -> tuple[WorkloadState, ...] | None:
        """The workload fingerprints in the second file; None if there is no file. JournalError if it cannot be used."""
        data = _read(self.fingerprints_path, fingerprints.LARGEST_BYTES)
        return None if data is None else fingerprints.decode(data)

    def write_fingerprints(self, workloads: Sequence[WorkloadState]) -> int:
        """Replace the second file atomically; its size in bytes."""
        return self._replace(self.fingerprints_path, fingerprints.encode(workloads))

    def _replace(self, path: Path, data: bytes) -> int:
        try:
            self.lock()
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}", "choose a writable file", "unwritable") from None
        with replacing(path, private=True) as file:
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
        self._fingerprints_ns: int | None = None
        """Time of the last tick whose fingerprints were passed to the writer."""
        self._is_late = False
        """Whether the fingerprints were due, but the writer was busy."""
        self._written_revision = 0
        """Revision of the fingerprints in their file."""
        self._writing = JOURNAL
        """What the writer writes, or wrote last."""
        self._submitted_revision = 0
        """Revision of the fingerprints that the writer writes, or wrote last."""
        self._started_at = 0.0
        """When the writer started, on the monotonic clock."""
        self._closed = False
        with suppress(OSError):  # the first write reports it
            self._file.lock()
        self._resume()
        self._restore_fingerprints()
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

    def _restore_fingerprints(self) -> None:
        path = self._file.fingerprints_path
        try:
            workloads = self._file.read_fingerprints()
        except JournalError as error:
            log.warning("cannot restore fingerprints from %s: %s; fingerprints start empty", path, error)
            return
        if workloads:
            self._books.restore_fingerprints(fingerprints.unpack(workloads))
            log.info("fingerprints restored from %s, number of workloads: %d", path, len(workloads))

    def book(self, tick: Tick) -> Tick:
        """The booked tick; the journal is written if it is due, and then the fingerprints if they are due."""
        with self._guard:
            tick = self._books.book(tick)
            self._booked_ns = tick.time_ns
            self._collect(0.0)
            if self._is_late:  # the disk is slow; without this, the journal would always come first
                self._submit_fingerprints(0.0)
            if _is_due(tick.time_ns, self._submitted_ns, self._interval_ns):
                self._submit(WRITE_TIMEOUT_S)
            if _is_due(tick.time_ns, self._fingerprints_ns, FINGERPRINTS_NS):
                self._submit_fingerprints(0.0)
            return replace(tick, journal=self._health)

    def close(self) -> None:
        """Write the last tick and the fingerprints if they are not written yet; takes at most a second."""
        deadline = Deadline(2 * CLOSE_TIMEOUT_S)
        if not self._guard.acquire(timeout=CLOSE_TIMEOUT_S):
            return
        try:
            self._collect(min(CLOSE_TIMEOUT_S, deadline.remaining_s))
            if self._booked_ns != self._submitted_ns:
                self._submit(min(CLOSE_TIMEOUT_S, deadline.remaining_s))
            self._submit_fingerprints(deadline.remaining_s)
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
        self._submitted_ns = self._booked_ns
        self._start(JOURNAL, lambda: self._file.write(state), timeout_s)

    def _submit_fingerprints(self, timeout_s: float) -> None:
        """Pass the fingerprints to the writer, unless it is still busy or nothing was learned."""
        revision = self._books.fingerprint_revision
        if self._closed or revision == self._written_revision:
            return
        self._is_late = self._writer.busy
        if self._is_late:
            return
        snapshot = self._books.fingerprints()
        self._fingerprints_ns, self._submitted_revision = self._booked_ns, revision
        self._start(FINGERPRINTS, lambda: self._file.write_fingerprints(fingerprints.pack(snapshot)), timeout_s)

    def _start(self, write: str, job: Callable[[], int], timeout_s: float) -> None:
        self._writing, self._started_at = write, time.monotonic()
        self._writer.start(job)
        self._collect(timeout_s)

    def _collect(self, timeout_s: float) -> None:
        """Take the result of the last write if it is done."""
        if not self._writer.busy:
            return
        path = self._file.path if self._writing == JOURNAL else self._file.fingerprints_path
        reason = ""
        try:
            size_bytes = self._writer.result(timeout_s)
        except Exception as error:  # noqa: BLE001 - the tick is published anyway
            reason = str(error) or type(error).__name__
            if self._writing == JOURNAL:
                self._health = replace(self._health, failures=self._health.failures + 1)
        else:
            if size_bytes is not None:
                self._written(size_bytes)
            elif time.monotonic() - self._started_at < HANGS_S:
                return
            else:
                reason = f"writing {path} takes longer than {HANGS_S:.0f} s"
        verb = "is" if self._writing == JOURNAL else "are"
        self._state_log.change(
            self._writing,
            reason,
            f"{self._writing} {verb} not written: {reason}",
            f"{self._writing} {path} {verb} written again",
        )

    def _written(self, size_bytes: int) -> None:
        if self._writing == JOURNAL:
            self._health = replace(self._health, written_ns=self._submitted_ns, size_bytes=size_bytes)
        else:
            self._written_revision = self._submitted_revision


def _is_due(now_ns: int, last_ns: int | None, interval_ns: int) -> bool:
    """Whether the interval has passed, or the clock was set back."""
    return last_ns is None or not 0 <= now_ns - last_ns < interval_ns
