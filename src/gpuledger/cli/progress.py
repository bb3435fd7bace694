"""A bar on a terminal for what takes longer than a second."""

from __future__ import annotations

import sys
import time
from typing import TextIO

PATIENCE_S = 1.0
WIDTH = 30


class Progress:
    """Draws on standard error, if that is a terminal, and wipes what it drew at the end."""

    def __init__(self, what: str, screen: TextIO | None = None) -> None:
        self._what, self._screen = what, sys.stderr if screen is None else screen
        self._began_s = time.monotonic()
        self._drawn = ""

    def close(self) -> None:
        """Wipe it."""
        if self._drawn:
            self._screen.write("\r\x1b[K")
            self._screen.flush()

    def show(self, done: float) -> None:
        """That a part of it is done, from 0 to 1."""
        if not self._screen.isatty() or time.monotonic() - self._began_s < PATIENCE_S:
            return
        full = round(WIDTH * min(1.0, max(0.0, done)))
        text = f"{self._what} [{'#' * full}{'.' * (WIDTH - full)}] {100 * done:3.0f} %"
        if text != self._drawn:
            self._drawn = text
            self._screen.write(f"\r{text}")
            self._screen.flush()
