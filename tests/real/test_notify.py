"""A scripted day: messages of `gpuledger fleet --notify` from a real Prometheus, also after kill -9."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuledger.config import yamlfile
from gpuledger.tools.notify.config import parse
from gpuledger.tools.notify.notifier import Notifier
from gpuledger.tools.prometheus.client import Access
from gpuledger.tools.prometheus.client import Prometheus as Client
from tests.cli.running import gpuledger
from tests.real.history import History, remembering
from tests.real.prometheus import Prometheus
from tests.tools.notify.receivers import Inbox, receiving
from tests.waiting import free_port, wait_until

pytestmark = pytest.mark.needs("prometheus")

STEP_S, HOUR_S = 60, 3600
DAY = [60 * minute for minute in range(24 * 60 + 1)]
"""Seconds since midnight of each scrape."""
USED = {
    "server": [(0, 86400, 0.6)],
    "pauses": [(start, start + 3000, 0.5) for start in range(0, 86400, 3600)],  # 10 minutes of pause each hour
    "night": [(6 * HOUR_S, 20 * HOUR_S, 0.9)],
    "forgotten": [(0, 9 * HOUR_S, 0.8)],
    "tiny": [(start, start + 60, 0.5) for start in range(0, 86400, 1800)],  # 2 minutes of work each hour
}
"""When each pod works, and how much of what it asked for it uses then."""


def scripted_day(began: int) -> History:
    """The series of the idle ledger for five pods, each on a GPU of its own."""
    history = History()
    for number, (pod, periods) in enumerate(USED.items()):
        labels = {"job": "gpuledger", "instance": "n1:9400", "node": "n1", "gpu": str(number), "uuid": f"GPU-{number}",
                  "namespace": "ml", "pod": pod, "container": "main"}  # fmt: skip
        used = [sum(part for start, end, part in periods if start <= second < end) for second in DAY]
        since: list[int | None] = []
        for second, part in zip(DAY, used, strict=True):
            since.append(None if part else (since[-1] if since and since[-1] is not None else second))
        idle = [(began + second, start) for second, start in zip(DAY, since, strict=True) if start is not None]
        series = {
            "gpu_allocation_idle_since_timestamp_seconds": [(now, float(began + start)) for now, start in idle],
            "gpu_allocation_idle_period_gpu_seconds": [(now, float(now - began - start)) for now, start in idle],
            "gpu_allocation_idle_period_energy_joules": [(now, 80.0 * (now - began - start)) for now, start in idle],
            "gpu_allocation_shared_by": [(began + second, 1.0) for second in DAY],
            "gpu_entitlement_compute_used_ratio": [(began + s, u) for s, u in zip(DAY, used, strict=True)],
        }
        for name, samples in series.items():
            history.add(name, labels, samples)
        state = [(began + s, float(start is not None)) for s, start in zip(DAY, since, strict=True)]
        history.add("gpu_allocation_state", {**labels, "state": "no_process"}, state)
        asked = [(began + second, 1.0) for second in DAY]
        history.add("gpu_entitlement_compute_ratio", {**labels, "source": "device"}, asked)
    return history


@pytest.fixture(scope="module")
def day() -> Iterator[tuple[Prometheus, int]]:
    """A Prometheus with the day until now."""
    began = int(time.time()) - 86400
    with remembering(scripted_day(began)) as server:
        yield server, began


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    """A webhook."""
    with receiving() as inbox:
        yield inbox


def config(folder: Path, inbox: Inbox) -> Path:
    """The file of --notify.config."""
    path = folder / "notify.yml"
    path.write_text(json.dumps({
        "rules": {"idle": "1h", "below_entitlement": "5%"},
        "state": str(folder / "state.json"),
        "webhooks": [{"url": f"http://127.0.0.1:{inbox.port}/hook"}],
    }))  # fmt: skip
    return path


def told(inbox: Inbox) -> list[str]:
    """The pods in the messages so far."""
    return [re.findall(r"allocated to ml/(\w+)/main", text)[0] for text in inbox.texts]


def test_a_scripted_day(day: tuple[Prometheus, int], inbox: Inbox, tmp_path: Path) -> None:
    """Exactly the expected messages, each at its time, with a new process every five minutes.

    A server that pauses for ten minutes is not idle; one that works for two minutes an hour uses 1.7 %.
    """
    server, began = day
    root = yamlfile.load(str(config(tmp_path, inbox)), 10**6)
    assert root is not None
    settings, client = parse(root, str(tmp_path)), Client(Access(server.url))
    times: list[tuple[int, str]] = []
    for minute in range(0, 24 * 60 + 1, 5):
        now_s = float(began + 60 * minute)
        notifier = Notifier(settings, lambda promql, at: client.query(promql, at).series, lambda: now_s, None)  # noqa: B023
        before = len(inbox.bodies)
        assert notifier.step()
        times += [(minute // 60, pod) for pod in told(inbox)[before:]]

    # "night" is idle again in the evening, but its owner had a message on this day. 95 % of a day are 22.8 hours.
    assert times == [(1, "night"), (10, "forgotten"), (22, "tiny")]
    assert "not used since" in inbox.texts[0]
    assert "used 2 % of what was asked for, in the last 1d00h" in inbox.texts[2]


def test_kill_9(day: tuple[Prometheus, int], inbox: Inbox, tmp_path: Path) -> None:
    """No message is sent twice, however often the process is killed; none is forgotten if the webhook works."""
    command = [
        sys.executable, "-m", "gpuledger", "fleet", "--notify", f"--notify.config={config(tmp_path, inbox)}",
        f"--prometheus.url={day[0].url}", "--refresh=1s", "--max-age=1h",
    ]  # fmt: skip
    for round_ in range(4):
        address = f"--web.listen-address=127.0.0.1:{free_port()}"
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen([*command, address], stderr=log, env={**os.environ, "NO_COLOR": "1"})
            try:
                wait_until(lambda: len(inbox.bodies) == 3 or process.poll() is not None)  # noqa: B023
                assert process.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.2 * round_)
            finally:
                process.kill()
                process.wait()

    assert sorted(told(inbox)) == ["forgotten", "night", "tiny"]


def test_dry_run(day: tuple[Prometheus, int], inbox: Inbox, tmp_path: Path) -> None:
    """Prints the messages; without a file of rules it says what is missing."""
    words = ("fleet", f"--prometheus.url={day[0].url}", "--once", "--notify.dry-run")
    done = gpuledger(*words, f"--notify.config={config(tmp_path, inbox)}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("allocated to ml/") == 3
    assert inbox.bodies == []
    missing = gpuledger(*words)
    assert (missing.returncode, missing.stderr) == (
        2, "gpuledger: --notify needs rules and receivers; name a file with --notify.config\n",
    )  # fmt: skip
