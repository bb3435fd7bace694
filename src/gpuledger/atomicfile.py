"""Atomic writes: readers see the old file or the new one, never a part of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gpuledger.errors import UsageError


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A file that replaces `path` at the end of the block. If anything fails, `path` does not change."""
    target = Path(os.path.realpath(path))
    partial = target.parent / f".{target.name}.{os.getpid()}"
    try:
        if target.exists() and not target.is_file():  # root could replace /dev/null by a regular file
            raise UsageError(f"cannot write {path}: it exists and is not a regular file", "name another file")
        with partial.open("wb") as file:
            yield file
        partial.chmod(0o644)  # node_exporter and readers of a recording run as other users
        partial.replace(target)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "name a file that can be written") from None
    finally:
        with suppress(OSError):
            partial.unlink()
