"""The power of MIG instances, on made-up programs whose power is known."""

from __future__ import annotations

from math import sqrt
from random import Random

import pytest

from gpuledger.shares.instances import MOST_PROGRAMS, Instance, InstancePower, shares_of

PROGRAMS = {
    "matmul": ((0.95, 0.14, 0.93, 0.0, 0.0, 0.0, 0.0, 0.17), 570.0),
    "copy": ((0.99, 0.8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.88), 360.0),
    "decode": ((0.88, 0.12, 0.03, 0.0, 0.0, 0.0, 0.0, 0.88), 520.0),
    "fft": ((0.97, 0.46, 0.0, 0.0, 0.0, 0.27, 0.0, 0.67), 575.0),
    "infer": ((0.1, 0.02, 0.05, 0.0, 0.0, 0.0, 0.0, 0.02), 75.0),
    "sort": ((0.9, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5), 440.0),
    "embed": ((0.95, 0.5, 0.0, 0.0, 0.0, 0.01, 0.03, 0.2), 365.0),
}
"""Activity, and power above parked power on a whole GPU."""


def instances_of(names: list[str], working: list[str]) -> dict[str, Instance]:
    """An instance for each program; some of them work."""
    return {
        name: Instance(PROGRAMS[name][0] if name in working else (0.0,) * 8, 1 / len(names), name) for name in names
    }


def divide(model: InstancePower, working: list[str], random: Random) -> float:
    """One second in which some of the programs work, each in its instance; the part of the energy booked wrongly."""
    true = {name: (watts / len(PROGRAMS) if name in working else 0.0) for name, (_, watts) in PROGRAMS.items()}
    power_w = sum(true.values()) * random.uniform(0.97, 1.03)
    watts = model.divide(instances_of(list(PROGRAMS), working), power_w, 1.0, 700.0)
    whole = sum(power for power, _ in watts.values()) or 1.0
    return sum(abs(true[name] / sum(true.values()) - watts[name][0] / whole) for name in PROGRAMS) / 2


@pytest.mark.parametrize(("seconds", "most"), [(0, 0.1), (10, 0.05)])
def test_seven_instances(seconds: int, most: float) -> None:
    """By the model of the power alone, and after they began one after another."""
    model, random, names = InstancePower(), Random(1), list(PROGRAMS)
    for count in range(1, len(names)):
        for _ in range(seconds):
            divide(model, names[:count], random)

    errors = [divide(model, names, random) for _ in range(20)]

    assert sum(errors) / len(errors) < most
    equal = sum(abs(watts / 2905 - 1 / 7) for _, watts in PROGRAMS.values()) / 2
    assert equal > 0.12


@pytest.mark.parametrize("count", [2, 3, 7])
def test_errors_cover_the_truth(count: int) -> None:
    """The true share is within one standard deviation in 60 to 80 % of the seconds, while programs begin and end."""
    random = Random(count)
    covered: list[bool] = []
    for _ in range(40):
        model, names, working = InstancePower(), random.sample(list(PROGRAMS), count), []
        for change in range(count + 2):
            if change < count:
                working.append(names[change])
            elif len(working) > 1:
                working.remove(random.choice(working))
            for _ in range(random.choice((2, 5, 10, 20))):
                covered += _covered(model, names, working, random)

    assert 0.6 <= round(sum(covered) / len(covered), 2) <= 0.8


def _covered(model: InstancePower, names: list[str], working: list[str], random: Random) -> list[bool]:
    """For each program that works: whether its share is at most one error from the truth."""
    true = {name: PROGRAMS[name][1] for name in working}
    power_w = sum(true.values()) / len(names) * random.uniform(0.97, 1.03)
    shares = shares_of(model.divide(instances_of(names, working), power_w, 1.0, 700.0))
    return [
        abs(true[name] / sum(true.values()) - shares[name][0]) <= sqrt(shares[name][1])
        for name in working if len(working) > 1
    ]  # fmt: skip


def test_an_instance_alone_is_measured() -> None:
    """The model may be wrong about a program: what it drew alone corrects it, and the error becomes small."""
    model, random = InstancePower(), Random(1)
    instances = {"a": Instance(PROGRAMS["copy"][0], 0.5, "copy"), "b": Instance((0.0,) * 8, 0.5, "b")}

    first = model.divide(instances, 180.0, 1.0, 700.0)["a"]
    for _ in range(30):
        last = model.divide(instances, 180.0 * random.uniform(0.99, 1.01), 1.0, 700.0)["a"]

    assert last[0] == pytest.approx(180, rel=0.03)
    assert last[1] / last[0] < first[1] / first[0]


@pytest.mark.parametrize("power_w", [0.0, 1e-9, 5000.0])
def test_odd_power_is_no_failure(power_w: float) -> None:
    """No power, or more than the limit."""
    model = InstancePower()
    instances = {name: Instance(shape, 1 / 7, name) for name, (shape, _) in PROGRAMS.items()}
    for _ in range(50):
        watts = model.divide(instances, power_w, 1.0, None)

    assert all(power >= 0 for power, _ in watts.values())


def test_corrections_are_bounded() -> None:
    """Programs come and go for months."""
    model = InstancePower()
    for number in range(MOST_PROGRAMS + 50):
        model.divide({"a": Instance(PROGRAMS["copy"][0], 1.0, number)}, 300.0, 1.0, 700.0)

    assert len(model._corrections) == MOST_PROGRAMS
