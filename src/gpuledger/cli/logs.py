"""Log lines on standard error, as logfmt or JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import deque

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
LEVEL_NAMES = {logging.WARNING: "warn", logging.CRITICAL: "error"}
CAPTURED_LINES = 1000


class LineFormatter(logging.Formatter):
    """One line per record, whatever the message contains."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self._as_json = style == "json"

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        timestamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        level = LEVEL_NAMES.get(record.levelno, record.levelname.lower())
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        fields = {"time": timestamp, "level": level, "source": record.name.removeprefix("gpuledger."), "msg": message}
        if self._as_json:
            return json.dumps(fields)
        return " ".join(f"{key}={_quote(value)}" for key, value in fields.items())


def _quote(value: str) -> str:
    return value if value.isascii() and value.replace(".", "").replace("_", "").isalnum() else json.dumps(value)


def set_up(level: str, style: str) -> None:
    """Log to standard error from this level on, as `logfmt` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(style))
    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)


class CapturingHandler(logging.Handler):
    """Stores the last lines in memory instead of writing them."""

    def __init__(self, level: str) -> None:
        super().__init__()
        self.setFormatter(LineFormatter("logfmt"))
        self.lines: deque[str] = deque(maxlen=CAPTURED_LINES)
        logging.basicConfig(level=LEVELS[level], handlers=[self], force=True)

    def emit(self, record: logging.LogRecord) -> None:
        """Store the line."""
        self.lines.append(self.format(record))
