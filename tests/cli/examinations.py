"""Runs of `gpuledger doctor`."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from gpuledger.owners.kernel.access import probe
from gpuledger.tools.doctor.checks import permissions
from gpuledger.tools.doctor.finding import problem
from tests.cli.running import COMMAND, gpuledger, surroundings
from tests.fakedriver import Gpu, Process, Scenario

FAST = ("--tick.interval=100ms", "--environment=none", "--web.listen-address=127.0.0.1:0")
SOON_S = 15.0
ACCESS = probe(Path("/proc"))
FOUND_HERE = permissions(ACCESS, Path("/proc"))
if not ACCESS.host_pid_namespace:
    FOUND_HERE.append(problem("pid namespace", "x", "y"))
HERE = {one.name for one in FOUND_HERE if one.level != "ok"}
"""What is wrong with the very host these tests run on."""
Faults = dict[str, tuple[str, str, str]]
"""Level, text and fix by name."""


def healthy() -> Scenario:
    """Two GPUs, and this very process at work on the first."""
    return Scenario([Gpu(0, uuid="GPU-a"), Gpu(1, uuid="GPU-b")], [Process(0, os.getpid(), sm=40)])


def examined(scenario: Scenario | None, folder: Path, *flags: str, before: Sequence[str] = ()) -> tuple[int, Faults]:
    """The exit code and what is not ok, apart from what is wrong here anyway; within the time it may take."""
    env = surroundings(None if scenario is None else scenario.write(folder / "scenario"))
    return examined_in(env, *flags, before=before)


def examined_in(env: dict[str, str], *flags: str, before: Sequence[str] = ()) -> tuple[int, Faults]:
    """The same in this environment."""
    started = time.monotonic()
    words = ["doctor", *FAST, "--json", *flags]
    if before:
        command = [*before, *COMMAND, *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
    else:
        done = gpuledger(*words, env=env)
    assert time.monotonic() - started < SOON_S
    assert done.stderr == ""
    found = json.loads(done.stdout)["findings"]
    assert all(one["fix"] for one in found if one["level"] != "ok")
    return done.returncode, {
        one["name"]: (one["level"], one["text"], one["fix"])
        for one in found
        if one["level"] != "ok" and one["name"] not in HERE
    }


def only(faults: Faults) -> tuple[str, str, str, str]:
    """The one fault there is."""
    assert len(faults) == 1, faults
    ((name, (level, text, fix)),) = faults.items()
    return name, level, text, fix
