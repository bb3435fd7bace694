"""On a machine with a GPU: compare the throughput of a job with and without the exporter.

    python tools/h200/overhead.py [PAIRS] [SECONDS] [big|vector...]

One process works all the time and logs its progress. The exporter, with one tick per second, is continued and stopped
(SIGCONT, SIGSTOP) in the order on-off-off-on, so that drift cancels out. The work of each turn is compared with that
of its pair.
"""

from __future__ import annotations

import os
import select
import signal
import statistics
import subprocess
import sys
import time

PORT = 9480
EDGE_S = 0.3
"""Seconds to ignore at the start of a turn, because a tick may still run."""


def rate(log: list[tuple[float, float]], begin: float, end: float) -> float:
    """Units per second, from the first log entry after `begin` to the last one before `end`."""
    inside = [note for note in log if begin <= note[0] <= end]
    (first, done_first), (last, done_last) = inside[0], inside[-1]
    return (done_last - done_first) / (last - first)


def compare(kind: str, pairs: int, seconds: float) -> None:
    """Run all turns with one kind of work and print the result."""
    work = subprocess.Popen([sys.executable, __file__, "work", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    words = [sys.executable, "-m", "gpuledger", "serve", f"--web.listen-address=127.0.0.1:{PORT}", "--environment=none"]
    server = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    time.sleep(4)
    turns: list[tuple[bool, float, float]] = []
    try:
        for pair in range(pairs):
            for on in (True, False) if pair % 2 == 0 else (False, True):
                os.kill(server.pid, signal.SIGCONT if on else signal.SIGSTOP)
                begin = time.time()
                time.sleep(seconds)
                turns.append((on, begin + EDGE_S, time.time()))
    finally:
        os.kill(server.pid, signal.SIGCONT)
        server.kill()
        server.wait()
        out, _ = work.communicate(b"enough\n", timeout=30)
    notes = [(float(t), float(n)) for t, n in (line.split() for line in out.decode().splitlines())]
    rates = [(on, rate(notes, begin, end)) for on, begin, end in turns]
    ratios = []
    for first, second in zip(rates[::2], rates[1::2], strict=True):
        with_it, without = (first, second) if first[0] else (second, first)
        ratios.append(with_it[1] / without[1])
    mean, spread = statistics.mean(ratios), statistics.stdev(ratios)
    print(
        f"{kind}: with over without {mean:.5f}, standard error {spread / len(ratios) ** 0.5:.5f}, "
        f"of {len(ratios)} pairs from {min(ratios):.5f} to {max(ratios):.5f}, median {statistics.median(ratios):.5f}",
        flush=True,
    )


def work(kind: str) -> None:
    """Multiply matrices until a line arrives on standard input, then print the log of progress."""
    import torch

    big = kind == "big"
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 8192 if big else 1, device="cuda", dtype=torch.bfloat16)
    notes: list[tuple[float, int]] = []
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(5 if big else 200):
            a @ b
        torch.cuda.synchronize()
        notes.append((time.time(), len(notes) + 1))
    print("\n".join(f"{t:.6f} {n}" for t, n in notes))


def main() -> None:
    """Measure work that is limited by power, and work that is limited by memory."""
    if sys.argv[1:2] == ["work"]:
        work(sys.argv[2])
        return
    pairs, seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 12, float(sys.argv[2]) if len(sys.argv) > 2 else 4.0
    for kind in sys.argv[3:] or ("big", "vector"):
        compare(kind, pairs, seconds)


if __name__ == "__main__":
    main()
