"""CUDA work of different kinds, each a process: `python workloads.py KIND SECONDS [DUTY]`.

`serve` answers bursts of requests, `train` runs matrix products with pauses for data, `decode` reads weights like a
language model that writes word after word, `copy` moves memory, `small` multiplies
small matrices, `hold` keeps a model loaded and does nothing.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable

import torch

GIB = 1 << 30


def _train() -> Callable[[float], None]:
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def step(_: float) -> None:
        for _ in range(40):
            a @ b
        torch.cuda.synchronize()
        time.sleep(0.02)  # waiting for the next batch

    return step


def _decode() -> Callable[[float], None]:
    weights = torch.randn(64, 8192, 8192, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(8192, 1, device="cuda", dtype=torch.bfloat16)

    def step(_: float) -> None:
        for layer in weights:
            layer @ x
        torch.cuda.synchronize()

    return step


def _serve() -> Callable[[float], None]:
    weights = torch.randn(16, 4096, 4096, device="cuda", dtype=torch.bfloat16)

    def step(t: float) -> None:
        batch = int(2 ** (4 + 3 * (1 + math.sin(t / 4))))
        x = torch.randn(4096, batch, device="cuda", dtype=torch.bfloat16)
        for layer in weights:
            x = layer @ x / 64
        torch.cuda.synchronize()
        time.sleep(0.01 + 0.02 * (1 - math.sin(t / 4)))

    return step


def _copy() -> Callable[[float], None]:
    a = torch.empty(2 * GIB, device="cuda", dtype=torch.uint8)
    b = torch.empty_like(a)

    def step(_: float) -> None:
        for _ in range(8):
            b.copy_(a)
        torch.cuda.synchronize()
        time.sleep(0.03)

    return step


def _small() -> Callable[[float], None]:
    a = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)

    def step(_: float) -> None:
        for _ in range(200):
            a @ a
        torch.cuda.synchronize()
        time.sleep(0.005)

    return step


def _hold() -> Callable[[float], None]:
    kept = torch.zeros(20 * GIB, device="cuda", dtype=torch.uint8)

    def step(_: float) -> None:
        time.sleep(0.2)
        assert kept.numel()  # noqa: S101 - keeps it alive

    return step


KINDS = {"train": _train, "decode": _decode, "serve": _serve, "copy": _copy, "small": _small, "hold": _hold}


def main() -> None:
    """Work until the time is up."""
    kind, seconds = sys.argv[1], float(sys.argv[2])
    step = KINDS[kind]()
    torch.cuda.synchronize()
    print("ready", flush=True)
    started = time.monotonic()
    while (now := time.monotonic() - started) < seconds:
        step(now)


if __name__ == "__main__":
    main()
