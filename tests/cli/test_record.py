"""`gpuledger record`, then `--source replay:` of what it wrote."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from gpuledger.recording.recording import load, read_packed
from gpuledger.recording.replay import Replay
from tests.cli.running import COMMAND, gpuledger, serving, surroundings
from tests.fakedriver import Gpu, Process, Scenario

FAST = "--tick.interval=100ms"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A GPU whose clock stands still, with this very process on it: every reading of it is the same."""
    gpu = Gpu(0, uuid="GPU-a", watts=300, energy_mj=5000, util=40, temperature=50)
    scenario = Scenario([gpu], [Process(0, os.getpid(), memory=1 << 30, sm=40)], clock=1_700_000_000.0)
    return surroundings(scenario.write(tmp_path / "scenario"), SECRET_TOKEN="hunter2")


def readings(body: str) -> list[str]:
    """The lines about GPUs and processes, without what is about time itself."""
    changing = (
        "start_time|sm_utilization|activity|driver_call|process_.*utilization|(busy|in_use)_seconds|joules|over_power"
    )
    return [line for line in body.splitlines() if line.startswith("gpu_") and not re.search(changing, line)]


def test_a_recording_replayed_shows_the_same_readings(env: dict[str, str], tmp_path: Path) -> None:
    """What `once` says of the driver, it says of a recording of the driver, where there is no driver."""
    path = tmp_path / "x.jsonl.gz"
    done = gpuledger("record", str(path), "--duration=500ms", FAST, env=env)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines()[-1].startswith(f"recorded 5 ticks to {path} (")

    live = gpuledger("once", FAST, env=env)
    replayed = gpuledger("once", FAST, "--source", f"replay:{path}")

    assert replayed.returncode == 0
    assert len(readings(live.stdout)) > 20
    assert readings(replayed.stdout) == readings(live.stdout)


def test_owners_can_be_found_later_and_secrets_cannot(env: dict[str, str], tmp_path: Path) -> None:
    """Command name, uid, start time and cgroup are in it; command line and environment are not."""
    path = tmp_path / "x.jsonl.gz"
    gpuledger("record", str(path), "--duration=200ms", FAST, env=env)

    tick = next(load(read_packed(path), path))
    facts = tick.facts[os.getpid()]
    assert facts.cgroup == Path("/proc/self/cgroup").read_text()
    assert facts.uid == os.getuid()
    assert abs(facts.start_time_ms / 1000 - time.time()) < 3600
    text = gzip.decompress(path.read_bytes())
    assert b"hunter2" not in text
    assert b"pytest" not in text.replace(facts.name.encode(), b"").replace(facts.cgroup.encode(), b"")


def test_a_replay_is_served(env: dict[str, str], tmp_path: Path) -> None:
    """By a server on a host without a driver, for longer than the recording."""
    path = tmp_path / "x.jsonl.gz"
    gpuledger("record", str(path), "--duration=200ms", FAST, env=env)

    with serving(FAST, "--source", f"replay:{path}", env=surroundings()) as server:
        server.metrics(r"^gpuledger_ticks_total ([5-9]|\d{2,})$")
        assert 'uuid="GPU-a"' in server.metrics("^gpuledger_up 1$")
        code, took_s, _ = server.stop()

    assert code == 0
    assert took_s < 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_was_recorded_until_a_signal_is_kept(number: signal.Signals, env: dict[str, str], tmp_path: Path) -> None:
    """Ctrl-C ends an hour's recording after a moment, with a file that can be played."""
    path = tmp_path / "x.jsonl.gz"
    with subprocess.Popen(
        [*COMMAND, "record", str(path), "--duration=1h", FAST], env=env, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 10
        while not list(tmp_path.glob(".x*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(2)  # a few ticks
        process.send_signal(number)
        _, errors = process.communicate(timeout=10)

    assert process.returncode == 0
    assert "recorded" in errors
    assert not Replay(path, paced=False).ended
    assert not list(tmp_path.glob(".x*"))


def test_without_a_driver_there_is_nothing_to_record(tmp_path: Path) -> None:
    """One line after the log's, exit code 2, and no file."""
    done = gpuledger("record", str(tmp_path / "x"), FAST)

    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("gpuledger: cannot record: ")
    assert done.stderr.splitlines()[-1].endswith("; record on a host where `nvidia-smi` works")
    assert not list(tmp_path.iterdir())
