"""What the programs of `natural_programs.py` do on the GPU. Needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import natural_programs
import torch

nn, functional = torch.nn, torch.nn.functional
BF16 = torch.bfloat16


class Timed:
    """Runs work between two CUDA events and waits for it."""

    def __init__(self) -> None:
        self.event_s = 0.0
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run(self, work: Callable[[], Any]) -> None:
        """Work; the events take some microseconds."""
        self._begin.record()
        work()
        self._end.record()
        self._end.synchronize()
        self.event_s += self._begin.elapsed_time(self._end) / 1000


class Work:
    """Kinds of work by unit. Each is done twice while loading, so that libraries are loaded and kernels are chosen."""

    def __init__(self) -> None:
        self._timed = Timed()
        self._units = self.units()
        for unit, do in self._units.items():
            for _ in range(2):
                do(self.warm(unit))
        torch.cuda.synchronize()

    @property
    def event_s(self) -> float:
        """Seconds between the CUDA events around all work so far."""
        return self._timed.event_s

    def do(self, unit: str, size: int) -> None:
        """Do one piece of work and wait for it."""
        work = self._units[unit]
        self._timed.run(lambda: work(size))

    def units(self) -> Mapping[str, Callable[[int], Any]]:
        """Work by unit; its argument is its size."""
        raise NotImplementedError

    def warm(self, unit: str) -> int:
        """A size to begin with."""
        del unit
        return 16


class Layer(torch.nn.Module):  # type: ignore[misc]
    """A layer of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Any) -> Any:
        """Attention within the batch's sequences, then the two products."""
        batch, length, width = x.shape
        parts = self.query(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.silu(self.up(self.second(x))))

    def decode(self, x: Any, keys: Any, values: Any) -> Any:
        """One token of each sequence against cached keys and values."""
        batch, _, width = x.shape
        query = self.query(self.first(x)).view(batch, 1, 3, self.heads, width // self.heads)[:, :, 0].transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(query, keys[:batch], values[:batch])
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, 1, width))
        return x + self.down(functional.silu(self.up(self.second(x))))


