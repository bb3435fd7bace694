"""Being told to stop, by SIGTERM or SIGINT."""

from __future__ import annotations

import os
import select
import signal

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Waits for one of the signals, which from now on do nothing else.

    Over a pipe and not with an Event: of two signals at once the kernel may hand both to another thread, and the main
    one, asleep on a lock, would never run its handlers. A byte in a pipe wakes it whoever got the signal.
    """

    def __init__(self) -> None:
        self._pipe, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether a signal has come, at the latest after so long; for None, wait until one comes."""
        come, _, _ = select.select([self._pipe], [], [], timeout_s)
        if come:
            for number in SIGNALS:  # one that comes while Python ends would find its default, and kill
                signal.signal(number, signal.SIG_IGN)
        return bool(come)
