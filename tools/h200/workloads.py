"""CUDA workloads of different kinds: `python workloads.py KIND SECONDS`.

`serve` answers bursts of requests, `train` runs matrix products with pauses for data, `decode` reads weights like a
language model that generates tokens, `copy` copies memory, `small` multiplies small matrices, and `hold` keeps a
model loaded without working.

More realistic kinds: `transformer` trains a model with an optimizer, `infer` answers requests of varying size with
it, `conv` and `attention` are the core operations of other models, `embed` looks up rows of a large table, `lstm` runs
many small kernels, `mlp` trains two layers in single precision, `montecarlo` draws random numbers, `sparse` multiplies
a sparse matrix, `stencil` sums the neighbours of each point of a grid, and `fft`, `sort`, `elementwise`, `softmax`,
`scatter` and `fp64` do what their names say. `prompt` processes prompts and generates tokens in turn. One step is one
unit of work and takes some ten milliseconds.
"""

from __future__ import annotations

import math
import random
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

nn, functional = torch.nn, torch.nn.functional
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


def _conv() -> Callable[[float], None]:
    layer = nn.Conv2d(256, 256, 3, padding=1, bias=False).cuda().half().to(memory_format=torch.channels_last)
    x = torch.randn(64, 256, 56, 56, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)

    def step(_: float) -> None:
        with torch.no_grad():
            for _ in range(16):
                functional.relu(layer(x))
        torch.cuda.synchronize()

    return step


def _attention() -> Callable[[float], None]:
    q, k, v = (torch.randn(8, 32, 4096, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))

    def step(_: float) -> None:
        for _ in range(3):
            functional.scaled_dot_product_attention(q, k, v)
        torch.cuda.synchronize()

    return step


def _fft() -> Callable[[float], None]:
    x = torch.randn(4096, 8192, device="cuda", dtype=torch.complex64)

    def step(_: float) -> None:
        for _ in range(20):
            torch.fft.fft(x)
        torch.cuda.synchronize()

    return step


def _sort() -> Callable[[float], None]:
    x = torch.randint(1 << 30, (1 << 25,), device="cuda", dtype=torch.int32)

    def step(_: float) -> None:
        for _ in range(2):
            torch.sort(x)
        torch.cuda.synchronize()

    return step


def _elementwise() -> Callable[[float], None]:
    x = torch.rand(1 << 27, device="cuda")

    def step(_: float) -> None:
        for _ in range(6):
            torch.sin(x)
            torch.exp(x)
            torch.add(x, 0.5)
        torch.cuda.synchronize()

    return step


def _embed() -> Callable[[float], None]:
    table = torch.randn(1 << 21, 512, device="cuda", dtype=torch.float16)
    rows = torch.randint(1 << 21, (8, 1 << 15, 16), device="cuda")

    def step(_: float) -> None:
        for bags in rows:
            functional.embedding_bag(bags, table, mode="sum")
        torch.cuda.synchronize()

    return step


def _fp64() -> Callable[[float], None]:
    a = torch.randn(2048, 2048, device="cuda", dtype=torch.float64)

    def step(_: float) -> None:
        for _ in range(8):
            a @ a
        torch.cuda.synchronize()

    return step


def _softmax() -> Callable[[float], None]:
    x = torch.randn(16384, 8192, device="cuda", dtype=torch.float16)

    def step(_: float) -> None:
        for _ in range(20):
            functional.layer_norm(torch.softmax(x, -1), (8192,))
        torch.cuda.synchronize()

    return step


def _scatter() -> Callable[[float], None]:
    x = torch.zeros(1 << 24, device="cuda")
    places = torch.randint(1 << 24, (1 << 24,), device="cuda")
    values = torch.rand(1 << 24, device="cuda")

    def step(_: float) -> None:
        for _ in range(10):
            x.index_add_(0, places, values)
        torch.cuda.synchronize()

    return step


def _lstm() -> Callable[[float], None]:
    model = nn.LSTM(1024, 1024, 2, batch_first=True).cuda().half()
    x = torch.randn(64, 100, 1024, device="cuda", dtype=torch.float16)

    def step(_: float) -> None:
        with torch.no_grad():
            model(x)
        torch.cuda.synchronize()

    return step


