"""The monthly bills of deploy/, made as the timer and the CronJob make them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.real.daemons import run
from tests.real.history import History, remembering
from tests.real.prometheus import Prometheus

DEPLOY = Path(__file__).parents[2] / "deploy"
TODAY = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
LAST_MONTH = (TODAY.replace(day=1) - timedelta(days=1)).replace(day=1)
UNIT = DEPLOY / "systemd" / "gpuledger-bill.service"


def manifest(kind: str) -> dict[str, Any]:
    """An object of the manifest."""
    documents: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "bill.yaml").read_text()))
    (found,) = [document for document in documents if document["kind"] == kind]
    return found


def command(kind: str) -> str:
    """What the unit or the container runs."""
    if kind == "CronJob":
        pod = manifest(kind)["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        return str(pod["containers"][0]["args"][0])
    found = re.findall(r"^ExecStart=/bin/sh -c '(.*?)'$", UNIT.read_text(), re.MULTILINE | re.DOTALL)
    return str(found[0]).replace("\\\n", " ").replace("$$", "$").replace("%%", "%")


@pytest.fixture(scope="module")
def server() -> Iterator[Prometheus]:
    """A Prometheus that scraped two pods on the first day of last month, one after the other."""
    world, begin = History(), LAST_MONTH.timestamp()
    gpu = {"instance": "n:9400", "job": "gpuledger", "gpu": "0", "uuid": "GPU-1"}
    minutes = range(0, 1440, 2)
    for family in ("gpu_up", "gpuledger_tick_timestamp_seconds"):
        world.add(family, gpu, [(begin + 60 * n, begin + 60 * n if "tick" in family else 1) for n in minutes])
    world.add("gpu_energy_joules_total", gpu, [(begin + 60 * n, 18e3 * n) for n in minutes])
    for name, first in (("team-a", 0), ("team-c", 720)):
        pod = {"namespace": name, "pod": name, "container": "main", "container_id": name, "method": "exclusive"}
        samples = [(begin + 60 * n, 18e3 * (n - first)) for n in minutes if first <= n <= first + 720]
        world.add("container_gpu_energy_joules_total", {**gpu, **pod}, samples)
    with remembering(world) as running:
        yield running


@pytest.mark.needs("prometheus")
@pytest.mark.parametrize("kind", ["service", "CronJob"])
def test_a_bill_of_last_month_for_each_department(server: Prometheus, tmp_path: Path, kind: str) -> None:
    """With the settings of the manifest: a page for each department that used a GPU, and one for all."""
    for name, text in manifest("ConfigMap")["data"].items():
        local = text.replace("http://prometheus.gpuledger.svc:9090", server.url)
        (tmp_path / name).write_text(local.replace("/etc/gpuledger", str(tmp_path)))
    program = tmp_path / "gpuledger"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpuledger "$@"\n')
    program.chmod(0o755)
    script = command(kind).replace("/usr/local/bin/", "").replace("/etc/gpuledger", str(tmp_path))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "STATE_DIRECTORY": f"{tmp_path}/bills", "HOME": str(tmp_path)}
    script = script.replace('"/bills/', f'"{tmp_path}/bills/')
    done = subprocess.run(["/bin/sh", "-c", script], env=environment, capture_output=True, check=True, timeout=60)

    assert done.stderr == b""
    pages = {path.name: path.read_text() for path in (tmp_path / "bills" / f"{LAST_MONTH:%Y-%m}").iterdir()}
    assert set(pages) == {"(all).html", "Physics.html", "Chemistry.html"}
    assert "<h1>GPU use of Physics by namespace</h1>" in pages["Physics.html"]
    assert ("team-a" in pages["Physics.html"], "team-c" in pages["Physics.html"]) == (True, False)


@pytest.mark.needs("systemd-analyze")
def test_systemd_accepts_the_timer(tmp_path: Path) -> None:
    """`systemd-analyze` finds no mistake in it, and little that the unit may do."""
    for path in (UNIT, UNIT.with_suffix(".timer")):
        (tmp_path / path.name).write_text(path.read_text())
    unit = str(tmp_path / UNIT.name)

    run("systemd-analyze", "verify", "--man=no", unit, str(tmp_path / "gpuledger-bill.timer"))
    run("systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", unit)
