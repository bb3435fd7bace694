"""What an attacker that controls the exporter can do to other processes: the table in docs/permissions.md."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.hostile.privileges import EXPORTERS, NOBODY, PLAIN, ROWS

PROCESSES = {
    "root, with capabilities": ["--bounding-set=-all,+chown,+kill", "--inh-caps=-all"],
    "root, without capabilities": PLAIN,
    "another user": [*PLAIN, "--reuid=54321", "--regid=54321", "--clear-groups"],
    "nobody": [*PLAIN, *NOBODY],
}
ATTACK = """
import os, resource, sys
pid = int(sys.argv[1])

def works(call):
    try:
        call()
    except OSError:
        return "no"
    return "yes"

def read(name):
    with open(f"/proc/{pid}/{name}", "rb") as file:
        file.seek(0)

def raise_oom_score():
    with open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write("900")

acts = {works(call) for call in (
    lambda: os.kill(pid, 0), raise_oom_score, lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64)),
)}
reads = {works(call) for call in (
    lambda: read("environ"), lambda: read("mem"), lambda: os.listdir(f"/proc/{pid}/root"),
)}
print(*acts, "|", *reads)
"""

pytestmark = pytest.mark.needs("root", "setpriv")


@contextmanager
def running(flags: list[str]) -> Iterator[int]:
    """A process with these permissions."""
    with subprocess.Popen(
        ["setpriv", *flags, "sh", "-c", "echo ready; exec sleep 60"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} to {row[1]}")
def test_other_processes(row: list[str]) -> None:
    """The exporter signals, limits and reads a process of another tenant: the kernel allows what the table says."""
    exporter, target, acts, reads = row
    python = "/usr/bin/python3" if exporter == "nobody" else sys.executable  # the tests' own may lie in a home
    with running(PROCESSES[target.partition(":")[0].partition(", such")[0]]) as pid:
        argv = ["setpriv", *EXPORTERS[exporter], python, "-c", ATTACK, str(pid)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)

    assert done.stdout == f"{acts} | {reads}\n"
