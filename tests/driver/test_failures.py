"""Nothing kills it: every way a driver or a GPU can go away, and how the source comes back."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpuledger.model import Tick
from tests import fakedriver
from tests.driver.conftest import SHORT_S, Bench
from tests.fakedriver import Gpu, Scenario


def _up(tick: Tick) -> list[bool]:
    return [reading.up for reading in tick.readings]


def _lines(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if word in record.getMessage()]


def test_no_driver_then_a_driver(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Without a driver the source says why, once, and reads it as soon as it is there."""
    caplog.set_level(logging.INFO)
    bench.write("unloaded")
    ticks = [bench.read() for _ in range(5)]
    assert {(tick.driver.up, tick.readings) for tick in ticks} == {(False, ())}
    assert ticks[0].driver.reason == "nvmlInit: Driver Not Loaded"
    assert len(_lines(caplog, "Driver Not Loaded")) == 1

    bench.write()
    bench.later(2)

    assert bench.read().driver.up
    assert len(_lines(caplog, "is up with 1 GPU")) == 1
    assert not _lines(caplog, "1 GPUs")


@pytest.mark.parametrize(
    ("line", "kind", "fix"),
    [
        ("unloaded", "not_loaded", "`sudo modprobe nvidia`"),
        ("error nvmlInit* code=4", "permission", "sudo chmod a+rw /dev/nvidiactl"),
        ("error nvmlInit* code=18", "version_mismatch", "sudo rmmod nvidia_uvm"),
        ("error nvmlInit* code=12", "library_not_found", "docker run --gpus all"),
        ("error nvmlInit* code=999", "nvml", "check `nvidia-smi`"),
    ],
)
def test_the_problem_of_a_driver_carries_its_fix(bench: Bench, line: str, kind: str, fix: str) -> None:
    """By NVML's error code; its own words are in the text."""
    bench.write(line)

    problem = bench.read().driver.problem

    assert problem is not None
    assert (problem.kind, fix in problem.fix) == (kind, True)
    assert problem.what.startswith("nvmlInit: ")


@pytest.mark.parametrize(
    ("line", "kind", "fix"),
    [
        ("lost 1", "lost", "`sudo nvidia-smi --gpu-reset -i 1`"),
        ("error nvmlDeviceGetMemoryInfo* code=16 gpu=1", "reset_required", "`sudo nvidia-smi --gpu-reset -i 1`"),
        ("error nvmlDeviceGetMemoryInfo* code=28 gpu=1", "gpu_not_found", "`nvidia-smi -L`"),
        ("hang nvmlDeviceGetTotalEnergyConsumption gpu=1", "hang", "reboot"),
    ],
)
def test_the_problem_of_a_gpu_carries_its_fix(bench: Bench, line: str, kind: str, fix: str) -> None:
    """With the index of the GPU in the command."""
    bench.timeout_s = SHORT_S
    bench.scenario.gpus.append(Gpu(index=1))
    bench.write()
    bench.read()
    bench.write(line)

    first, second = bench.read().readings

    assert first.problem is None
    assert second.problem is not None
    assert (second.problem.kind, fix in second.problem.fix) == (kind, True)


def test_a_driver_without_gpus(bench: Bench) -> None:
    """It is up, and says what is missing."""
    bench.scenario.gpus.clear()
    bench.write()

    driver = bench.read().driver

    assert driver.up
    assert driver.problem is not None
    assert (driver.problem.kind, "docker run --gpus all" in driver.problem.fix) == ("no_gpu", True)


def test_failed_calls_are_problems_with_a_fix(bench: Bench) -> None:
    """Beside the count of the metric."""
    bench.write("error nvmlDeviceGetTotalEnergyConsumption code=999")
    bench.read()

    (problem,) = bench.source.problems()

    assert bench.source.errors() == {("nvmlDeviceGetTotalEnergyConsumption", "Unknown Error"): 1}
    assert problem.what == "nvmlDeviceGetTotalEnergyConsumption failed once: Unknown Error; its value is missing"
    assert (problem.kind, problem.severity, problem.about) == ("nvml", "warning", "driver")
    assert problem.fix.startswith("check `nvidia-smi`")


def test_driver_is_not_tried_in_every_tick(bench: Bench) -> None:
    """A driver that is away is tried after 1 s, 2 s, 4 s ... 30 s, not every tick."""
    bench.write("unloaded")
    bench.read()
    bench.write()

    assert not bench.read().driver.up
    bench.later(1.1)
    assert bench.read().driver.up


