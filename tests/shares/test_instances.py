"""The power of MIG instances, by their activity."""

from __future__ import annotations

from math import sqrt

import pytest

from gpuledger.shares.instances import POWER_SD, instance_shares
from gpuledger.shares.kalman import LEAST_ERROR
from gpuledger.shares.units import GPM, POWER, UNITS, Activities

SM, DRAM, REST = (1.0, *[0.0] * 6), (*[0.0] * 6, 1.0), (0.0,) * 7
PROGRAMS: dict[str, tuple[Activities, float]] = {
    "matmul": ((0.95, 0.14, 0.93, 0.0, 0.0, 0.0, 0.17), 570.0),
    "copy": ((0.99, 0.8, 0.0, 0.0, 0.0, 0.0, 0.88), 360.0),
    "decode": ((0.88, 0.12, 0.03, 0.0, 0.0, 0.0, 0.88), 520.0),
    "fft": ((0.97, 0.46, 0.0, 0.0, 0.27, 0.0, 0.67), 575.0),
    "infer": ((0.1, 0.02, 0.05, 0.0, 0.0, 0.0, 0.02), 75.0),
    "sort": ((0.9, 0.3, 0.0, 0.0, 0.0, 0.0, 0.5), 440.0),
    "embed": ((0.95, 0.5, 0.0, 0.0, 0.01, 0.03, 0.2), 365.0),
}
"""Activity, and watts above parked power on a whole H200."""


def test_power_is_size_times_the_power_of_an_average_program() -> None:
    """Three sevenths of the GPU with busy SMs, four sevenths with busy memory."""
    sm = GPM.usual[UNITS.index("sm")] + GPM.mean[POWER] / GPM.mean[UNITS.index("sm")]
    dram = GPM.usual[UNITS.index("dram")]

    shares = instance_shares({"a": (3 / 7, SM), "b": (4 / 7, DRAM), "c": (1 / 7, REST)})

    assert {uuid: share for uuid, (share, _) in shares.items()} == pytest.approx({
        "a": 3 * sm / (3 * sm + 4 * dram), "b": 4 * dram / (3 * sm + 4 * dram), "c": 0.0,
    })  # fmt: skip


def test_seven_instances() -> None:
    """Made-up, with measured powers of programs: less energy is booked to a wrong instance than by equal shares."""
    shares = instance_shares({name: (1 / 7, activity) for name, (activity, _) in PROGRAMS.items()})
    total = sum(watts for _, watts in PROGRAMS.values())

    wrong = sum(abs(watts / total - shares[name][0]) for name, (_, watts) in PROGRAMS.items()) / 2

    assert sum(abs(watts / total - 1 / 7) for _, watts in PROGRAMS.values()) / 2 > 0.12
    assert wrong < 0.11


def test_the_error_is_that_of_the_power_of_each_instance() -> None:
    """That is s (1 - s) times the relative deviations of both, and the error that no observation reduces."""
    shares = instance_shares({"a": (1 / 4, SM), "b": (3 / 4, SM)})

    expected = sqrt((0.25 * 0.75) ** 2 * 2 * POWER_SD**2 + LEAST_ERROR**2)
    assert [error for _, error in shares.values()] == pytest.approx([expected] * 2)


def test_an_instance_alone_has_all_power() -> None:
    """The others rest; only the least error is left."""
    shares = instance_shares({"a": (0.5, SM), "b": (0.5, REST)})

    assert shares == {"a": (1.0, LEAST_ERROR), "b": (0.0, LEAST_ERROR)}


@pytest.mark.parametrize("instances", [{}, {"a": (1.0, REST)}, {"a": (0.5, REST), "b": (0.5, REST)}])
def test_no_activity_has_no_shares(instances: dict[str, tuple[float, Activities]]) -> None:
    """There is nothing to divide by."""
    assert instance_shares(instances) == {}


@pytest.mark.parametrize("heavy", ["matmul", "copy", "decode", "fft"])
def test_a_light_program_beside_a_heavy_one(heavy: str) -> None:
    """Both have half of an H200; the light one draws 75 W on a whole GPU, and equal shares are off by more than 0.3."""
    watts, light = PROGRAMS[heavy][1], PROGRAMS["infer"][1]

    shares = instance_shares({name: (1 / 2, PROGRAMS[name][0]) for name in ("infer", heavy)})

    assert shares["infer"][0] == pytest.approx(light / (light + watts), abs=0.07)
