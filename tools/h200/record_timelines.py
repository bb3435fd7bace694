"""On a machine with a GPU: record processes that arrive, pause, leave and return, with the ground truth of their work.

    python tools/h200/record_timelines.py FOLDER [--only NAME,...] [--list]

The format is that of tests/data/h200/README.md, with activity every 0.2 s and the clock. Needs PyTorch, pynvml
and the PID namespace of the host.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import placed
import pynvml
import record_shared
import workloads  # imports PyTorch once; processes are forked before any of them uses the GPU

PERIOD_S = 0.1
LEAD_S, TAIL_S = 6.0, 2.0
"""Seconds from the first row to time 0, and from the end of all work to the last row."""
EARLY_S = 5.0
"""How long before its work a process starts; it loads, warms up and waits."""
STAY_S = 0.5
"""How long a process stays after its work."""


@dataclass(frozen=True, slots=True)
class Play:
    """A process: kind of work and the spans of time in which it works."""

    kind: str
    spans: tuple[tuple[float, float], ...]


def play(kind: str, *times: float) -> Play:
    """`play("conv", 0, 20, 30, 40)` works from 0 to 20 s and from 30 to 40 s."""
    return Play(kind, tuple(zip(times[::2], times[1::2], strict=True)))


TIMELINES: dict[str, tuple[Play, ...]] = {
    "tl-conv-transformer": (play("conv", 0, 44), play("transformer", 14, 58)),
    "tl-sort-attention": (play("sort", 0, 30, 42, 58), play("attention", 0, 58)),
    "tl-elementwise-infer-embed": (play("elementwise", 0, 58), play("infer", 12, 58), play("embed", 24, 46)),
    "tl-fft-conv30": (play("fft", 0, 50), play("conv@0.3", 10, 58)),
    "tl-transformer-infer-decode": (play("transformer", 0, 40), play("infer", 0, 58), play("decode", 28, 50)),
    "tl-return": (play("attention", 0, 22), play("sort", 10, 44), play("attention", 28, 58), play("small", 44, 58)),
    "tl-three-at-once": (play("conv", 0, 45), play("sort", 0, 45), play("embed", 0, 58)),
    "tl-fp64-softmax": (play("softmax", 0, 12, 20, 58), play("fp64", 8, 50)),
    "tl-lstm-scatter": (play("lstm", 0, 58), play("scatter", 10, 46)),
    "tl-prompt-conv40-embed": (play("prompt", 0, 58), play("conv@0.4", 12, 48), play("embed", 24, 40)),
    "tl-scatter-attention50": (play("scatter", 0, 58), play("attention@0.5", 0, 44)),
    "tl-four": (play("softmax", 0, 58), play("transformer", 10, 58), play("fft", 20, 50), play("lstm", 30, 44)),
    "tl-decode-transformer": (play("decode", 0, 46), play("transformer", 12, 58)),
    "tl-softmax-infer": (play("softmax", 0, 42), play("infer", 10, 58)),
    "tl-lstm-conv-prompt": (play("lstm", 0, 44), play("conv", 12, 36), play("prompt", 24, 58)),
    "tl-train-embed30": (play("train", 0, 48), play("embed@0.3", 12, 58)),
    "tl-fp64-elementwise": (play("fp64", 0, 20, 32, 46), play("elementwise", 10, 58)),
    "tl-attention-scatter-decode": (play("attention", 0, 36), play("scatter", 10, 58), play("decode", 22, 48)),
    "tl-copy-lstm": (play("copy", 0, 40), play("lstm", 12, 58)),
    "tl-embed-transformer-sort": (play("embed", 0, 46), play("transformer", 12, 58), play("sort", 22, 36)),
    "tl-elementwise-attention40": (play("elementwise", 0, 48), play("attention@0.4", 12, 58)),
    "tl-prompt-softmax": (play("prompt", 0, 44), play("softmax", 14, 58)),
    "tl-mlp-stencil": (play("mlp", 0, 44), play("stencil", 12, 58)),
    "tl-prompt-mlp40": (play("prompt", 0, 48), play("mlp@0.4", 12, 58)),
    "tl-stencil-attention": (play("stencil", 0, 20, 30, 46), play("attention", 10, 58)),
    "tl-montecarlo-transformer": (play("montecarlo", 0, 46), play("transformer", 12, 58)),
    "tl-sparse-infer-copy": (play("sparse", 0, 40), play("infer", 12, 58), play("copy", 24, 46)),
    "tl-mlp-sparse": (play("mlp", 0, 40), play("sparse", 0, 58)),
    "tl-infer-mlp": (play("infer", 0, 40), play("mlp", 10, 50)),
    "tl-decode-montecarlo30": (play("decode", 0, 40), play("montecarlo@0.3", 10, 50)),
    "tl-lstm-stencil-conv": (play("lstm", 0, 34), play("stencil", 10, 50), play("conv", 20, 44)),
    "tl-sparse-fp64": (play("sparse", 0, 38), play("fp64", 12, 50)),
    "tl-prompt-prompt": (play("prompt", 0, 40), play("prompt", 12, 58), play("hold", 0, 58)),
    "mps-tl-small-attention": (play("small", 0, 24), play("attention", 10, 34)),
    "mps-tl-stencil-sparse": (play("stencil", 0, 26), play("sparse", 10, 38)),
    "mps-tl-infer-embed-fft30": (play("infer", 0, 34), play("embed", 10, 44), play("fft@0.3", 20, 44)),
}


def work(pipe: Connection, asked: Play, start: float, environment: dict[str, str]) -> None:
    """Process body: load, warm up, wait, work, send the log, leave."""
    os.environ.update(environment)
    kind, _, duty = asked.kind.partition("@")
    step = workloads.KINDS[kind]()
    for _ in range(3):
        step(0.0)
    log: list[list[float]] = []
    done = 0
    for begin, end in asked.spans:
        time.sleep(max(0.0, start + begin - time.time()))
        span = record_shared.worked(step, start + end, float(duty or 1), 0.0, counts=kind != "hold")
        log += [[at, units + done] for at, units in span]
        done = int(log[-1][1])
    time.sleep(STAY_S)
    pipe.send({"kind": asked.kind, "pid": os.getpid(), "log": log})
    os._exit(0)


class Reader(record_shared.Reader):
    """Reads the activity every 0.2 s."""

    def _has_activity(self) -> bool:
        return self._rows % 2 == 0


def record(reader: Reader, name: str, plays: tuple[Play, ...], environment: dict[str, str]) -> dict[str, Any]:
    """Record one timeline."""
    forks = multiprocessing.get_context("fork")
    reader.begin()
    first = time.time()
    start = first + LEAD_S
    end = max(stop for one in plays for _, stop in one.spans)
    waiting = sorted(plays, key=lambda one: one.spans[0][0])
    running: list[tuple[Any, Connection]] = []
    rows: list[dict[str, Any]] = []
    truth: list[dict[str, Any]] = []
    try:
        while time.time() < start + end + TAIL_S:
            while waiting and time.time() >= start + waiting[0].spans[0][0] - EARLY_S:
                ours, theirs = forks.Pipe()
                process = forks.Process(target=work, args=(theirs, waiting.pop(0), start, environment), daemon=True)
                process.start()
                theirs.close()
                running.append((process, ours))
            rows.append(reader.row())
            time.sleep(max(0.0, first + len(rows) * PERIOD_S - time.time()))
        truth = [pipe.recv() for _, pipe in running]
    finally:
        for process, _ in running:
            process.kill()
            process.join()
    listed = {pid for row in rows for pid, _ in row["procs"]}
    if missing := {line["pid"] for line in truth} - listed:
        raise RuntimeError(f"the driver does not list {missing}: run in its PID namespace")
    print(f"  {len(rows)} rows", flush=True)
    return {"name": name, "start": start, "dur": end, "truth": truth, "rows": rows}


def main() -> int:
    """Record all timelines or the selected ones."""
    parser = argparse.ArgumentParser(description="record processes that come and go")
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--only", default="", help="comma-separated names")
    parser.add_argument("--list", action="store_true", help="print all names")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(TIMELINES)
    if arguments.list or arguments.folder is None:
        print(*names, sep="\n")
        return 0
    arguments.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    reader = Reader()
    for name in names:
        print(f"{name} ...", flush=True)
        try:
            with ExitStack() as stack:
                environment: dict[str, str] = {}
                if name.startswith("mps-"):
                    environment = stack.enter_context(placed.mps(Path(tempfile.mkdtemp())))
                recording = record(reader, name, TIMELINES[name], environment)
        except (EOFError, RuntimeError, pynvml.NVMLError) as error:
            print(f"  failed: {error!r}", flush=True)
            failed += 1
            continue
        text = json.dumps(recording, separators=(",", ":")).encode()
        (arguments.folder / f"{name}.json.gz").write_bytes(gzip.compress(text, 9, mtime=0))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
