"""Standard output, progress on a terminal, and the signals that end a command."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from typing import TextIO

from gpuledger.errors import UsageError
from gpuledger.model.plaintext import escaped

PROGRESS_AFTER_S = 1.0
PROGRESS_WIDTH = 30
SIGNALS = (signal.SIGTERM, signal.SIGINT)
IGNORED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Others may send them to make a server reload; by default, they would end it."""


def write(data: bytes) -> None:
    """Write to standard output after everything printed so far. Raises UsageError, or BrokenPipeError."""
    if sys.stdout is None:  # closed before we started, as by `>&-`
        raise UsageError("standard output is closed", "redirect it to a file or a pipe")
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        # The rest of the buffer cannot be written; the interpreter must not try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise UsageError(f"cannot write to standard output: {error.strerror}", "redirect it elsewhere") from None


def write_line(text: str) -> None:
    """Write one line in UTF-8, without control characters."""
    write(f"{escaped(text)}\n".encode())


def fail(reason: str) -> int:
    """Print the reason to standard error; the exit code 1."""
    print(f"gpuledger: {escaped(reason)}", file=sys.stderr)
    return 1


def has_colour() -> bool:
    """Whether to colour standard output: as no-color.org specifies, and only on a terminal that is not dumb."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Progress:
    """A progress bar on standard error, if that is a terminal and the task takes longer than a second."""

    def __init__(self, task: str, screen: TextIO | None = None) -> None:
        self._task, self._screen = task, sys.stderr if screen is None else screen
        self._started_s = time.monotonic()
        self._drawn = ""

    def close(self) -> None:
        """Erase the bar."""
        if self._drawn:
            self._screen.write("\r\x1b[K")
            self._screen.flush()

    def show(self, done: float) -> None:
        """Draw the bar for this part of the task, from 0 to 1."""
        if not self._screen.isatty() or time.monotonic() - self._started_s < PROGRESS_AFTER_S:
            return
        full = round(PROGRESS_WIDTH * min(1.0, max(0.0, done)))
        text = f"{self._task} [{'#' * full}{'.' * (PROGRESS_WIDTH - full)}] {100 * done:3.0f} %"
        if text != self._drawn:
            self._drawn = text
            self._screen.write(f"\r{text}")
            self._screen.flush()


class StopSignal:
    """Waits for SIGTERM or SIGINT, which have no other effect any more. Signals that mean "reload" elsewhere have none.

    A pipe instead of an Event: the kernel may deliver two simultaneous signals to another thread, and the main thread,
    asleep on a lock, would never run the handlers. A byte in a pipe wakes it whichever thread got the signal.
    """

    def __init__(self) -> None:
        self._pipe, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether a signal arrived within this time; with None, wait until one arrives."""
        readable, _, _ = select.select([self._pipe], [], [], timeout_s)
        if readable:
            for number in SIGNALS:  # a signal during interpreter shutdown would find the default handler and kill
                signal.signal(number, signal.SIG_IGN)
        return bool(readable)
