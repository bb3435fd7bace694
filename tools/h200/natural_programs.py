"""A GPU program as people run it, with its own rhythm: `python natural_programs.py KIND START SECONDS OUT [--steady]`.

- `batching` serves a language model as vLLM does: requests come when they come, prompts are processed in chunks
  between steps of decoding, and all running requests are decoded together.
- `finetune` trains with accumulated gradients, waits for its loader, evaluates and saves checkpoints.
- `video` processes the frames of live streams as they come, and looks for objects in every second batch.
- `rl` alternates between simulation on the CPU with a small network, and updates of the network.
- `frames` loads, sorts, joins and groups tables for a person who thinks in between.

The process loads, waits for START (Unix time), works for SECONDS, and writes to OUT its kind, its pid, when it was
ready and due, and a log of cumulative counts of each unit of work. `event_s` is the time between the CUDA events
around the work. It is the time on the compute engine while the process is alone; next to others it contains their
time slices. With `--steady` the program does not rest, to measure the energy of each unit alone.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

PERIOD_S = 0.1
"""Least time between two entries of a log."""
NAP_S = 0.05
EVENTS = "event_s"
NAME = b"python3"
PR_SET_NAME = 15


class Clock(Protocol):
    """Unix time, and a way to let it pass."""

    def time(self) -> float:
        """Seconds since 1970."""

    def sleep(self, seconds: float, /) -> None:
        """Return later."""


class Work(Protocol):
    """What a program does on the GPU, in `natural_work.py`."""

    @property
    def event_s(self) -> float:
        """Seconds between the CUDA events around all work so far."""

    def do(self, unit: str, size: int) -> None:
        """Do one piece of work and wait for it. The meaning of its size depends on the unit."""


@dataclass
class Log:
    """Cumulative counts of units of work, at most ten entries per second."""

    clock: Clock
    counts: dict[str, float]
    entries: list[tuple[float, dict[str, float]]] = field(default_factory=list)

    def add(self, event_s: float, **counts: float) -> None:
        """Count work that is done."""
        for unit, count in counts.items():
            self.counts[unit] += count
        self.counts[EVENTS] = event_s
        if not self.entries or self.clock.time() - self.entries[-1][0] >= PERIOD_S:
            self.write()

    def write(self) -> None:
        """Add an entry; at the begin and at the end of the work and of each rest."""
        self.entries.append((self.clock.time(), dict(self.counts)))


class Program(ABC):
    """A program with its own rhythm. A step ends soon after the end of the program."""

    UNITS: tuple[str, ...]

    def __init__(self, work: Work, clock: Clock, chance: random.Random, end_s: float, *, steady: bool = False) -> None:
        self._work, self._clock, self._chance = work, clock, chance
        self._end_s, self._steady = end_s, steady
        self.log = Log(clock, dict.fromkeys((*self.UNITS, EVENTS), 0.0))

    @abstractmethod
    def step(self) -> None:
        """Work, and rest if that is due."""

    def run(self) -> None:
        """Work until the end."""
        self.log.write()
        while not self.is_over():
            self.step()
        self.log.write()

    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._clock.time() >= self._end_s

    def _do(self, unit: str, size: int = 1, **counts: float) -> None:
        """Work, unless the time is up; counts one unit if nothing else is given."""
        if not self.is_over():
            self._work.do(unit, size)
            self.log.add(self._work.event_s, **(counts or {unit: 1.0}))

    def _rest(self, seconds: float) -> None:
        """Do nothing; not if the program is to be steady."""
        if not self._steady:
            self._wait(self._clock.time() + seconds)

    def _wait(self, until_s: float) -> None:
        self.log.write()
        until_s = min(until_s, self._end_s)
        while (left_s := until_s - self._clock.time()) > 0:
            self._clock.sleep(min(left_s, NAP_S))
        self.log.write()


@dataclass
class Request:
    """A request to a language model: tokens to process and to generate."""

    prompt: int
    output: int


class Batching(Program):
    """Continuous batching."""

    UNITS = ("prefill_tokens", "decode_steps", "decode_rows")
    RATES = (0.5, 3.0, 10.0)
    """Requests per second in quiet, usual and busy times."""
    SPELL_S = 8.0, 30.0
    """How long such a time lasts."""
    CHUNK = 2048
    """Most prompt tokens between two steps of decoding."""
    SIZES = (1, 2, 4, 8, 16, 32, 64)
    """Sizes of batches; a batch is padded to the next one."""

    def __init__(self, work: Work, clock: Clock, chance: random.Random, end_s: float, *, steady: bool = False) -> None:
        super().__init__(work, clock, chance, end_s, steady=steady)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self._next_s = self._spell_end_s = clock.time()
        self._rate = self.RATES[1]

    def step(self) -> None:
        """One iteration of the engine."""
        self._receive()
        if not self.waiting and not self.running:
            self._wait(self._next_s)
            return
        self._prefill()
        if self.running:
            rows = next(size for size in self.SIZES if size >= len(self.running))
            self._do("decode", rows, decode_steps=1, decode_rows=rows)
            for request in self.running:
                request.output -= 1
            self.running = [request for request in self.running if request.output > 0]

    def _receive(self) -> None:
        """Put the requests that have come into the queue; a steady server has always one."""
        now = self._clock.time()
        if self._steady and not self.waiting and not self.running:
            self._next_s = now
        if now >= self._spell_end_s:
            self._rate = self._chance.choice(self.RATES)
            self._spell_end_s = now + self._chance.uniform(*self.SPELL_S)
        while self._next_s <= now:
            prompt = round(min(8192.0, self._chance.lognormvariate(6.0, 1.0)))
            self.waiting.append(Request(max(1, prompt), 1 + round(self._chance.expovariate(1 / 120))))
            self._next_s += self._chance.expovariate(self._rate)

    def _prefill(self) -> None:
        """Process prompts, up to a chunk of tokens, while there is room in the batch."""
        left = self.CHUNK
        while left and self.waiting and len(self.running) < self.SIZES[-1]:
            tokens = min(left, self.waiting[0].prompt)
            self._do("prefill", tokens, prefill_tokens=tokens)
            self.waiting[0].prompt -= tokens
            left -= tokens
            if not self.waiting[0].prompt:
                self.running.append(self.waiting.pop(0))


class Finetune(Program):
    """Training of a language model."""

    UNITS = ("micro", "optimizer", "evaluate", "save")
    ACCUMULATED = 4
    STALL, EVALUATE, SAVE = 25, 120, 200
    """Steps between late batches of the loader, evaluations and checkpoints."""

    def __init__(self, work: Work, clock: Clock, chance: random.Random, end_s: float, *, steady: bool = False) -> None:
        super().__init__(work, clock, chance, end_s, steady=steady)
        self._steps = 0

    def step(self) -> None:
        """One step of the optimizer, and what is due after it."""
        for _ in range(self.ACCUMULATED):
            self._do("micro")
        self._do("optimizer")
        self._steps += 1
        # A short run alone has all units too.
        evaluate, save = (10, 15) if self._steady else (self.EVALUATE, self.SAVE)
        if self._steps % self.STALL == 0:
            self._rest(self._chance.uniform(0.3, 1.5))
        if self._steps % evaluate == 0:
            for _ in range(20):
                self._do("evaluate")
        if self._steps % save == 0:
            self._do("save")
            self._rest(self._chance.uniform(1.0, 3.0))  # writes the checkpoint


class Video(Program):
    """Processing of live streams."""

    UNITS = ("batch", "detect")
    FRAMES = 16
    """In a batch."""

    def step(self) -> None:
        """One scene of some streams: batches of frames when they are due."""
        batches = self._chance.randint(20, 150)
        per_s = self._chance.choice((4.0, 8.0, 16.0))
        due_s = self._clock.time()
        for number in range(batches):
            if self.is_over():
                return
            self._do("batch", self.FRAMES)
            if number % 2:
                self._do("detect", self.FRAMES)
            due_s += 1 / per_s
            if not self._steady and self._clock.time() < due_s:
                self._wait(due_s)
        self._rest(self._chance.uniform(0.5, 5.0))


class Reinforcement(Program):
    """Reinforcement learning with simulation on the CPU."""

    UNITS = ("act", "update")
    ROLLOUT, EPOCHS, MINIBATCHES = 128, 4, 16
    SIMULATED_S = 0.004

    def step(self) -> None:
        """One rollout and the updates after it."""
        for _ in range(self.ROLLOUT):
            if self.is_over():
                return
            self._do("act")
            self._simulate()
        for _ in range(self.EPOCHS * self.MINIBATCHES):
            self._do("update")

    def _simulate(self) -> None:
        """The environment: on the CPU, so it takes time also in a steady program."""
        seconds = self.SIMULATED_S * self._chance.uniform(0.5, 2.0)
        self._clock.sleep(seconds)


class Frames(Program):
    """Data frames."""

    UNITS = ("load", "sort", "join", "group")

    def step(self) -> None:
        """One cell of a notebook: one operation on some tables, and a look at the result."""
        unit = self._chance.choice(self.UNITS)
        for _ in range(self._chance.randint(5, 60)):
            self._do(unit)
        self._rest(self._chance.uniform(1.0, 8.0))


KINDS: Mapping[str, type[Program]] = {
    "batching": Batching, "finetune": Finetune, "video": Video, "rl": Reinforcement, "frames": Frames,
}  # fmt: skip


def main(words: list[str]) -> int:
    """Load, wait, work and write the log."""
    parser = argparse.ArgumentParser(description="a GPU program with a rhythm of its own")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("start", type=float, help="Unix time at which the work begins")
    parser.add_argument("seconds", type=float)
    parser.add_argument("out", type=Path, metavar="OUT", help="JSON file for the log")
    parser.add_argument("--steady", action="store_true", help="do not rest")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(words)
    import natural_work  # imports PyTorch

    ctypes.CDLL(None).prctl(PR_SET_NAME, NAME, 0, 0, 0)
    arrived = time.time()
    work = natural_work.KINDS[asked.kind]()
    ready = time.time()
    time.sleep(max(0.0, asked.start - time.time()))
    chance, end_s = random.Random(asked.seed), asked.start + asked.seconds  # noqa: S311 - the rhythm of a program
    program = KINDS[asked.kind](work, time, chance, end_s, steady=asked.steady)
    program.run()
    times = {"arrived": arrived, "ready": ready, "due": asked.start}
    line = {"kind": asked.kind, "pid": os.getpid(), **times, "log": program.log.entries}
    partial = asked.out.with_suffix(".part")
    partial.write_text(json.dumps(line))
    partial.replace(asked.out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
