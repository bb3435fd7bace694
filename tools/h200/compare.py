"""On a machine with a GPU: compare the readings of gpuledger with those of nvidia-smi.

Run it while a process works on the GPU:  python tools/h200/compare.py [ROUNDS]
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from gpuledger.driver.source import NvmlSource
from gpuledger.model import Reading

Row = tuple[str, str, Callable[[Reading], Any], float]


def mib(size_bytes: int | None) -> float:
    """Memory in the unit of nvidia-smi."""
    return (size_bytes or 0) / 2**20


def watts(power_mw: int | None) -> float:
    """Power in the unit of nvidia-smi."""
    return (power_mw or 0) / 1000


# Name in nvidia-smi, name in gpuledger, getter for a Reading, and tolerance, because they are read at different times.
ROWS: tuple[Row, ...] = (
    ("memory.total", "memory_total_bytes", lambda r: mib(r.memory_total_bytes), 1.0),
    ("memory.used", "memory_used_bytes", lambda r: mib(r.memory_used_bytes), 1.0),
    ("memory.free", "memory_free_bytes", lambda r: mib(r.memory_free_bytes), 1.0),
    ("memory.reserved", "memory_reserved_bytes", lambda r: mib(r.memory_reserved_bytes), 1.0),
    ("power.draw.average", "power_average_mw", lambda r: watts(r.power_average_mw), 20.0),
    ("power.draw.instant", "power_mw", lambda r: watts(r.power_mw), 40.0),
    ("enforced.power.limit", "power_limit_mw", lambda r: watts(r.power_limit_mw), 0.01),
    ("clocks.sm", "clocks_mhz sm", lambda r: dict(r.clocks_mhz)["sm"], 60.0),
    ("clocks.mem", "clocks_mhz memory", lambda r: dict(r.clocks_mhz)["memory"], 1.0),
    ("clocks.max.sm", "max_clocks_mhz sm", lambda r: dict(r.max_clocks_mhz)["sm"], 0.0),
    ("utilization.gpu", "utilization_pct", lambda r: r.utilization_pct, 15.0),
    ("utilization.memory", "memory_utilization_pct", lambda r: r.memory_utilization_pct, 15.0),
    ("temperature.gpu", "temperatures_c gpu", lambda r: dict(r.temperatures_c)["gpu"], 2.0),
    ("temperature.memory", "temperatures_c memory", lambda r: dict(r.temperatures_c)["memory"], 2.0),
    ("pcie.link.gen.current", "pcie_generation", lambda r: r.pcie_generation, 0.0),
    ("pcie.link.width.current", "pcie_width", lambda r: r.pcie_width, 0.0),
    ("ecc.errors.corrected.aggregate.total", "ecc_errors", lambda r: dict(r.ecc_errors)["corrected"], 0.0),
)


def main() -> int:
    """Returns 1 if a difference exceeds its tolerance."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    source = NvmlSource()
    source.read()
    wrong = 0
    query = ",".join(row[0] for row in ROWS)
    for _ in range(rounds):
        time.sleep(1)
        reading = source.read().readings[0]
        told = subprocess.run(
            ["nvidia-smi", "-i", "0", f"--query-gpu={query}", "--format=csv,noheader,nounits"],  # noqa: S607
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        print(f"{'nvidia-smi':40} {'gpuledger':28} {'smi':>12} {'ours':>12}")
        for (theirs, ours, read, slack), text in zip(ROWS, told.split(", "), strict=True):
            value = float(read(reading))
            try:
                apart = abs(value - float(text))
            except ValueError:
                print(f"{theirs:40} {ours:28} {text:>12} {value:12.2f}  not comparable")
                continue
            mark = "" if apart <= slack else f"  APART by {apart:.2f}"
            wrong += bool(mark)
            print(f"{theirs:40} {ours:28} {float(text):12.2f} {value:12.2f}{mark}")
        apps = subprocess.run(
            ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],  # noqa: S607
            capture_output=True, text=True, check=True,
        ).stdout.split("\n")  # fmt: skip
        theirs_by_pid = {int(line.split(", ")[0]): int(line.split(", ")[1]) for line in apps if line}
        ours_by_pid = {r.pid: (r.memory_bytes or 0) >> 20 for r in reading.residents or ()}
        wrong += theirs_by_pid != ours_by_pid
        print("processes", "same" if theirs_by_pid == ours_by_pid else f"APART: {theirs_by_pid} {ours_by_pid}")
        print("samples", reading.samples, "\nactivity", reading.activity)
        print(f"in the driver {(reading.driver_ns or 0) / 1e6} ms")
    source.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
