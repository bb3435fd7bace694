"""The arithmetic of counters and gauges in one cell, evaluated by promtool: no joule is lost, none counts twice."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from gpuledger.tools.prometheus.expression import Expression, series
from gpuledger.tools.report import promql
from gpuledger.tools.report.promql import Counter, Gauge
from gpuledger.tools.report.queries import GROUPINGS, Quantity, Step, find_grouping, queries
from tests.components import program

pytestmark = pytest.mark.needs("promtool")

STEP, GAP = "300000ms", "3600000ms"
EVAL = "10m"
"""The end of the cell, which starts at 5m. A series has one value per minute from 0m to 10m."""
GPU = 'gpu_up{job="gpuledger",uuid="G"}'
ALWAYS = "1x10"
APPEARS = "_x6 1x4"
"""From 6m on, which is in the cell."""
RETURNS = "1x2 _x3 1x4"
"""Present until 2m, absent, and back from 6m on."""


def evaluate(expressions: list[Expression], samples: dict[str, str], folder: Path) -> list[float]:
    """The sums of these expressions at the end of the cell."""
    values = []
    for expression in expressions:
        test = {
            "evaluation_interval": "1m",
            "tests": [{
                "interval": "1m",
                "input_series": [{"series": name, "values": points} for name, points in samples.items()],
                "promql_expr_test": [{"expr": f"sum({expression}) or vector(0)", "eval_time": EVAL, "exp_samples": []}],
            }],
        }  # fmt: skip
        path = folder / "test.yml"
        path.write_text(yaml.safe_dump(test))
        # promtool reports the value it got as a mismatch with the (empty) expectation.
        output = subprocess.run(
            [program("promtool"), "test", "rules", str(path)], capture_output=True, text=True, check=False
        )
        got = next(line for line in (output.stdout + output.stderr).splitlines() if "got:" in line)
        values.append(float(got.split("Value:")[1].split("}")[0]) if "Value:" in got else float(got.split()[-1]))
    return values


def increase(counter: Counter, samples: dict[str, str], folder: Path) -> list[float]:
    """All terms of the increase; those for new devices too, which add nothing if there are none."""
    terms = [*counter.increases(STEP, GAP), *counter.increases_on_new_devices(STEP, GAP)]
    return evaluate(terms, samples, folder)


HARDWARE = Counter(series("c"), ("uuid",), of_hardware=True)
BOOKED = Counter(series("c"), ("uuid", "id"))
HIDDEN = Counter(series("c"), ("uuid", "id"), may_hide=True)
SERIES = 'c{uuid="G",id="a"}'

CASES = {
    "continued": (BOOKED, {GPU: ALWAYS, SERIES: "0+10x10"}, 50),
    "continued, by two jobs": (
        BOOKED,
        {GPU: ALWAYS, 'c{uuid="G",id="a",job="x"}': "0+10x10", 'c{uuid="G",id="a",job="y"}': "0+10x10"},
        50,
    ),
    "renamed": (
        BOOKED,
        {GPU: ALWAYS, 'c{uuid="G",id="a",pod=""}': "0+10x6", 'c{uuid="G",id="a",pod="p"}': "_x7 70+10x3"},
        50,
    ),
    "reset": (BOOKED, {GPU: ALWAYS, SERIES: "0+10x7 5+10x2"}, 20 + 25),
    "reset of a hardware counter": (HARDWARE, {GPU: ALWAYS, 'c{uuid="G"}': "1000+10x7 5+10x2"}, 20 + 20),
    "born on a known GPU": (BOOKED, {GPU: ALWAYS, SERIES: "_x7 30+10x3"}, 60),
    "exited": (BOOKED, {GPU: ALWAYS, SERIES: "0+10x7"}, 20),
    "hidden and back": (HIDDEN, {GPU: ALWAYS, SERIES: "100+10x2 _x4 150+10x3"}, 180 - 120),
    "born, may hide": (HIDDEN, {GPU: ALWAYS, SERIES: "_x7 30+10x3"}, 60),
    "found with a new GPU": (BOOKED, {GPU: APPEARS, SERIES: "_x6 500+10x4"}, 40),
    "hardware counter of a new GPU": (HARDWARE, {GPU: APPEARS, 'c{uuid="G"}': "_x6 9000+10x4"}, 40),
    "bridged": (BOOKED, {GPU: RETURNS, SERIES: "0+10x2 _x3 100+10x4"}, 140 - 20),
    "hardware counter, bridged": (HARDWARE, {GPU: RETURNS, 'c{uuid="G"}': "900+10x2 _x3 1000+10x4"}, 1040 - 920),
    "born in a gap": (BOOKED, {GPU: RETURNS, SERIES: "_x6 100+10x4"}, 140),
}


@pytest.mark.parametrize("name", CASES)
def test_increase(name: str, tmp_path: Path) -> None:
    """Each case of the module's docstring: the terms add up to the increase, and none is negative."""
    counter, samples, expected = CASES[name]
    terms = increase(counter, samples, tmp_path)

    assert min(terms) >= 0
    assert sum(terms) == pytest.approx(expected)


def test_cells_are_contiguous(tmp_path: Path) -> None:
    """Value times seconds of a gauge: five samples stand for the five minutes since the sample before them."""
    samples = {
        'gpuledger_tick_timestamp_seconds{instance="i",job="gpuledger"}': "1000+60x10",
        'g{instance="i",job="gpuledger",uuid="G"}': "2x10",
        'half{instance="i",job="gpuledger",uuid="G"}': "_x8 1x2",
    }
    seconds = promql.gpu_seconds(promql.presence(Gauge(series("half"), ("uuid",)), 300_000), (), 300_000)

    assert evaluate([promql.integral(Gauge(series("g"), ("uuid",)), 300_000), seconds], samples, tmp_path) == [
        600.0,
        180.0,
    ]


def test_devices(tmp_path: Path) -> None:
    """GPUs in a cell, and those that were not there at its start."""
    samples = {GPU: ALWAYS, 'gpu_up{job="gpuledger",uuid="H"}': APPEARS}

    assert evaluate([promql.devices(STEP), promql.new_devices(STEP)], samples, tmp_path) == [2.0, 1.0]


@pytest.mark.parametrize("by", [*GROUPINGS, "label:team"])
def test_queries_are_short_enough_for_every_server(by: str) -> None:
    """VictoriaMetrics rejects queries of more than 16 KiB; label names may be up to 317 characters long."""
    grouping = find_grouping(by if by in GROUPINGS else f"label:{'x' * 317}")
    texts = [query.promql.text for query in queries(grouping, Step(300_000, 3_600_000), Quantity.SHARED, by_model=True)]

    assert max(map(len, texts)) < 13 * 1024