def test_driver_reloaded(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """While the driver is away its GPUs are down, with the reason; then all of it comes back by itself."""
    caplog.set_level(logging.INFO)
    uuid = bench.reading().device.uuid
    bench.write("unloaded")

    away = bench.read()

    assert not away.driver.up
    assert [(r.device.uuid, r.up) for r in away.readings] == [(uuid, False)]
    bench.write()
    back = bench.until(lambda tick: tick.driver.up)
    assert _up(back) == [True]
    assert len(_lines(caplog, "the driver cannot be read")) == 1


def test_one_gpu_lost_among_others(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A GPU that falls off the bus is down; the other goes on; it comes back with new readings."""
    caplog.set_level(logging.INFO)
    bench.scenario.gpus.append(Gpu(index=1))
    bench.write()
    bench.read()
    bench.write("lost 1")

    ticks = [bench.read() for _ in range(4)]

    assert {tuple(_up(tick)) for tick in ticks} == {(True, False)}
    assert "GPU is lost" in ticks[0].readings[1].reason
    assert len(_lines(caplog, "GPU 1 is down")) == 1
    bench.write()
    bench.until(lambda tick: _up(tick) == [True, True])
    assert len(_lines(caplog, "GPU 1 is up again")) == 1


def test_gpu_lost_before_the_first_reading(bench: Bench) -> None:
    """A GPU that was never readable is down under its index; nothing else is known of it."""
    bench.scenario.gpus.append(Gpu(index=1))
    bench.write("lost 1")

    tick = bench.read()

    assert _up(tick) == [True, False]
    assert (tick.readings[1].device.index, tick.readings[1].device.uuid) == (1, "")


def test_only_gpu_lost(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """When no GPU answers for 30 ticks the driver is opened anew, and the GPU is down all the while, not gone."""
    bench.read()
    bench.write("lost 0")

    assert {tuple(_up(bench.read())) for _ in range(40)} == {(False,)}
    assert len(_lines(caplog, "no GPU answers")) == 1
    bench.write()
    bench.until(lambda tick: _up(tick) == [True])


def test_every_call_fails(bench: Bench) -> None:
    """A GPU whose calls all fail with an unknown error is down, not up with no numbers."""
    bench.read()
    bench.write("error nvmlDeviceGet* code=999", "error nvmlGpm* code=999")

    reading = bench.read().readings[0]

    assert not reading.up
    assert "Unknown Error" in reading.reason


def test_hanging_call_costs_one_gpu_and_one_thread(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A call that never returns: its GPU is down with the call's name, ticks go on at once, no thread piles up."""
    bench.timeout_s = SHORT_S
    caplog.set_level(logging.INFO)
    bench.scenario.gpus.append(Gpu(index=1))
    bench.write()
    bench.read()
    bench.write("hang nvmlDeviceGetTotalEnergyConsumption gpu=1")
    bench.read()
    threads = threading.active_count()
    started = time.monotonic()

    ticks = [bench.read() for _ in range(5)]

    assert time.monotonic() - started < 5 * SHORT_S  # without waiting for the timeout again in each
    assert {tuple(_up(tick)) for tick in ticks} == {(True, False)}
    assert ticks[0].readings[1].reason == "nvmlDeviceGetTotalEnergyConsumption does not return"
    assert threading.active_count() <= threads  # one of an earlier test may have ended
    assert len(_lines(caplog, "GPU 1 is down")) == 1
    bench.write()
    bench.until(lambda tick: _up(tick) == [True, True])


def test_hanging_init(bench: Bench) -> None:
    """An nvmlInit that never returns leaves the driver down, ticks go on, and it is up when the call returns."""
    bench.timeout_s = SHORT_S
    bench.write("hang nvmlInitWithFlags")

    assert bench.read().driver.reason == "nvmlInit does not return"
    assert not bench.read().driver.up
    bench.write()
    assert bench.until(lambda tick: tick.driver.up).readings[0].up


def test_driver_gone_while_a_call_hangs(bench: Bench) -> None:
    """The driver is not opened again over a thread that is still inside it."""
    bench.timeout_s = SHORT_S
    bench.scenario.gpus.append(Gpu(index=1))
    bench.write()
    bench.read()
    bench.write("hang nvmlDeviceGetTotalEnergyConsumption gpu=1")
    bench.read()
    bench.write("hang nvmlDeviceGetTotalEnergyConsumption gpu=1", "error nvmlDeviceGetMemoryInfo_v2 gpu=0 code=1")
    bench.until(lambda tick: not tick.driver.up)
    bench.later(60)

    assert "nvmlDeviceGetTotalEnergyConsumption" in bench.read().driver.reason
    bench.write()
    bench.until(lambda tick: tick.driver.up and _up(tick) == [True, True])


def test_gpu_added_and_taken_away(bench: Bench) -> None:
    """Hotplug: a new number of GPUs is noticed within ten ticks and read."""
    bench.read()
    bench.scenario.gpus.append(Gpu(index=1))
    bench.write()
    bench.until(lambda tick: _up(tick) == [True, True], tries=15)

    bench.scenario.gpus.pop()
    bench.write()

    bench.until(lambda tick: _up(tick) == [True], tries=15)


def test_tick_takes_as_long_as_the_slowest_gpu(bench: Bench) -> None:
    """Eight GPUs with a call of 0.3 s are read side by side: far less than the sum of 2.4 s."""
    bench.scenario.gpus = [Gpu(index=i) for i in range(8)]
    bench.write("latency nvmlDeviceGetTotalEnergyConsumption us=300000")
    bench.read()
    started = time.monotonic()

    tick = bench.read()

    assert _up(tick) == [True] * 8
    assert time.monotonic() - started < 1.5


def test_read_is_never_in_the_drivers_hands(bench: Bench) -> None:
    """Closing while a call hangs returns at once."""
    bench.timeout_s = SHORT_S
    bench.read()
    bench.write("hang nvmlDeviceGetMemoryInfo_v2")
    bench.read()
    started = time.monotonic()

    bench.source.close()

    assert time.monotonic() - started < SHORT_S


MISMATCH = """
import shutil, sys, time
from pathlib import Path
from gpuledger.driver.source import NvmlSource
scenario, library = Path(sys.argv[1]), Path(sys.argv[2])
source = NvmlSource()
assert source.read().driver.up
healthy = scenario.read_text()
scenario.write_text(healthy + "error nvmlDeviceGet* code=18\\nerror nvmlInitWithFlags code=18\\n")
shutil.copy(library, library.with_suffix(".new"))
library.with_suffix(".new").replace(library)
time.sleep(0.01)
assert not source.read().driver.up
scenario.write_text(healthy)
for _ in range(100):
    time.sleep(0.1)
    if source.read().driver.up:
        print([line for line in Path("/proc/self/maps").read_text().splitlines() if "libnvidia-ml" in line][0])
        break
"""


def test_driver_replaced_by_another_version(tmp_path: Path) -> None:
    """LIB_RM_VERSION_MISMATCH: the old library is let go, and the one that is now on disk is loaded."""
    scenario = Scenario(gpus=[Gpu(index=0)]).write(tmp_path / "scenario")
    library = shutil.copy(fakedriver.build() / fakedriver.LIBRARY, tmp_path / fakedriver.LIBRARY)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "LD_LIBRARY_PATH": str(tmp_path),
        "FAKE_NVML_SCENARIO": str(scenario),
    }

    done = subprocess.run(
        [sys.executable, "-c", MISMATCH, str(scenario), str(library)],
        env=environment, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(fakedriver.LIBRARY)  # else "(deleted)"


def test_no_library(tmp_path: Path) -> None:
    """On a host without libnvidia-ml the source reports it and keeps running."""
    code = "from gpuledger.driver.source import NvmlSource; print(NvmlSource().read().driver.reason)"
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "LD_LIBRARY_PATH": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=30, check=False
    )

    assert done.stdout == "nvmlInit: NVML Shared Library Not Found\n", done.stderr


def test_slow_count_is_not_taken_for_something_else(bench: Bench) -> None:
    """A count of GPUs that comes late is a count: the next look finds a new GPU, and a reload still works."""
    bench.timeout_s = SHORT_S
    for _ in range(9):
        bench.read()
    bench.write("hang nvmlDeviceGetCount_v2")
    bench.read()
    bench.scenario.gpus.append(Gpu(index=1))
    bench.write()
    bench.until(lambda tick: _up(tick) == [True, True], tries=25)

    bench.write("unloaded")
    bench.until(lambda tick: not tick.driver.up)
    bench.write()
    bench.until(lambda tick: _up(tick) == [True, True])


def test_gpu_that_never_answered_is_down_and_not_missing(bench: Bench) -> None:
    """Also after the driver was lost in the meantime."""
    bench.timeout_s = SHORT_S
    bench.write("hang nvmlDeviceGetHandleByIndex_v2")
    assert _up(bench.read()) == [False]

    bench.write("unloaded")

    assert _up(bench.until(lambda tick: not tick.driver.up)) == [False]


def test_trouble_leaves_no_garbage(bench: Bench) -> None:
    """Errors handed from thread to thread hold no cycles: a GPU that is lost for days costs no memory."""
    bench.scenario.gpus.append(Gpu(index=1))
    bench.write("lost 1")
    bench.read()
    gc.collect()
    gc.disable()
    try:
        for _ in range(30):
            bench.later(31)
            bench.read()
        assert gc.collect() < 200
    finally:
        gc.enable()
