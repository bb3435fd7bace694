"""Standard output, whose disk may be full and whose reader may have left."""

from __future__ import annotations

import os
import sys

from gpuledger.errors import UsageError


def write(data: bytes) -> None:
    """Write it, and what was printed before, at once; BrokenPipeError when nobody reads it."""
    if sys.stdout is None:  # closed before we began, as by `>&-`
        raise UsageError("standard output is closed; send it elsewhere")
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        # What is left in the buffer can be written nowhere: let the interpreter not try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise UsageError(f"cannot write to standard output: {error.strerror}; send it elsewhere") from None


def line(text: str) -> None:
    """One line in UTF-8, whatever a cgroup or a container calls itself."""
    write(f"{printable(text)}\n".encode())


def printable(text: str) -> str:
    """The text with nothing in it that could command a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
