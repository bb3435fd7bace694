"""Rows of FOCUS: allocated charges that add up to their origin charge, to the last decimal."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import ConfigError
from gpuledger.tools.report.focus import (
    COLUMNS,
    COSTS,
    METHOD,
    Charge,
    GpuHour,
    Holder,
    Issuer,
    _Gpu,
    _unrecorded,
    to_focus,
    whole_hours,
)
from gpuledger.tools.report.rates import Rates
from gpuledger.tools.report.span import Span, parse_moment

BEGIN_MS = parse_moment("2026-12-31T23:00")
HOUR_MS = 3_600_000
PRICES = Rates(kwh=0.3, gpu_hour=2.0, hours="share", currency="EUR", pue=1.3)
ISSUER = Issuer("acct", "ops")
SUMMABLE = (*COSTS, "ConsumedQuantity", "PricingQuantity")


def rows(charges: dict[Holder, Charge], prices: Rates = PRICES) -> list[dict[str, str]]:
    """The rows of one hour of one GPU."""
    hour = GpuHour("GPU-1", "NVIDIA H200", "node-7", BEGIN_MS, BEGIN_MS + HOUR_MS, charges)
    return list(csv.DictReader(io.StringIO(to_focus([hour], prices, ("namespace", "pod"), ISSUER))))


def ratio(row: dict[str, str]) -> Decimal:
    """The part of the origin charge that a row is."""
    details = json.loads(row["AllocatedMethodDetails"], parse_float=Decimal, parse_int=Decimal)
    return sum((element["AllocatedRatio"] for element in details["Elements"]), Decimal(0))


AMOUNT = st.floats(0, 1e7, allow_subnormal=False)


@given(st.lists(st.tuples(AMOUNT, AMOUNT), min_size=1, max_size=9), st.sampled_from([None, 0.0, 0.3, 1 / 3]),
       st.sampled_from([0.0, 2.0, 1e-3]))  # fmt: skip
def test_allocated_charges_add_up(amounts: list[tuple[float, float]], kwh: float | None, hour: float) -> None:
    """Each cost and quantity is exactly that of the origin charge, and the ratios are exactly 1."""
    charges = {Holder("group", ("ml", f"p{n}")): Charge(*amount) for n, amount in enumerate(amounts)}
    origin, *allocated = rows(charges, Rates(kwh, hour, "EUR", "share"))

    for name in SUMMABLE:
        assert sum((Decimal(row[name]) for row in allocated), Decimal(0)) == Decimal(origin[name])
    assert sum(map(ratio, allocated), Decimal(0)) == 1
    assert all(Decimal(row[name]) >= 0 for row in allocated for name in SUMMABLE)


def test_the_rows_of_an_hour() -> None:
    """Dimensions of an allocated charge are those of its origin; idle charges have no allocated resource."""
    charges = {Holder("group", ("ml", "=evil")): Charge(1.8e6, 2700.0), Holder("idle"): Charge(0.36e6, 900.0)}
    origin, pod, idle = rows(charges)

    assert tuple(origin) == COLUMNS
    assert (origin["ChargePeriodStart"], origin["ChargePeriodEnd"]) == ("2026-12-31T23:00:00Z", "2027-01-01T00:00:00Z")
    assert (origin["BillingPeriodStart"], origin["BillingPeriodEnd"]) == (
        "2026-12-01T00:00:00Z",
        "2027-01-01T00:00:00Z",
    )
    assert Decimal(origin["BilledCost"]) == Decimal("2.234")  # 0.6 kWh x 1.3 x 0.3 + 2
    assert (origin["ConsumedQuantity"], origin["ConsumedUnit"]) == ("0.6000000000", "kWh")
    assert [origin[name] for name in COLUMNS if name.startswith("Allocated")] == [""] * 5
    different = {name for name in COLUMNS if pod[name] != origin[name]}
    assert different == {name for name in COLUMNS if name.startswith("Allocated")} | set(SUMMABLE)
    assert (pod["AllocatedMethodId"], pod["AllocatedResourceId"]) == (METHOD, "ml/=evil")
    assert json.loads(pod["AllocatedTags"]) == json.loads(origin["Tags"]) | {
        "gpuledger/namespace": "ml", "gpuledger/pod": "=evil", "gpuledger/kind": "group",
    }  # fmt: skip
    assert (idle["AllocatedResourceId"], json.loads(idle["AllocatedTags"])["gpuledger/kind"]) == ("", "idle")
    assert json.loads(pod["AllocatedMethodDetails"])["Elements"][0]["UsageUnit"] == "kWh"


def test_unrecorded_energy_is_the_whole_difference() -> None:
    """Energy that is booked an hour after it was counted is not charged twice, and never negative."""
    gpu = _Gpu()
    for cell, (counted, booked) in enumerate([(100.0, 90.0), (100.0, 105.0), (100.0, 80.0)]):
        gpu.device[cell] = Charge(counted)
        gpu.holders[cell] = {Holder("group", ("a",)): Charge(booked)}

    assert _unrecorded(gpu, 3) == [5.0, 0.0, 20.0]


def test_only_whole_hours_are_charged() -> None:
    """A span from half past to half past loses both halves; half an hour has nothing to charge."""
    begin, end = parse_moment("2026-11-01T08:30"), parse_moment("2026-11-01T12:10")
    found = whole_hours(Span(begin, end, 60_000))

    assert (found.begin, found.end, found.cells) == ("2026-11-01T09:00:00Z", "2026-11-01T12:00:00Z", 3)
    with pytest.raises(ConfigError, match="no whole hour"):
        whole_hours(Span(begin, begin + HOUR_MS // 2, 60_000))
