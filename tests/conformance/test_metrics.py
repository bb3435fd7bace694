"""The accelerator metrics test of Kubernetes AI conformance (KAR-0059), run against `gpuledger serve`.

CONFORMANCE is its compiled test binary.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.running import serving, surroundings
from tests.fakedriver import h200_node

TEST = "TestAcceleratorPerformanceMetrics"


def conformance(url: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the test against an endpoint."""
    binary = os.environ.get("CONFORMANCE", "")
    if not binary:
        raise AssertionError("set CONFORMANCE to the test binary; see docs/kubernetes.md")
    words = [binary, f"-test.run=^{TEST}$", "-test.v", f"-metrics-endpoint={url}", *flags]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("dialect", "utilization", "memory"),
    [
        ("native", "gpu_utilization_ratio", "gpu_memory_used_bytes"),
        ("dcgm", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"),
    ],
)
def test_accelerator_metrics(dialect: str, utilization: str, memory: str, tmp_path: Path) -> None:
    """It finds the metrics that it has to find and those that it should, by pattern and by exact name."""
    env = surroundings(h200_node(gpus=2, processes=1).write(tmp_path / "scenario"))
    with serving("serve", "--tick.interval=100ms", f"--web.dialect={dialect}", "--environment=none", env=env) as server:
        server.metrics(f"^{utilization}{{")
        by_pattern = conformance(f"{server.url}/metrics")
        flags = (f"-metrics-utilization-metric={utilization}", f"-metrics-memory-metric={memory}")
        by_name = conformance(f"{server.url}/metrics", *flags)
        wrong = conformance(f"{server.url}/metrics", "-metrics-memory-metric=no_such_metric")

    for done in (by_pattern, by_name):
        assert done.returncode == 0, done.stdout
        assert done.stdout.count("--- PASS") == 5
        assert done.stdout.count("PASS (SHOULD)") == 3
    assert wrong.returncode != 0
