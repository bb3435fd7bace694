"""`gpuledger report` on ten minutes of the demo, whose processes start and exit every minute."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from gpuledger.tools.report.queries import GROUPINGS
from tests.cli.running import gpuledger
from tests.real.demohistory import demo_history
from tests.real.history import remembering
from tests.real.prometheus import Prometheus

pytestmark = pytest.mark.needs("prometheus")

BEGAN = int(time.time()) // 60 * 60 - 3600
SECONDS = 600
MOST_UNATTRIBUTED = 0.05


@pytest.fixture(scope="module")
def server() -> Iterator[Prometheus]:
    """A real Prometheus that has scraped the demo from its start on."""
    with remembering(demo_history(BEGAN, SECONDS)) as running:
        yield running


@pytest.mark.parametrize("by", GROUPINGS)
def test_ten_minutes_of_the_demo_add_up(server: Prometheus, by: str) -> None:
    """In every grouping, with the default step: the rows are the total, and almost all energy has an owner."""
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(BEGAN + SECONDS))
    flags = [f"--prometheus.url={server.url}", f"--to={end}", "--since=10m", f"--by={by}", "--gpu-hours=share"]
    done = gpuledger("report", *flags, "--format=json")
    assert (done.returncode, done.stderr) == (0, "")
    bill = json.loads(done.stdout)

    for key in ("energy_kwh", "apportioned_gpu_hours"):
        assert sum(row[key] or 0 for row in bill["rows"]) == pytest.approx(bill["total"][key])
    lost = next(row["energy_kwh"] for row in bill["rows"] if row["kind"] == "unattributed")
    assert lost < MOST_UNATTRIBUTED * bill["total"]["energy_kwh"]
    assert bill["total"]["energy_kwh"] > 0
