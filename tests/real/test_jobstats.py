"""The queries of Princeton's jobstats and of its Grafana dashboard on a real Prometheus that scrapes a Slurm node.

With JOBSTATS=FOLDER, a checkout of https://github.com/PrincetonUniversity/jobstats, its own client runs too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.real.nodes import GIB, host
from tests.real.prometheus import Prometheus, prometheus
from tests.real.slurmnode import Node

pytestmark = pytest.mark.needs("prometheus")

CLUSTER = "della"
WITH_LABEL = {
    "total_memory": "max_over_time(nvidia_gpu_memory_total_bytes{{cluster='{cluster}',jobid='{jobid}'}}[{diff}s:])",
    "used_memory": "max_over_time(nvidia_gpu_memory_used_bytes{{cluster='{cluster}',jobid='{jobid}'}}[{diff}s:])",
    "utilization": "avg_over_time((nvidia_gpu_duty_cycle{{cluster='{cluster}',jobid='{jobid}'}} or "
    "(nvidia_gpu_graphics_util_percent{{cluster='{cluster}',jobid='{jobid}'}} * 100))[{diff}s:])",
}
"""With GPU_EXPORTER_JOBID = True, as in jobstats 1.0.0."""
WITH_SERIES = {
    "total_memory": "max_over_time((nvidia_gpu_memory_total_bytes{{cluster='{cluster}'}} and "
    "nvidia_gpu_jobId == {jobid})[{diff}s:])",
    "used_memory": "max_over_time((nvidia_gpu_memory_used_bytes{{cluster='{cluster}'}} and "
    "nvidia_gpu_jobId == {jobid})[{diff}s:])",
    "utilization": "avg_over_time(((nvidia_gpu_duty_cycle{{cluster='{cluster}'}} or "
    "(nvidia_gpu_graphics_util_percent{{cluster='{cluster}'}} * 100)) and nvidia_gpu_jobId == {jobid})[{diff}s:])",
}
"""With GPU_EXPORTER_JOBID = False."""
PANEL = 'label_replace({name}{{jobid="{job}"}}, "shostname", "$1", "instance", "(.*):.*")'
"""A panel of grafana/Single_Job_Stats.json."""

Use = dict[str, tuple[float, float, float]]
"""Total memory, used memory and utilization by minor number."""
JOBS: dict[str, Use] = {
    "211": {"0": (64 * GIB, 9 * GIB, 40), "1": (64 * GIB, 3 * GIB, 10)},
    "212": {"2": (64 * GIB, 2 * GIB, 30)},
    "213": {"2": (64 * GIB, 3 * GIB, 20)},
    "214": {"3": (64 * GIB, 1 * GIB, 0)},
}
"""Two GPUs; two jobs that share a GPU; a job without a process."""


class Scraped:
    """The node after some seconds in Prometheus."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        node = Node(folder)
        exporter = stack.enter_context(node.exporter())
        exporter.metrics('nvidia_gpu_duty_cycle.*jobid="213",userid="1001"} 20', "/jobstats/metrics")
        target = {"gpus": (host(exporter), "/jobstats/metrics")}
        labels = {"gpus": {"cluster": CLUSTER, "instance": "gpu01:9445"}}
        self.start = time.time()
        self.server: Prometheus = stack.enter_context(prometheus(target, "500ms", labels=labels))
        self.server.wait_until_scraped(6)
        self.end = time.time()


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """While the exporter and Prometheus run."""
    with ExitStack() as stack:
        yield Scraped(tmp_path_factory.mktemp("jobstats"), stack)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("queries", [WITH_LABEL, WITH_SERIES])
def test_the_queries_of_jobstats(scraped: Scraped, queries: dict[str, str], job: str) -> None:
    """One series for each GPU of the job, found by its label or by nvidia_gpu_jobId."""
    found: dict[str, list[float]] = {}
    for query in queries.values():
        for labels, value in scraped.server.query(query.format(cluster=CLUSTER, jobid=job, diff=60), at=scraped.end):
            assert labels["instance"] == "gpu01:9445"
            found.setdefault(labels["minor_number"], []).append(value)

    assert {minor: tuple(values) for minor, values in found.items()} == JOBS[job]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("nvidia_gpu_duty_cycle", [40, 10]),
        ("nvidia_gpu_memory_used_bytes", [9 * GIB, 3 * GIB]),
        ("nvidia_gpu_temperature_celsius", [40, 41]),
        ("nvidia_gpu_power_usage_milliwatts", [200_000, 201_000]),
    ],
)
def test_the_panels_of_its_dashboard(scraped: Scraped, name: str, values: list[float]) -> None:
    """Each GPU of the job on its host, with the labels of its legend."""
    series = scraped.server.query(PANEL.format(name=name, job="211"), at=scraped.end)

    assert {(labels["shostname"], labels["minor_number"]): value for labels, value in series} == {
        ("gpu01", "0"): values[0], ("gpu01", "1"): values[1],
    }  # fmt: skip


SACCT = """#!/bin/sh
[ "$1" = -V ] && echo slurm 25.05.3 && exit
echo 'JobIDRaw|Start|End|Cluster|AllocTRES|AdminComment|User|Account|State|NNodes|NCPUS|ReqMem|QOS|Partition\
|TimelimitRaw|JobName'
for job; do :; done
echo "$job|START|END|della|cpu=1,gres/gpu=2,node=1||alice|physics|COMPLETED|1|1|4G|gpu|gpu|60|train"
"""


if "JOBSTATS" in os.environ:  # names a checkout of jobstats

    def test_the_client_itself(scraped: Scraped, tmp_path: Path) -> None:
        """Its JSON has both GPUs of the job."""
        checkout = tmp_path / "jobstats"
        shutil.copytree(os.environ["JOBSTATS"], checkout)
        config = checkout / "config.py"
        settings = f"\nPROM_SERVER = {scraped.server.url!r}\nSAMPLING_PERIOD = 1\n"
        config.write_text(config.read_text() + settings)
        sacct = tmp_path / "sacct"
        sacct.write_text(SACCT.replace("START", str(int(scraped.start))).replace("END", str(int(scraped.end) + 1)))
        sacct.chmod(0o755)
        env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        argv = [sys.executable, str(checkout / "jobstats"), "-j", "211"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

        assert done.returncode == 0, done.stdout + done.stderr
        node: dict[str, Any] = json.loads(done.stdout)["nodes"]["gpu01"]
        assert node["gpu_utilization"] == {"0": 40, "1": 10}
        assert node["gpu_used_memory"] == {"0": 9 * GIB, "1": 3 * GIB}
        assert node["gpu_total_memory"] == {"0": 64 * GIB, "1": 64 * GIB}
