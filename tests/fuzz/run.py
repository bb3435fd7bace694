"""One target, many inputs: none may crash it, keep it busy for long, or fill the memory."""

from __future__ import annotations

import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from types import FrameType

from tests.fuzz.damage import damaged
from tests.fuzz.targets import TARGETS

LONGEST_S = 10.0
"""Of CPU, for at most 256 KiB: hundreds of times what the slowest takes, and far less than anything quadratic."""
MOST_BYTES_FOR_EACH = 200
FREE_BYTES = 16 << 20


class TooSlow(BaseException):
    """The time is over. No reader may take it for one of its own errors."""


@contextmanager
def _limited() -> Iterator[None]:
    def over(_: int, __: FrameType | None) -> None:
        raise TooSlow(f"not done after {LONGEST_S:g} s")

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def fuzz(name: str, seed: int, inputs: int, *, memory: bool) -> None:
    """AssertionError with the input that broke it. Measuring `memory` takes several times as long."""
    target = TARGETS[name]
    seeds = target.seeds()
    target.read(seeds[0])
    random = Random(f"{name} {seed}")
    for number in range(inputs):
        data = damaged(random, seeds)
        if memory:
            tracemalloc.start()
        try:
            with _limited(), suppress(*target.errors):
                target.read(data)
            used = tracemalloc.get_traced_memory()[1] if memory else 0
        except (Exception, TooSlow) as error:
            what = f"{type(error).__name__}: {error}"
            raise AssertionError(f"{name}, seed {seed}, input {number}: {what}; of {data[:300]!r}") from error
        finally:
            tracemalloc.stop()
        allowed = FREE_BYTES + MOST_BYTES_FOR_EACH * len(data)
        assert used <= allowed, f"{name}, seed {seed}, input {number}: {used} bytes for {len(data)}; of {data[:300]!r}"
