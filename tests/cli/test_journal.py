"""`gpuledger serve --journal.path`, killed and started again: as a user would see it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from tests.cli.running import Running, gpuledger, serving, surroundings
from tests.fakedriver import Gpu, Process, Scenario

FLAGS = ("--tick.interval=100ms", "--environment=none")
PROCESS = "gpu_process_energy_joules_total"


@pytest.fixture
def pid() -> Iterator[int]:
    """A process that lives as long as the test."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def env(pid: int, tmp_path: Path) -> dict[str, str]:
    """A GPU with this one process, and a counter that rises by 300 J a second."""
    scenario = Scenario([Gpu(0, uuid="GPU-a", watts=300, energy_mj=5_000_000)], [Process(0, pid, sm=40)])
    return surroundings(scenario.write(tmp_path / "scenario"))


def numbers(body: str, name: str) -> dict[str, int]:
    """Millijoules by the last label, or under "" where there is only one."""
    return {
        sample.labels.get("method", sample.labels.get("reason", "")): round(sample.value * 1000)
        for family in families(body)
        for sample in family.samples
        if sample.name == name
    }


def value(body: str, name: str) -> float:
    """When that was."""
    found = re.search(rf"^gpuledger_{name}_timestamp_seconds (\S+)$", body, re.MULTILINE)
    return float(found[1]) if found else 0.0


def check(body: str) -> int:
    """The device's energy, after making sure that its parts add up to it."""
    (device_mj,) = numbers(body, "gpu_energy_joules_total").values()
    parts = (PROCESS, *(f"gpu_{a}_energy_joules_total" for a in ("idle", "retired", "unattributed")))
    assert sum(mj for part in parts for mj in numbers(body, part).values()) == device_mj
    return device_mj


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=str)
def test_totals_survive(number: signal.Signals, env: dict[str, str], tmp_path: Path) -> None:
    """A kill -9 as well as a stop: every number that was shown goes on from there, and the sums match."""
    journal = f"--journal.path={tmp_path / 'journal'}"
    with serving(*FLAGS, journal, env=env) as server:
        before = server.metrics(f'^{PROCESS}{{.*method="exclusive"')
        while value(before, "journal_written") < value(before, "tick"):  # a busy machine may have shown it first
            before = server.get("/metrics")
        server.stop(number)

    with serving(*FLAGS, journal, env=env) as server:
        after = server.metrics(f'^{PROCESS}{{.*method="gap"')
        _, _, errors = server.stop()

    assert "totals continue from journal" in errors
    assert 5_000_000 <= check(before) < check(after)
    assert numbers(before, "gpu_unattributed_energy_joules_total") == numbers(
        after, "gpu_unattributed_energy_joules_total"
    )
    assert numbers(before, PROCESS)["exclusive"] <= numbers(after, PROCESS)["exclusive"]
    assert re.search(r"^gpuledger_journal_written_timestamp_seconds 1", after, re.MULTILINE)
    assert re.search(r"^gpuledger_journal_write_failures_total 0", after, re.MULTILINE)


def started(server: Running) -> str:
    """The first metrics."""
    return server.metrics("^gpuledger_up 1$")


def test_a_second_exporter_is_refused(env: dict[str, str], tmp_path: Path) -> None:
    """With exit code 2 and one line, while the first goes on; `once`, with the same settings, is no exporter."""
    journal = f"--journal.path={tmp_path / 'journal'}"
    with serving(*FLAGS, journal, env=env) as server:
        started(server)
        second = gpuledger("serve", *FLAGS, journal, "--web.listen-address=127.0.0.1:0", env=env)
        once = gpuledger("once", *FLAGS, journal, env=env)
        server.stop()

    assert second.returncode == 2
    assert second.stderr == (
        f"gpuledger: --journal.path: {tmp_path / 'journal'} is in use by another running gpuledger; "
        "choose another file\n"
    )
    assert once.returncode == 0


def test_a_path_that_cannot_be_written_costs_no_tick(env: dict[str, str], tmp_path: Path) -> None:
    """It serves, counts the failures and says why, once."""
    with serving(*FLAGS, f"--journal.path={tmp_path / 'no' / 'journal'}", env=env) as server:
        server.metrics("^gpuledger_journal_write_failures_total [3-9]")
        _, _, errors = server.stop()

    assert errors.count("journal is not written") == 1
    assert "No such file or directory" in errors


def test_a_journal_of_another_boot_is_not_used(env: dict[str, str], pid: int, tmp_path: Path) -> None:
    """One line tells, and the totals begin anew."""
    journal, proc = f"--journal.path={tmp_path / 'journal'}", tmp_path / "proc"
    (proc / "sys/kernel/random").mkdir(parents=True)
    for name in ("stat", str(pid)):
        (proc / name).symlink_to(Path("/proc") / name)
    said = []
    for boot in ("one", "one", "two"):
        (proc / "sys/kernel/random/boot_id").write_text(f"{boot}\n")
        with serving(*FLAGS, journal, f"--path.procfs={proc}", env=env) as server:
            started(server)
            said.append(server.stop()[2])

    assert ["in another boot" in text for text in said] == [False, False, True]
    assert ["totals continue" in text for text in said] == [False, True, False]


def test_a_recording_has_no_journal(tmp_path: Path) -> None:
    """Its totals begin anew with each round; a journal named for it is not made, and there are no metrics of it."""
    path = tmp_path / "journal"
    with serving("demo", *FLAGS, f"--journal.path={path}", env=surroundings()) as server:
        body = started(server)
        _, _, errors = server.stop()

    assert "gpuledger_journal" not in body
    assert "journal.path has no effect" in errors
    assert not os.path.lexists(path)
