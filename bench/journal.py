"""`python -m bench.journal`: CPU time that the journal adds to a tick, and its size."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench.bigtick import BigNode
from bench.table import table

from gpuledger.books.journal import decode, encode
from gpuledger.journalfile import JournalFile

SIZES = (32, 256, 1024)
REPEATS = 30
T = TypeVar("T")


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for processes in SIZES:
            node = BigNode(processes)
            for _ in range(3):
                node.tick()
            books = node._books
            state, keep = measure(partial(books.state, "boot", 1))
            data, pack = measure(partial(encode, state))
            file = JournalFile(str(Path(folder) / "journal"))
            _, write = measure(partial(file.write, state))
            _, read = measure(partial(decode, data))
            file.close()
            rows.append([f"8 GPUs, {processes} processes", keep, pack, write, read, f"{len(data) / 1000:.1f} kB"])
    print(table(["node", "keep", "encode", "encode and write", "read again", "size"], rows))


def measure(action: Callable[[], T]) -> tuple[T, str]:
    """Result of a call, and its median CPU time."""
    took = []
    for _ in range(REPEATS):
        began = time.process_time()
        result = action()
        took.append(time.process_time() - began)
    return result, f"{statistics.median(took) * 1000:.2f} ms"


if __name__ == "__main__":
    main()