class Batching(Work):
    """A language model with CUDA graphs for decoding, as in vLLM."""

    WIDTH, HEADS, LAYERS, CONTEXT = 4096, 32, 16, 1024

    def units(self) -> Mapping[str, Callable[[int], Any]]:
        """`prefill` of that many tokens, `decode` of that many rows."""
        with torch.device("cuda"), torch.inference_mode():
            self._layers = nn.ModuleList(Layer(self.WIDTH, self.HEADS) for _ in range(self.LAYERS)).to(BF16)
            cached = natural_programs.Batching.SIZES[-1], self.HEADS, self.CONTEXT, self.WIDTH // self.HEADS
            self._keys, self._values = (torch.randn(cached, dtype=BF16) for _ in range(2))
            self._tokens = torch.randn(1, natural_programs.Batching.CHUNK, self.WIDTH, dtype=BF16)
        self._inputs = {
            rows: torch.randn(rows, 1, self.WIDTH, device="cuda", dtype=BF16)
            for rows in natural_programs.Batching.SIZES
        }
        self._graphs = {rows: self._graph(x) for rows, x in self._inputs.items()}
        return {"prefill": self._prefill, "decode": lambda rows: self._graphs[rows].replay()}

    def warm(self, unit: str) -> int:
        """The largest size."""
        return {"prefill": natural_programs.Batching.CHUNK, "decode": natural_programs.Batching.SIZES[-1]}[unit]

    def _graph(self, x: Any) -> Any:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode(), torch.cuda.stream(side):
            self._decode(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(graph):
            self._decode(x)
        return graph

    def _decode(self, x: Any) -> Any:
        for layer in self._layers:
            x = layer.decode(x, self._keys, self._values)
        return x

    def _prefill(self, tokens: int) -> None:
        with torch.inference_mode():
            x = self._tokens[:, :tokens]
            for layer in self._layers:
                x = layer(x)


class Finetune(Work):
    """A smaller language model with its optimizer."""

    def units(self) -> Mapping[str, Callable[[int], Any]]:
        """`micro` batches, steps of the `optimizer`, batches to `evaluate`, and copies of all weights to `save`."""
        width, self._ids = 2048, torch.randint(0, 32000, (4, 1024), device="cuda")
        with torch.device("cuda"):
            self._words = nn.Embedding(32000, width).to(BF16)
            self._layers = nn.Sequential(*(Layer(width, 16) for _ in range(12))).to(BF16)
            self._head = nn.Linear(width, 32000, bias=False).to(BF16)
        self._weights = [weight for part in (self._words, self._layers, self._head) for weight in part.parameters()]
        self._optimizer = torch.optim.AdamW(self._weights, lr=1e-5, fused=True)
        return {"micro": self._micro, "optimizer": self._step, "evaluate": self._evaluate, "save": self._save}

    def _loss(self) -> Any:
        found = self._head(self._layers(self._words(self._ids)))
        return functional.cross_entropy(found.flatten(0, 1).float(), self._ids.flatten())

    def _micro(self, _: int) -> None:
        self._loss().backward()

    def _step(self, _: int) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _evaluate(self, _: int) -> None:
        with torch.inference_mode():
            self._loss()

    def _save(self, _: int) -> None:
        for weight in self._weights:
            weight.detach().cpu()


class Video(Work):
    """Frames from the host, colours, scaling, noise, and a detector."""

    HEIGHT, WIDTH, MOST = 1080, 1920, natural_programs.Video.FRAMES

    def units(self) -> Mapping[str, Callable[[int], Any]]:
        """A `batch` of that many frames, and a detector on it."""
        self._host = torch.randint(0, 255, (self.MOST, 3, self.HEIGHT, self.WIDTH), dtype=torch.uint8).pin_memory()
        self._colours = torch.randn(3, 3, device="cuda", dtype=torch.float16)
        self._before = torch.zeros(self.MOST, 3, 640, 640, device="cuda", dtype=torch.float16)
        widths = (3, 64, 128, 256, 512)
        parts = [
            part
            for before, after in pairwise(widths)
            for part in (nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.SiLU())
        ]
        self._detector = nn.Sequential(*parts).cuda().half().eval()
        return {"batch": self._batch, "detect": self._detect}

    def _batch(self, frames: int) -> None:
        raw = self._host[:frames].to("cuda", non_blocking=True).half() / 255
        rgb = torch.einsum("ij,njhw->nihw", self._colours, raw)
        small = functional.interpolate(rgb, (640, 640), mode="bilinear")
        self._before[:frames].lerp_(small, 0.7)

    def _detect(self, frames: int) -> None:
        with torch.inference_mode():
            self._detector(self._before[:frames])


class Reinforcement(Work):
    """A small network that acts and learns."""

    def units(self) -> Mapping[str, Callable[[int], Any]]:
        """`act` for a batch of environments, `update` on a minibatch."""
        sizes = (128, 512, 512, 16)
        self._net = nn.Sequential(*(part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.Tanh()))).cuda()
        self._optimizer = torch.optim.Adam(self._net.parameters())
        self._states = torch.randn(512, 128)
        self._batch = torch.randn(8192, 128, device="cuda")
        return {"act": self._act, "update": self._update}

    def _act(self, _: int) -> None:
        with torch.inference_mode():
            self._net(self._states.cuda()).cpu()

    def _update(self, _: int) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._net(self._batch).square().mean().backward()
        self._optimizer.step()


class Frames(Work):
    """Tables of some 30 million rows."""

    ROWS, KEYS = 1 << 25, 1 << 16

    def units(self) -> Mapping[str, Callable[[int], Any]]:
        """`load` from the host, `sort` by a column, `join` with another table, `group` by a key."""
        self._host = torch.randn(self.ROWS, dtype=torch.float32).pin_memory()
        self._values = self._host.cuda()
        self._keys = torch.randint(0, self.KEYS, (self.ROWS,), device="cuda")
        self._other = torch.sort(torch.randint(0, 1 << 30, (1 << 24,), device="cuda")).values
        self._wanted = torch.randint(0, 1 << 30, (self.ROWS,), device="cuda")
        return {"load": self._load, "sort": self._sort, "join": self._join, "group": self._group}

    def _load(self, _: int) -> None:
        self._values.copy_(self._host, non_blocking=True)

    def _sort(self, _: int) -> None:
        torch.sort(self._values)

    def _join(self, _: int) -> None:
        places = torch.searchsorted(self._other, self._wanted).clamp_(max=self._other.numel() - 1)
        (self._other[places] == self._wanted).sum()

    def _group(self, _: int) -> None:
        sums = torch.zeros(self.KEYS, device="cuda")
        sums.index_add_(0, self._keys, self._values)
        torch.bincount(self._keys, minlength=self.KEYS)


KINDS: Mapping[str, type[Work]] = {
    "batching": Batching, "finetune": Finetune, "video": Video, "rl": Reinforcement, "frames": Frames,
}  # fmt: skip
