"""Log lines on standard error, as logfmt or JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import deque

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
NAMES = {logging.WARNING: "warn", logging.CRITICAL: "error"}

MOST_KEPT = 1000


class Line(logging.Formatter):
    """One line a record, whatever the message holds."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        level = NAMES.get(record.levelno, record.levelname.lower())
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        fields = {"time": when, "level": level, "source": record.name.removeprefix("gpuledger."), "msg": message}
        if self._form == "json":
            return json.dumps(fields)
        return " ".join(f"{key}={_quoted(value)}" for key, value in fields.items())


def _quoted(value: str) -> str:
    return value if value.isascii() and value.replace(".", "").replace("_", "").isalnum() else json.dumps(value)


def set_up(level: str, form: str) -> None:
    """Log from `level` on, in that form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Line(form))
    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)


class Kept(logging.Handler):
    """Keeps the last lines instead of writing them."""

    def __init__(self, level: str) -> None:
        super().__init__()
        self.setFormatter(Line("logfmt"))
        self.lines: deque[str] = deque(maxlen=MOST_KEPT)
        logging.basicConfig(level=LEVELS[level], handlers=[self], force=True)

    def emit(self, record: logging.LogRecord) -> None:
        """Called for each record."""
        self.lines.append(self.format(record))
