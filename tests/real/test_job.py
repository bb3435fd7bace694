"""`gpuledger job` on a Slurm node: from its exporter, from its journal, and from a real Prometheus."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gpuledger.tools.job.use import NO_ALLOCATION
from tests.cli.running import gpuledger
from tests.deploy.slurmscripts import run
from tests.real.nodes import GIB, host
from tests.real.prometheus import prometheus
from tests.real.slurmnode import Node
from tests.waiting import free_port, wait_until

pytestmark = pytest.mark.needs("prometheus")

PRICES = ("--price=0.30", "--price-gpu-hour=2.50", "--currency=EUR")
FIRST_PID = 5000
"""Of job 211, on GPU 0."""


class World:
    """A node on which one of two processes of job 211 ends, then the job itself, then the exporter."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.node, self.journal = Node(folder, unlisted=0), str(folder / "journal")
        flags = (
            f"--web.listen-address=127.0.0.1:{free_port()}",
            f"--journal.path={self.journal}",
            "--driver.energy-interval=0s",  # the job lasts some seconds
        )
        with self.node.exporter(*flags) as exporter:
            exporter.metrics('gpu_allocation_state.*batch_job="214".*state="no_process"')
            self.server = stack.enter_context(prometheus({"gpuledger": (host(exporter), "/metrics")}, "500ms"))
            self.server.wait_until_scraped(6)
            self.node.kill(FIRST_PID)
            exporter.metrics('gpu_allocation_state.*gpu="0".*batch_job="211".*state="no_process"')
            time.sleep(3)
            self.by_exporter = job("211", f"--connect={exporter.url}")
            self.line = gpuledger("job", "211", "--short", f"--connect={exporter.url}", *PRICES).stdout
            self.node.kill(FIRST_PID + 1)
            run("epilog.sh", self.node.jobs, JOB_ID="211")
            wait_until(lambda: not re.search('gpu_allocation_state.*batch_job="211"', exporter.get("/metrics")), 15)
            self.after_end = job("211", f"--connect={exporter.url}")


def job(number: str, *words: str) -> dict[str, Any]:
    """The JSON of `gpuledger job`."""
    done = gpuledger("job", number, "--json", *PRICES, *words)
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """When the exporter has stopped; Prometheus still runs."""
    with ExitStack() as stack:
        yield World(tmp_path_factory.mktemp("job"), stack)


def journal(world: World) -> tuple[str, ...]:
    """The flags for the journal, after the exporter was stopped."""
    return f"--journal.path={world.journal}", f"--path.procfs={world.node.proc}"


def check(use: dict[str, Any]) -> None:
    """Two GPUs, of which the first is idle for longer, and the arithmetic of the totals."""
    first, second = sorted(use["devices"], key=lambda device: device["gpu"])
    tails = [device["idle_tail_seconds"] for device in (first, second)]
    assert tails[0] > tails[1] + 1
    assert (use["idle_tail_seconds"], use["idle_tail_gpu_hours"]) == (tails[1], pytest.approx(sum(tails) / 3600))
    seconds = [device["allocated_seconds"] for device in (first, second)]
    assert use["gpu_hours"] == pytest.approx(sum(seconds) / 3600)
    assert first["busy_seconds"] > 1
    busy, idle = use["busy_hours"], use["idle_hours"]
    assert use["busy_share"] == pytest.approx(busy / (busy + idle))
    assert use["kwh"] == pytest.approx((first["joules"] + second["joules"]) / 3.6e6)
    assert use["cost"] == pytest.approx(0.30 * use["kwh"] + 2.50 * use["gpu_hours"])
    assert use["cost_if_always_busy"] == pytest.approx(use["cost"] * use["busy_share"])


def test_the_exporter_knows_the_running_job(world: World) -> None:
    """Memory is that of the moment: 2 GiB are left. 200 W and 201 W, of which each GPU has its part of the time."""
    use = world.by_exporter
    check(use)
    assert (use["memory_bytes"], use["peak_memory_bytes"], use["idle_tail_seconds"]) == (2 * GIB, None, 0)
    for device in use["devices"]:
        assert device["joules"] == pytest.approx(200 * device["allocated_seconds"], rel=0.2)


def test_the_short_form_fits_a_comment(world: World) -> None:
    """One line of ASCII."""
    assert re.match(r"2 GPUs, 0\.\d\d GPU-h, busy \d+%, ", world.line)
    assert world.line.endswith(" EUR\n")
    assert len(world.line) <= 201
    assert world.line.isascii()


def test_the_exporter_knows_little_of_a_job_that_ended(world: World) -> None:
    """The energy of its processes, and a note."""
    use = world.after_end

    assert (use["gpu_hours"], use["cost"], use["busy_share"]) == (None, None, None)
    assert use["kwh"] > 0
    assert use["notes"] == [NO_ALLOCATION]


def test_the_journal_knows_it_after_the_exporter_has_stopped(world: World) -> None:
    """The end of the job counts, not that of the exporter."""
    use = job("211", *journal(world))

    check(use)
    assert (use["source"], use["memory_bytes"], use["peak_memory_bytes"]) == ("journal", None, None)
    before = world.by_exporter
    assert before["gpu_hours"] <= use["gpu_hours"] < before["gpu_hours"] + 2 * 12 / 3600


def test_prometheus_knows_it_with_its_peak_memory(world: World) -> None:
    """The counters up to the last scrape are those of the journal; 8 GiB were the peak."""
    use, other = job("211", f"--prometheus.url={world.server.url}"), job("211", *journal(world))

    check(use)
    assert (use["memory_bytes"], use["peak_memory_bytes"]) == (None, 8 * GIB)
    assert {device["node"] for device in use["devices"]} == {"127.0.0.1"}
    assert use["gpu_hours"] == pytest.approx(other["gpu_hours"], abs=2 * 1.5 / 3600)
    assert use["kwh"] == pytest.approx(other["kwh"], abs=2 * 1.5 * 201 / 3.6e6)


def test_an_unknown_job(world: World) -> None:
    """A clear message and exit code 1, from each source."""
    for source in (f"--prometheus.url={world.server.url}", *journal(world)[:1]):
        done = gpuledger("job", "999", source, journal(world)[1])
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("gpuledger: job 999: no GPU of it ")


def test_one_screen(world: World) -> None:
    """Totals with their names, and one line for each GPU."""
    done = gpuledger("job", "slurm/211", f"--prometheus.url={world.server.url}", *PRICES)
    lines = done.stdout.splitlines()

    assert lines[0].startswith("job 211: 2 GPUs on 127.0.0.1, ")
    names = ("GPU-hours", "busy share", "energy", "peak memory", "idle tail", "cost", "cost if always busy")
    assert [line for name in names for line in lines if line.startswith(f"  {name}  ")] == lines[2:9]
    assert len(lines) == 13
