"""`gpuledger serve --collector.dcgm`, as a real process on a fake driver and a fake DCGM."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from tests import fakedcgm, fakedriver
from tests.cli.running import gpuledger, serving, surroundings
from tests.fakedriver import Gpu, Process, Scenario

FAST = ("--tick.interval=100ms", "--environment=none")
ON = (*FAST, "--collector.dcgm", "--dcgm-update-frequency=100ms")


@pytest.fixture
def scenario() -> Scenario:
    """A GPU that draws nothing by itself, with two processes at 60 and 40 percent."""
    gpu = Gpu(0, uuid="GPU-a", watts=0, energy_mj=0, accounting=1)
    return Scenario([gpu], [Process(0, 42, sm=60), Process(0, 43, sm=40)])


@pytest.fixture
def procfs(tmp_path: Path) -> str:
    """A /proc without processes: pids of the scenario may exist on this machine."""
    folder = tmp_path / "proc"
    folder.mkdir()
    (folder / "stat").write_text("btime 1690000000\n")
    return f"--path.procfs={folder}"


def world(scenario: Scenario, folder: Path, *dcgm: str, major: int = 4) -> dict[str, str]:
    """An environment with both libraries, each in a folder of its own."""
    driver = fakedriver.environment(scenario.write(folder / "driver"))
    lines = ("gpu 0 GPU-a", *dcgm)
    both = fakedcgm.environment(
        fakedcgm.write(folder / "dcgm", *lines), driver["LD_LIBRARY_PATH"], major=major, calls=folder / "calls"
    )
    return surroundings(None, **(driver | both))


def values(body: str, name: str) -> dict[str, float]:
    """A metric by pid, summed over its other labels; by "" where there is no pid."""
    found: dict[str, float] = {}
    for family in parse(body):
        for sample in family.samples:
            if sample.name == name:
                pid = sample.labels.get("pid", "")
                found[pid] = found.get(pid, 0) + sample.value
    return found


def test_a_shared_gpu_once_in_our_books_and_twice_in_dcgms(scenario: Scenario, tmp_path: Path, procfs: str) -> None:
    """400 J at 60 to 40: the first has more of ours, DCGM has 400 for each, and only ours add up to the GPU."""
    told = [f"pid {pid} gpu=0 energy_mj=400000 sm=100 mem=20 max_memory=1024 others=1" for pid in (42, 43)]
    env = world(scenario, tmp_path, *told)

    with serving(*ON, procfs, env=env) as server:
        server.metrics('^gpu_process_busy_seconds_total{pid="42".*} [1-9]', within_s=20)
        scenario.gpus[0].energy_mj = 400_000
        scenario.write(tmp_path / "driver")
        body = server.metrics(r"^gpu_energy_joules_total{.*} 400(\.0)?$", within_s=20)

    ours, dcgms = values(body, "gpu_process_energy_joules_total"), values(body, "gpu_process_dcgm_energy_joules")
    device = values(body, "gpu_energy_joules_total")[""]
    nobodys = values(body, "gpu_unattributed_energy_joules_total").get("", 0)
    assert dcgms == {"42": 400, "43": 400}
    assert ours.keys() == {"42", "43"}
    assert ours["42"] > ours["43"] > 60
    assert (round(1000 * (sum(ours.values()) + nobodys)), device) == (400_000, 400)
    assert values(body, "gpu_process_dcgm_sm_utilization_ratio") == {"42": 1, "43": 1}
    assert values(body, "gpu_process_dcgm_other_processes") == {"42": 1, "43": 1}
    assert values(body, "gpu_process_dcgm_max_memory_bytes") == {"42": 1024, "43": 1024}
    assert 'gpuledger_dcgm_info{version="4.0.0",library="libdcgm.so.4",mode="embedded"} 1' in body
    assert "gpuledger_dcgm_up 1" in body


def test_an_older_dcgm_through_an_nv_hostengine(scenario: Scenario, tmp_path: Path, procfs: str) -> None:
    """libdcgm.so.3 is found where there is no .4; the watch has the period that was asked for."""
    env = world(scenario, tmp_path, "engine unix:/tmp/engine", "pid 42 gpu=0 energy_mj=1500", major=3)

    with serving(*ON, procfs, "--dcgm.hostengine=unix:///tmp/engine", env=env) as server:
        body = server.metrics("^gpu_process_dcgm_energy_joules")
        code, _, errors = server.stop()

    assert values(body, "gpu_process_dcgm_energy_joules") == {"42": 1.5}
    assert 'gpuledger_dcgm_info{version="3.0.0",library="libdcgm.so.3",mode="hostengine"} 1' in body
    assert "dcgmWatchPidFields period_us=100000 keep_s=3600 keep_samples=0" in (tmp_path / "calls").read_text()
    assert (tmp_path / "calls").read_text().splitlines()[-2:] == ["dcgmDisconnect", "dcgmShutdown"]
    assert code == 0
    assert "Traceback" not in errors


def test_a_library_that_is_not_there(scenario: Scenario, tmp_path: Path, procfs: str) -> None:
    """StateLog once, in the log and in a metric; everything else goes on."""
    env = surroundings(scenario.write(tmp_path / "driver"))

    with serving(*ON, procfs, "--dcgm.library=/no/libdcgm.so.4", env=env) as server:
        body = server.metrics("^gpuledger_ticks_total ([5-9]|[0-9]{2,})$")
        _, _, errors = server.stop()

    assert "gpuledger_dcgm_up 0" in body
    assert 'gpuledger_stage_success{stage="dcgm"} 1' in body
    assert not values(body, "gpu_process_dcgm_energy_joules")
    assert values(body, "gpu_process_active") == {"42": 1, "43": 1}
    assert errors.count("DCGM statistics are missing: cannot load libdcgm: /no/libdcgm.so.4: cannot open") == 1


@pytest.mark.parametrize("call", ["dcgmStartEmbedded_v2", "dcgmGetPidInfo"])
def test_a_dcgm_that_hangs(call: str, scenario: Scenario, tmp_path: Path, procfs: str) -> None:
    """No tick waits for it, and the end does not either."""
    env = world(scenario, tmp_path, f"hang {call}")

    with serving(*ON, procfs, env=env) as server:
        body = server.metrics("^gpuledger_ticks_total ([5-9]|[0-9]{2,})$")
        code, took_s, errors = server.stop()

    assert 'gpuledger_stage_success{stage="dcgm"} 1' in body
    assert code == 0
    assert took_s < 2
    assert "Traceback" not in errors


def test_once_waits_for_dcgm(scenario: Scenario, tmp_path: Path, procfs: str) -> None:
    """A single reading has its numbers too."""
    env = world(scenario, tmp_path, "pid 42 gpu=0 energy_mj=1500")

    done = gpuledger("once", "--tick.interval=100ms", "--environment=none", "--collector.dcgm", procfs, env=env)

    assert values(done.stdout, "gpu_process_dcgm_energy_joules") == {"42": 1.5}
    assert (tmp_path / "calls").read_text().splitlines()[-2:] == ["dcgmStopEmbedded", "dcgmShutdown"]


def test_off_it_is_not_there(scenario: Scenario, tmp_path: Path, procfs: str) -> None:
    """The default: no library in the process, no thread, no call, no metric."""
    env = world(scenario, tmp_path, "pid 42 gpu=0 energy_mj=1500")

    with serving(*FAST, procfs, env=env) as server:
        body = server.metrics("^gpuledger_ticks_total [3-9]")
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
        threads = [path.read_text() for path in Path(f"/proc/{server.process.pid}/task").glob("*/comm")]

    assert not re.search("^gpu.*dcgm", body, re.MULTILINE)
    assert "libnvidia-ml" in maps
    assert "libdcgm" not in maps
    assert "dcgm\n" not in threads
    assert not (tmp_path / "calls").exists()


def test_off_nothing_is_imported() -> None:
    """Neither the collector nor its binding."""
    code = (
        "import sys; import gpuledger.cli.serve, gpuledger.driver.source;"
        "print([name for name in sys.modules if name.startswith('gpuledger.integrations.dcgm.')])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_recording_has_no_processes_of_this_host(tmp_path: Path) -> None:
    """DCGM is not asked about them, and that is said."""
    env: Mapping[str, str] = world(Scenario(), tmp_path)

    with serving("demo", *ON, env=env) as server:
        body = server.metrics("^gpuledger_ticks_total [3-9]")
        _, _, errors = server.stop()

    assert "gpuledger_dcgm_up" not in body
    assert errors.count("collector.dcgm has no effect on a recording") == 1
