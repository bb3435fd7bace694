"""A server of a small transformer with the token counters of vLLM; started by tokens.py.

    python tools/h200/tokenserver.py NAME ENGINE SECONDS

ENGINE is `wide` or `deep`, two transformers in plain PyTorch, or `sleep`, which only waits, for machines without a GPU.
As in real servers, a step of decoding is one CUDA graph, so that the GPU and not Python limits it.
Commands come as lines on standard input: `load`, then `mix`, `prefill`, `decode` or `wait`. Answers are lines of JSON
on standard output. The process ends with its standard input. `/metrics` has the counters, `/cycles` the time and the
tokens at the end of each cycle of `mix`: requests with short answers for SECONDS, then requests with long answers.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

PR_SET_NAME = 15
BATCH, PROMPT, CONTEXT = 16, 512, 1024
"""Requests in a batch, tokens of each prompt, and the longest context."""
SHORT_STEPS, LONG_STEPS = 8, 384
"""Output tokens of requests with short and with long answers."""
WORDS = 32_000
SHAPES = {"wide": (4096, 8, 32), "deep": (2048, 16, 16)}
"""Width, layers and heads."""


class Engine(Protocol):
    """A model with a key-value cache."""

    def prefill(self) -> None:
        """Process a batch of prompts; returns when the GPU is done."""

    def step(self) -> None:
        """Generate one token for each prompt of the batch; returns when the GPU is done."""


class SleepEngine:
    """Takes the time of a model, and nothing else."""

    def prefill(self) -> None:
        """Wait."""
        time.sleep(0.02)

    def step(self) -> None:
        """Wait."""
        time.sleep(0.0005)


class TorchEngine:
    """A decoder-only transformer with random weights."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        import torch

        self._torch, self._functional = torch, torch.nn.functional
        self._width, self._heads = width, heads

        def weights(*shape: int) -> Any:
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02

        self._embedding = weights(WORDS, width)
        self._layers = [
            (weights(3 * width, width), weights(width, width), weights(4 * width, width), weights(width, 4 * width))
            for _ in range(layers)
        ]
        shape = (BATCH, heads, CONTEXT, width // heads)
        self._cache = [
            tuple(torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)) for _ in range(layers)
        ]
        self._prompts = torch.randint(WORDS, (BATCH, PROMPT), device="cuda")
        self._last = self._prompts[:, -1:].clone()
        self._place = torch.full((1,), PROMPT, device="cuda")
        self._places = torch.arange(CONTEXT, device="cuda")
        self._position = PROMPT
        self._graph = self._captured()

    def prefill(self) -> None:
        """Process a batch of prompts."""
        with self._torch.no_grad():
            places = self._places[:PROMPT]
            self._last.copy_(self._forward(self._prompts, places, PROMPT, None))
            self._place.fill_(PROMPT)
        self._position = PROMPT
        self._torch.cuda.synchronize()

    def step(self) -> None:
        """Generate one token for each prompt; after the longest context, continue after the prompt."""
        if self._position >= CONTEXT:
            self._position = PROMPT
            self._place.fill_(PROMPT)
        self._graph.replay()
        self._position += 1
        self._torch.cuda.synchronize()

    def _captured(self) -> Any:
        """One step as a CUDA graph."""
        torch = self._torch
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.no_grad():
            with torch.cuda.stream(aside):
                for _ in range(3):
                    self._generate()
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._generate()
        return graph

    def _generate(self) -> None:
        mask = (self._places <= self._place).view(1, 1, 1, CONTEXT)
        self._last.copy_(self._forward(self._last, self._place, CONTEXT, mask))
        self._place.add_(1).clamp_(max=CONTEXT - 1)

    def _forward(self, tokens: Any, places: Any, end: int, mask: Any) -> Any:
        functional, width = self._functional, self._width
        x = functional.embedding(tokens, self._embedding)
        count = x.shape[1]
        for (qkv, out, up, down), (keys, values) in zip(self._layers, self._cache, strict=True):
            projected = functional.linear(functional.layer_norm(x, (width,)), qkv)
            shape = (BATCH, count, 3, self._heads, width // self._heads)
            query, key, value = projected.view(shape).permute(2, 0, 3, 1, 4)
            keys.index_copy_(2, places, key)
            values.index_copy_(2, places, value)
            attended = functional.scaled_dot_product_attention(
                query, keys[:, :, :end], values[:, :, :end], attn_mask=mask, is_causal=mask is None
            )
            x = x + functional.linear(attended.transpose(1, 2).reshape(BATCH, count, width), out)
            x = x + functional.linear(functional.gelu(functional.linear(functional.layer_norm(x, (width,)), up)), down)
        logits = functional.linear(functional.layer_norm(x[:, -1:], (width,)), self._embedding)
        return logits.argmax(-1)


@dataclass
class Server:
    """The work of the server, and its counters."""

    name: str
    kind: str
    part_s: float
    """Seconds of each part of a cycle, while the server is alone."""
    engine: Engine | None = None
    mode: str = "wait"
    prompt: int = 0
    output: int = 0
    cycles: list[list[float]] = field(default_factory=list)
    loads: threading.Event = field(default_factory=threading.Event)
    ended: bool = False

    def load(self) -> dict[str, Any]:
        """Create the model, and measure it to find the number of requests in a cycle."""
        began = time.time()
        self.engine = SleepEngine() if self.kind == "sleep" else TorchEngine(*SHAPES[self.kind])
        for warm in (True, False):
            prefills, steps = (2, 20) if warm else (5, 100)
            self.engine.prefill()
            start = time.perf_counter()
            for _ in range(prefills):
                self.engine.prefill()
            middle = time.perf_counter()
            for _ in range(steps):
                self.engine.step()
            prefill_s, step_s = (middle - start) / prefills, (time.perf_counter() - middle) / steps
        self.plan = [
            (steps, max(1, round(self.part_s / (prefill_s + steps * step_s)))) for steps in (SHORT_STEPS, LONG_STEPS)
        ]
        return {"loaded_s": time.time() - began, "prefill_s": prefill_s, "step_s": step_s, "plan": self.plan}

    def work(self) -> None:
        """Do what the last command says, until the end of standard input."""
        while not self.ended:
            mode = self.mode
            if mode == "prefill":
                self._prefill()
            elif mode == "decode":
                self._step()
            elif mode == "mix":
                self._cycle()
            else:
                time.sleep(0.02)

    def _prefill(self) -> None:
        assert self.engine is not None  # noqa: S101 - loaded before any work
        self.engine.prefill()
        self.prompt += BATCH * PROMPT

    def _step(self) -> None:
        assert self.engine is not None  # noqa: S101 - loaded before any work
        self.engine.step()
        self.output += BATCH

    def _cycle(self) -> None:
        for steps, requests in self.plan:
            for _ in range(requests):
                self._prefill()
                for _ in range(steps):
                    self._step()
                    if self.mode != "mix" or self.ended:
                        return
        self.cycles.append([time.time(), self.prompt, self.output])

    def metrics(self) -> str:
        """The counters as vLLM writes them."""
        labels = f'{{engine="0",model_name="{self.name}"}}'
        return (
            "# TYPE vllm:prompt_tokens_total counter\n"
            f"vllm:prompt_tokens_total{labels} {self.prompt}\n"
            "# TYPE vllm:generation_tokens_total counter\n"
            f"vllm:generation_tokens_total{labels} {self.output}\n"
        )


def serve(server: Server) -> int:
    """Serve /metrics and /cycles on a free port; returns it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cycles = self.path == "/cycles"
            body = (json.dumps(server.cycles) if cycles else server.metrics()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json" if cycles else "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write no log."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, daemon=True).start()
    return int(http.server_address[1])


def follow(server: Server) -> None:
    """Obey the commands on standard input until it ends."""
    for line in sys.stdin:
        if line.strip() == "load":
            server.loads.set()
        else:
            server.mode = line.strip()
    server.ended = True
    server.loads.set()


def main() -> None:
    """Serve until standard input ends."""
    name, kind, part_s = sys.argv[1:4]
    server = Server(name, kind, float(part_s))
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
    port = serve(server)
    print(json.dumps({"pid": os.getpid(), "port": port}), flush=True)
    threading.Thread(target=follow, args=(server,), daemon=True).start()
    if kind != "sleep":
        import torch  # noqa: F401 - before the model is needed; does not open the GPU
    server.loads.wait()
    if not server.ended:
        print(json.dumps(server.load()), flush=True)
        server.work()
    os._exit(0)


if __name__ == "__main__":
    main()
