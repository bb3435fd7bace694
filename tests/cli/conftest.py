"""What a command changes in this process is put back."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _logging_and_signals_as_they_were() -> Iterator[None]:
    """Commands send the log to standard error, which after the test is another one, and take the signals."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    caught = [signal.getsignal(number) for number in numbers]
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in zip(numbers, caught, strict=True):
        signal.signal(number, handler)
    root.handlers[:] = handlers
    root.setLevel(level)
