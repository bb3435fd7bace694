"""`gpuledger serve`, as a real process on the fake driver: it serves, and it stops when told."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest

from tests.cli.running import serving, surroundings
from tests.fakedriver import Gpu, Process, Scenario

FAST = "--tick.interval=100ms"


@pytest.fixture
def scenario() -> Scenario:
    """One GPU with a process."""
    return Scenario([Gpu(0, uuid="GPU-a", watts=300)], [Process(0, 42, sm=40)])


def test_it_serves_what_the_driver_says(scenario: Scenario, tmp_path: Path) -> None:
    """On the path that was asked for, with its own health."""
    env = surroundings(scenario.write(tmp_path / "scenario"))

    with serving(FAST, "--metrics-path=/gpu", env=env) as server:
        body = server.metrics("^gpuledger_up 1$", "/gpu")
        assert 'uuid="GPU-a"' in body
        assert server.get("/healthz") == "ok\n"
        code, took_s, errors = server.stop()

    assert code == 0
    assert took_s < 2
    assert [line.rpartition("msg=")[2] for line in errors.splitlines()][-1] == "stopping"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2], ids=str)
def test_signals_that_mean_reload_elsewhere(number: signal.Signals) -> None:
    """They do not end the exporter: files are reloaded when they change."""
    with serving("demo", env=surroundings()) as exporter:
        exporter.process.send_signal(number)
        time.sleep(0.3)
        exporter.metrics("^gpuledger_up 1")

        assert exporter.process.poll() is None


@pytest.mark.parametrize(
    "numbers", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGINT, signal.SIGTERM], [signal.SIGTERM] * 20], ids=str
)
def test_signals_stop_it_cleanly(numbers: list[signal.Signals], scenario: Scenario, tmp_path: Path) -> None:
    """Exit code 0 in under 2 s, with a minute to the next tick, however often it is told."""
    env = surroundings(scenario.write(tmp_path / "scenario"))
    with serving("--tick.interval=60s", env=env) as server:
        server.metrics("^gpuledger_up 1$")
        code, took_s, errors = server.stop(*numbers)

    assert code == 0
    assert took_s < 2
    assert "Traceback" not in errors


@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetFieldValues"])
def test_it_stops_while_a_driver_call_hangs(call: str, scenario: Scenario, tmp_path: Path) -> None:
    """A driver that never answers cannot keep the process: under 2 s, exit code 0."""
    scenario.extra = [f"hang {call}"]
    env = surroundings(scenario.write(tmp_path / "scenario"))

    with serving(FAST, "--driver.timeout=200ms", env=env) as server:
        server.metrics("^gpuledger_up 0$|^gpu_up{.*} 0$")
        code, took_s, errors = server.stop()

    assert code == 0
    assert took_s < 2
    assert "does not return" in errors


def test_it_stops_before_the_hang_is_noticed(scenario: Scenario, tmp_path: Path) -> None:
    """Also while the loop itself still waits for the driver, with the longest timeout there is."""
    scenario.extra = ["hang nvmlInitWithFlags"]
    env = surroundings(scenario.write(tmp_path / "scenario"))

    with serving(FAST, "--driver.timeout=60s", env=env) as server:
        assert server.get("/healthz") == "ok\n"
        code, took_s, _ = server.stop()

    assert code == 0
    assert took_s < 2


def test_without_a_driver_it_serves_and_says_so() -> None:
    """A node whose driver is not there yet is no reason to crash."""
    with serving(FAST, env=surroundings()) as server:
        server.metrics("^gpuledger_up 0$")
        assert server.get("/healthz") == "ok\n"
        code, _, errors = server.stop()

    assert code == 0
    assert errors.count("the driver cannot be read") == 1


def test_settings_that_cost_something_are_said(scenario: Scenario, tmp_path: Path) -> None:
    """In the log, as one line each, which in JSON is one object each."""
    env = surroundings(scenario.write(tmp_path / "scenario"))

    with serving("--tick.interval=6s", "--log.format=json", env=env) as server:
        server.metrics("^gpuledger_up 1$")
        _, _, errors = server.stop()

    messages = [json.loads(line)["msg"] for line in errors.splitlines()]
    assert "tick.interval is above 5s: utilization samples of short processes will be lost" in messages


def test_a_counter_that_stands_still(scenario: Scenario, tmp_path: Path) -> None:
    """Power times time takes its place, which the page says, until it moves again; no total falls or counts twice."""
    scenario.gpus[0].energy_at = 4e9  # in the future
    env = surroundings(scenario.write(tmp_path / "scenario"))
    began = time.time()

    with serving(FAST, env=env) as server:
        server.metrics('^gpu_energy_source_info{.*source="counter"} 1$')
        server.metrics('^gpu_energy_source_info{.*source="power"} 1$', within_s=20)
        server.metrics("energy counter stands still", "/api/v1/snapshot")
        by_power = joules(server.metrics("^gpu_energy_joules_total"))
        now = time.time()
        scenario.gpus[0].energy_mj, scenario.gpus[0].energy_at = round(300_000 * (now - began)), now
        scenario.write(tmp_path / "scenario")
        body = server.metrics('^gpu_energy_source_info{.*source="counter"} 1$')
        server.metrics(r"\A(?!.*energy counter){", "/api/v1/snapshot")
        most_j = 300 * (time.time() - began)

    assert 740 < by_power <= joules(body) < most_j + 100  # at least 2.5 s of 300 W
    assert 'gpu_unattributed_energy_joules_total{gpu="0",uuid="GPU-a",reason="stuck"}' in body
    assert re.search(r"^gpuledger_ledger_residual_joules{.*} 0(\.0)?$", body, re.MULTILINE)


def joules(body: str) -> float:
    """The energy of the GPU."""
    found = re.search(r"^gpu_energy_joules_total{.*} (\S+)$", body, re.MULTILINE)
    assert found is not None
    return float(found[1])
