"""`python -m bench.journal`: CPU time that the journal and the fingerprints add to a tick, and their sizes."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

from bench.bigtick import BigNode
from bench.table import table

from gpuledger.shares.fingerprint import Fingerprint, Fingerprints, Workload
from gpuledger.shares.units import ALL_UNITS, GPM, UNITS
from gpuledger.storage import fingerprints as stored
from gpuledger.storage.journal import decode, encode
from gpuledger.storage.journalfile import JournalFile

SIZES = (32, 256, 1024)
WORKLOADS = (30, 1000)
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
    print()
    print(
        table(
            ["fingerprints", "copy in the tick", "encode", "read again", "size"],
            [fingerprints(count) for count in WORKLOADS],
        )
    )


def fingerprints(workloads: int) -> list[str]:
    """Costs with this number of workloads."""
    random, learned = Random(1), Fingerprints()
    for number in range(workloads):
        labels: Workload = (
            ("gpu_model", "NVIDIA H200"), ("process_name", "python3"), ("program", f"{random.getrandbits(32):08x}"),
            ("container", "main"), ("image", f"registry.example.com/team/train-{number}:v1"), ("namespace", "ml"),
            ("workload_kind", "Deployment"), ("workload_name", f"train-{number}"),
        )  # fmt: skip
        seconds = random.uniform(10, 60)
        fingerprint = Fingerprint(
            alone_s=seconds,
            deviations=[random.random() for _ in ALL_UNITS],
            seconds=seconds,
            duty_s=seconds,
            duty2_s=seconds * random.random(),
        )
        program = GPM.deviations([random.random() for _ in UNITS], random.random(), 1.0)
        fingerprint.learn(1.0, program, seconds, is_alone=True)
        learned.restore([(labels, fingerprint)])
    snapshot, copy = measure(learned.snapshot)
    data, pack = measure(lambda: stored.encode(stored.pack(snapshot)))
    _, read = measure(lambda: stored.unpack(stored.decode(data)))
    return [f"{workloads} workloads", copy, pack, read, f"{len(data) / 1000:.1f} kB"]


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
