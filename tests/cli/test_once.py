"""`gpuledger once`, as a real process on the fake driver."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from tests.cli.running import COMMAND, gpuledger, surroundings
from tests.fakedriver import Gpu, Process, Scenario

FAST = "--tick.interval=100ms"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A host with two GPUs, and this very process on the first."""
    gpus = [Gpu(0, uuid="GPU-a", watts=300), Gpu(1, uuid="GPU-b", watts=80)]
    processes = [Process(0, os.getpid(), memory=1 << 30, sm=40)]
    return surroundings(Scenario(gpus, processes).write(tmp_path / "scenario"))


def test_a_gpu_that_shares_the_memory_of_the_system(tmp_path: Path) -> None:
    """A GB10: total and used memory are the system's, marked; what only the driver knows is absent, never 0."""
    gpu = Gpu(0, uuid="GPU-a", name="NVIDIA GB10", extra={"memory_total": "none", "memory_reserved": "none"})
    env = surroundings(Scenario([gpu], [Process(0, os.getpid(), memory="na", sm=40)]).write(tmp_path / "scenario"))

    done = gpuledger("once", FAST, env=env)
    dcgm = gpuledger("once", FAST, "--web.dialect=dcgm", env=env)

    families = {family.name: family for family in text_families(done.stdout)}
    memory = {name for name in families if name.startswith("gpu_") and "memory" in name and name.endswith("_bytes")}
    (total,), (used,) = (families[f"gpu_memory_{part}_bytes"].samples for part in ("total", "used"))
    assert total.value == int(Path("/proc/meminfo").read_text().split()[1]) << 10
    assert 0 < used.value < total.value
    assert [sample.labels["source"] for sample in families["gpu_memory_source_info"].samples] == ["system"]
    assert memory == {"gpu_memory_total_bytes", "gpu_memory_used_bytes", "gpu_memory_known_bytes"}
    assert "gpu_inference_active" not in families
    assert "_FB_" not in dcgm.stdout


def test_text_is_what_prometheus_reads(env: dict[str, str]) -> None:
    """Exit code 0, nothing on standard error but the log, and every line parses."""
    done = gpuledger("once", FAST, env=env)

    assert done.returncode == 0
    families = {family.name: family for family in text_families(done.stdout)}
    assert [sample.value for sample in families["gpuledger_up"].samples] == [1]
    assert {sample.labels["uuid"]: sample.value for sample in families["gpu_power_watts"].samples} == {
        "GPU-a": 300, "GPU-b": 80,
    }  # fmt: skip
    (row,) = families["gpu_process_memory_used_bytes"].samples
    assert (row.labels["pid"], row.value) == (str(os.getpid()), 1 << 30)
    assert row.labels["process_name"]
    assert all(line.startswith("time=") for line in done.stderr.splitlines())


def test_there_is_utilization_in_the_first_answer(env: dict[str, str]) -> None:
    """It is told since the reading before, so `once` reads twice."""
    done = gpuledger("once", FAST, env=env)

    assert "gpu_process_sm_utilization_ratio{" in done.stdout


def test_openmetrics(env: dict[str, str]) -> None:
    """Ends with EOF and parses as such."""
    done = gpuledger("once", FAST, "--format=openmetrics", env=env)

    assert done.stdout.endswith("# EOF\n")
    assert "gpu_power_watts" in {family.name for family in openmetrics_families(done.stdout)}  # type: ignore[no-untyped-call]


def test_json(env: dict[str, str]) -> None:
    """One object with the same numbers."""
    done = gpuledger("once", FAST, "--format", "json", env=env)

    series = json.loads(done.stdout)["metrics"]["gpu_power_watts"]["series"]
    assert [one["value"] for one in series] == [300, 80]


def test_without_a_driver_it_says_so_and_exits_with_1() -> None:
    """What is known is written all the same: an alert on gpuledger_up works with the textfile collector."""
    done = gpuledger("once", FAST)

    assert done.returncode == 1
    assert "\ngpuledger_up 0\n" in done.stdout
    assert "the driver cannot be read" in done.stderr


def test_output_is_a_file_that_every_user_may_read(env: dict[str, str], tmp_path: Path) -> None:
    """Nothing is printed, nothing else is left in the folder, whatever the umask."""
    folder = tmp_path / "textfile"
    folder.mkdir()
    path = folder / "gpu.prom"
    path.write_text("old")

    done = subprocess.run(
        ["sh", "-c", 'umask 077; exec "$@"', "sh", *COMMAND, "once", FAST, "--output", str(path)],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, "")
    assert "\ngpuledger_up 1\n" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(folder.iterdir()) == [path]


def test_when_writing_fails_the_old_file_is_untouched(env: dict[str, str], tmp_path: Path) -> None:
    """A limit on file sizes stands for a full disk."""
    folder = tmp_path / "textfile"
    folder.mkdir()
    path = folder / "gpu.prom"
    path.write_text("old")

    done = subprocess.run(
        ["bash", "-c", 'trap "" XFSZ; ulimit -f 1; exec "$@"', "bash", *COMMAND, "once", FAST, "--output", str(path)],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert done.stderr.endswith(f"gpuledger: cannot write {path}: File too large; name a file that can be written\n")
    assert path.read_text() == "old"
    assert list(folder.iterdir()) == [path]


def test_a_reader_that_has_seen_enough_is_no_error(env: dict[str, str]) -> None:
    """`gpuledger once | head -1` ends without a word about it."""
    with subprocess.Popen(
        [*COMMAND, "once", FAST], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()

    assert process.returncode == 1
    assert "Traceback" not in errors
    assert "Exception" not in errors
