"""A driver and GPUs that report wrong values: renumbered, reset, lost or slow."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.running import serving, surroundings
from tests.fakedriver import Gpu, Scenario

A, B = (f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "ab")


def numbers(body: str, name: str) -> dict[str, float]:
    """The series of a metric, by labels."""
    return {labels: float(value) for labels, value in re.findall(rf"^{name}{{(.*)}} (\S+)$", body, re.MULTILINE)}


def test_a_driver_reload_renumbers_the_gpus(tmp_path: Path) -> None:
    """The driver is reloaded with the GPUs in the other order, and one of them does not answer: each uuid once."""
    scenario = Scenario(gpus=[Gpu(index=0, uuid=A), Gpu(index=1, uuid=B)])
    path = scenario.write(tmp_path / "scenario")
    with serving("serve", "--tick.interval=100ms", env=surroundings(path)) as server:
        server.metrics(rf'^gpu_up{{gpu="1",uuid="{B}"}} 1$')
        scenario.extra = ["unloaded"]
        scenario.write(path)
        server.metrics("^gpuledger_up 0$")
        scenario.gpus = [Gpu(index=0, uuid=B), Gpu(index=1, uuid=A)]
        scenario.extra = ["lost 1"]
        scenario.write(path)
        renumbered = server.metrics(rf'^gpu_up{{gpu="0",uuid="{B}"}} 1$')
        scenario.extra = []
        scenario.write(path)
        answers = server.metrics(rf'^gpu_up{{gpu="1",uuid="{A}"}} 1$')

    assert numbers(renumbered, "gpu_up") == {f'gpu="0",uuid="{B}"': 1, 'gpu="1",uuid=""': 0}
    assert numbers(answers, "gpu_up") == {f'gpu="0",uuid="{B}"': 1, f'gpu="1",uuid="{A}"': 1}
    assert len(numbers(renumbered, "gpu_energy_joules_total")) == 1


def test_two_gpus_with_one_uuid(tmp_path: Path) -> None:
    """The driver reports the same uuid for two GPUs: one of them is down, and no total counts twice."""
    path = Scenario(gpus=[Gpu(index=0, uuid=A), Gpu(index=1, uuid=A)]).write(tmp_path / "scenario")
    with serving("serve", "--tick.interval=100ms", env=surroundings(path)) as server:
        body = server.metrics("^gpu_up")

    assert numbers(body, "gpu_up") == {f'gpu="0",uuid="{A}"': 1, 'gpu="1",uuid=""': 0}
