"""Waiting for other processes and threads, and ports for servers of tests."""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class Process(Protocol):
    """A process that may have ended."""

    def poll(self) -> int | None:
        """The exit code; None while it runs."""


LISTENS = re.compile(r"listens on 127\.0\.0\.1:(\d+)")


def wait_until(true: Callable[[], object], timeout_s: float = 10, every_s: float = 0.02) -> None:
    """Poll a condition; TimeoutError if it does not become true."""
    end = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"not true after {timeout_s:g} s")
        time.sleep(every_s)


def free_port() -> int:
    """An unused port, below the ports that the kernel assigns to servers that ask for any."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def url_in_log(process: Process, log: Path, timeout_s: float = 30) -> str:
    """The URL of a server, once its log has it."""
    wait_until(lambda: process.poll() is not None or LISTENS.search(log.read_text()), timeout_s)
    found = LISTENS.search(log.read_text())
    assert found is not None, log.read_text()
    return f"http://127.0.0.1:{found[1]}"