WORDS, WIDTH = 8192, 1024


def _model() -> Any:
    layer = nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), encoder, nn.Linear(WIDTH, WORDS)).cuda()


def _transformer() -> Callable[[float], None]:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    texts = torch.randint(WORDS, (64, 16, 257)).pin_memory()
    order = random.Random(1)  # noqa: S311 - the same in every run

    def step(_: float) -> None:
        text = texts[order.randrange(len(texts))].cuda(non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            told = model(text[:, :-1])
            loss = functional.cross_entropy(told.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step


def _infer() -> Callable[[float], None]:
    model = _model().eval().bfloat16()
    order = random.Random(1)  # noqa: S311 - the same in every run

    def step(_: float) -> None:
        text = torch.randint(WORDS, (order.choice((1, 2, 4, 8, 16, 32)), 128)).cuda()
        with torch.no_grad():
            model(text).argmax(-1).cpu()
        time.sleep(order.expovariate(1 / 0.002))  # until the next request

    return step


def _prompt() -> Callable[[float], None]:
    model = _model().eval().bfloat16()
    order = random.Random(2)  # noqa: S311 - the same in every run

    def step(_: float) -> None:
        with torch.no_grad():
            model(torch.randint(WORDS, (8, 512), device="cuda"))
            for _ in range(order.randrange(4, 12)):
                model(torch.randint(WORDS, (8, 1), device="cuda")).argmax(-1)
        torch.cuda.synchronize()

    return step


def _mlp() -> Callable[[float], None]:
    model = nn.Sequential(nn.Linear(2048, 8192), nn.ReLU(), nn.Linear(8192, 2048)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(2048, 2048, device="cuda")

    def step(_: float) -> None:
        for _ in range(4):
            optimizer.zero_grad(set_to_none=True)
            functional.mse_loss(model(x), x).backward()
            optimizer.step()
        torch.cuda.synchronize()

    return step


def _montecarlo() -> Callable[[float], None]:
    def step(_: float) -> None:
        for _ in range(10):
            x, y = (torch.rand(1 << 26, device="cuda") for _ in range(2))
            (x * x + y * y <= 1).sum()
        torch.cuda.synchronize()

    return step


def _sparse() -> Callable[[float], None]:
    size, filled = 1 << 17, 32
    columns = torch.randint(size, (size * filled,), device="cuda").view(size, filled).sort(1).values.flatten()
    rows = torch.arange(0, size * filled + 1, filled, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse tensors are in beta
        matrix = torch.sparse_csr_tensor(rows, columns, torch.rand(size * filled, device="cuda"), (size, size))
    x = torch.randn(size, 64, device="cuda")

    def step(_: float) -> None:
        for _ in range(10):
            matrix @ x
        torch.cuda.synchronize()

    return step


def _stencil() -> Callable[[float], None]:
    grid = torch.rand(512, 512, 512, device="cuda")
    kernel = torch.rand(1, 1, 3, 3, 3, device="cuda")

    def step(_: float) -> None:
        with torch.no_grad():
            for _ in range(2):
                functional.conv3d(grid[None, None], kernel, padding=1)
        torch.cuda.synchronize()

    return step


KINDS = {
    "train": _train, "decode": _decode, "serve": _serve, "copy": _copy, "small": _small, "hold": _hold,
    "conv": _conv, "attention": _attention, "fft": _fft, "sort": _sort, "elementwise": _elementwise, "embed": _embed,
    "transformer": _transformer, "infer": _infer, "fp64": _fp64, "softmax": _softmax, "scatter": _scatter,
    "lstm": _lstm, "prompt": _prompt, "mlp": _mlp, "montecarlo": _montecarlo, "sparse": _sparse, "stencil": _stencil,
}  # fmt: skip


def main() -> None:
    """Work for the given time."""
    kind, seconds = sys.argv[1], float(sys.argv[2])
    step = KINDS[kind]()
    torch.cuda.synchronize()
    print("ready", flush=True)
    started = time.monotonic()
    while (now := time.monotonic() - started) < seconds:
        step(now)


if __name__ == "__main__":
    main()
