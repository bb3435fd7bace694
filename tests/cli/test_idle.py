"""`gpuledger idle` against the demo, as a new user runs it."""

from __future__ import annotations

import json
import re

from tests.cli.running import gpuledger, serving, surroundings


def test_the_demo_has_an_idle_gpu() -> None:
    """The notebook that never started a process, with the command that would free its GPU; nothing is executed."""
    with serving("demo", "--tick.interval=100ms", env=surroundings()) as server:
        server.metrics(r'^gpu_allocation_idle_period_gpu_seconds\{.*pod="notebook-dana-0".*\} [1-9]')
        shown = gpuledger("idle", f"--connect={server.url}", "--price-gpu-hour=3600", "--currency=EUR", "--min=1s")
        usual = gpuledger("idle", f"--connect={server.url}").stdout
        early = gpuledger("idle", f"--connect={server.url}", "--min=0s").stdout
        found = json.loads(gpuledger("idle", f"--connect={server.url}", "--json", "--min=1s").stdout)

    assert (shown.returncode, shown.stderr) == (0, "")
    head, *lines = shown.stdout.splitlines()
    assert head.split("  ")[0] == "owner"
    assert "cost EUR" in head
    (line,) = (line for line in lines if line.startswith("research/notebook-dana-0/notebook "))
    assert re.search(r" 2 +no_process .* kubectl delete pod -n research notebook-dana-0$", line)
    assert lines[-1].startswith("total ")
    assert re.fullmatch(r"no allocation is idle for 1h\n\d+ more (is|are) idle for less than 1h: --min 0s\n", usual)
    assert "(shown after 1h)" in early
    assert "kubectl delete" not in early
    row = next(row for row in found["allocations"] if row["pod"] == "notebook-dana-0")
    assert row["idle_seconds"] >= 1
    assert row["kwh"] > 0
    assert (found["min_seconds"], found["more"] >= 0) == (1, True)
    assert row["shared_by"] == 1
