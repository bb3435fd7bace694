"""Writing a file so that readers see the old one or the new one, never half of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gpuledger.errors import UsageError


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the name `path` at the end of the block. If anything fails, nothing changes."""
    target = Path(os.path.realpath(path))
    partial = target.parent / f".{target.name}.{os.getpid()}"
    try:
        if target.exists() and not target.is_file():  # a rename by root would put a plain file in place of /dev/null
            raise UsageError(f"cannot write {path}: it is there and is no regular file; name another one")
        with partial.open("wb") as file:
            yield file
        partial.chmod(0o644)  # node_exporter, and whoever looks at a recording, runs as another user
        partial.replace(target)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; name a file that can be written") from None
    finally:
        with suppress(OSError):
            partial.unlink()
