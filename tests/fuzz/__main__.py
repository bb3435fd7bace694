"""`python -m tests.fuzz --minutes 10 [TARGET]`: new inputs until the time is over."""

from __future__ import annotations

import argparse
import time

from tests.fuzz.run import fuzz
from tests.fuzz.targets import TARGETS


def main() -> None:
    """Goes round all targets with one seed after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", nargs="*", choices=[[], *TARGETS], default=[])
    parser.add_argument("--minutes", type=float, default=10.0)
    chosen = parser.parse_args()
    seed, ends = time.time_ns(), time.monotonic() + 60 * chosen.minutes
    done = 0
    while time.monotonic() < ends:
        for name in chosen.target or TARGETS:
            fuzz(name, seed, 100, memory=done % 5 == 0)
        seed, done = seed + 1, done + 1
        print(f"\r{done} rounds, seed {seed}", end="", flush=True)
    print()


main()
