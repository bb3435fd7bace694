"""Run another program on a fake node: `eval "$(python -m tests.fakedriver /tmp/scenario --gpus 8)"`."""

import argparse
import os
import shlex
from pathlib import Path

from tests.fakedriver import environment, h200_node

parser = argparse.ArgumentParser(prog="python -m tests.fakedriver", description=__doc__)
parser.add_argument("scenario", type=Path, help="the scenario file; written unless it exists")
parser.add_argument("--gpus", type=int, default=8)
parser.add_argument("--processes", type=int, default=4, help="on each GPU")
parser.add_argument("--pids", default="", help="comma-separated pids to show; repeated as often as needed")
parser.add_argument("--latency", action="store_true", help="answer as slowly as a real H200")
given = parser.parse_args()

if not given.scenario.exists():
    wanted = given.gpus * given.processes
    pids = [int(pid) for pid in given.pids.split(",") if pid] or [os.getppid()]
    h200_node(given.gpus, given.processes, (pids * wanted)[:wanted], given.latency).write(given.scenario)
for name, value in environment(given.scenario).items():
    print(f"export {name}={shlex.quote(value)}")
