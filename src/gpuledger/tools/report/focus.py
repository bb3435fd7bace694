"""`--format focus`: rows of the FinOps specification FOCUS, with its split cost allocation (since 1.3). Pure.

Each GPU and hour is one origin charge. Its allocated charges, one per group, one for idle and one for unattributed
energy, add up to it exactly in every summable column, and their ratios add up to 1. The file has both: sum the rows
with, or the rows without AllocatedMethodId.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import ROUND_DOWN, Decimal

from gpuledger import __version__
from gpuledger.tools.report.focusgather import Charge, GpuHour, Holder
from gpuledger.tools.report.formats import escape_formula
from gpuledger.tools.report.report import JOULES_PER_KWH, Prices

METHOD = "gpuledger-energy-ledger"
"""AllocatedMethodId; docs/attribution.md documents the method."""
SERVICE = "GPU"
DECIMALS = Decimal("0.0000000001")
"""Unit of costs, quantities and ratios."""
COLUMNS = (
    "AllocatedMethodDetails", "AllocatedMethodId", "AllocatedResourceId", "AllocatedResourceName", "AllocatedTags",
    "AvailabilityZone", "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd",
    "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd",
    "ChargePeriodStart", "CommitmentDiscountCategory", "CommitmentDiscountId", "CommitmentDiscountName",
    "CommitmentDiscountStatus", "CommitmentDiscountType", "ConsumedQuantity", "ConsumedUnit", "ContractedCost",
    "ContractedUnitPrice", "EffectiveCost", "HostProviderName", "InvoiceIssuerName", "ListCost", "ListUnitPrice",
    "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "RegionId", "RegionName",
    "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName", "ServiceProviderName", "SkuId",
    "SkuPriceId", "SubAccountId", "SubAccountName", "Tags",
)  # fmt: skip
COSTS = ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost")


@dataclass(frozen=True, slots=True)
class Issuer:
    """Who charges: names that a bill must have."""

    account: str
    provider: str


@dataclass(frozen=True, slots=True)
class _Share:
    """One allocated charge of an origin charge."""

    holder: Holder
    charge: Charge
    energy_cost: Decimal
    hours_cost: Decimal
    kwh: Decimal
    hours: Decimal

    @property
    def cost(self) -> Decimal:
        return self.energy_cost + self.hours_cost


def to_focus(gpu_hours: Iterable[GpuHour], prices: Prices, heads: Sequence[str], issuer: Issuer) -> str:
    """All rows as CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for gpu_hour in gpu_hours:
        for row in rows_of(gpu_hour, prices, heads, issuer):
            writer.writerow(row)
    return out.getvalue()


def rows_of(gpu_hour: GpuHour, prices: Prices, heads: Sequence[str], issuer: Issuer) -> Iterator[dict[str, str]]:
    """The origin charge of one GPU and hour, then its allocated charges."""
    shares = _shares(gpu_hour, prices)
    origin = _origin(gpu_hour, prices, issuer, shares)
    yield origin
    cost = sum((share.cost for share in shares), Decimal(0))
    energy_ratios = _split([share.energy_cost for share in shares], cost)
    hours_ratios = _split([share.hours_cost for share in shares], cost, left=1 - sum(energy_ratios, Decimal(0)))
    for share, energy_ratio, hours_ratio in zip(shares, energy_ratios, hours_ratios, strict=True):
        yield origin | _allocated(share, energy_ratio, hours_ratio, heads, gpu_hour)


def _shares(gpu_hour: GpuHour, prices: Prices) -> list[_Share]:
    """The charges of all holders, rounded so that they add up to the rounded whole."""
    charges = gpu_hour.charges
    price = prices.price_of(gpu_hour.model) or 0.0
    kwh = [charge.joules / JOULES_PER_KWH for charge in charges.values()]
    hours = [charge.seconds / 3600 for charge in charges.values()]
    columns = (
        _rounded([amount * prices.pue * (prices.kwh or 0.0) for amount in kwh]),
        _rounded([amount * price for amount in hours]),
        _rounded(kwh),
        _rounded(hours),
    )
    return [_Share(holder, charge, *amounts) for (holder, charge), *amounts in
            zip(charges.items(), *columns, strict=True)]  # fmt: skip


def _origin(gpu_hour: GpuHour, prices: Prices, issuer: Issuer, shares: Sequence[_Share]) -> dict[str, str]:
    begin, end = (datetime.fromtimestamp(ms / 1000, timezone.utc) for ms in (gpu_hour.begin_ms, gpu_hour.end_ms))
    month = begin.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    after = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
    cost = _text(sum((share.cost for share in shares), Decimal(0)))
    tags = {"gpuledger/gpu-model": gpu_hour.model, "gpuledger/node": gpu_hour.node}
    return dict.fromkeys(COLUMNS, "") | dict.fromkeys(COSTS, cost) | {
        "BillingAccountId": issuer.account,
        "BillingAccountName": issuer.account,
        "BillingCurrency": prices.currency,
        "BillingPeriodStart": _moment(month),
        "BillingPeriodEnd": _moment(after),
        "ChargeCategory": "Usage",
        "ChargeDescription": escape_formula(f"One hour of {gpu_hour.model or 'a GPU'}, with its energy"),
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": _moment(begin),
        "ChargePeriodEnd": _moment(end),
        "ConsumedQuantity": _text(sum((share.kwh for share in shares), Decimal(0))),
        "ConsumedUnit": "kWh",
        "HostProviderName": issuer.provider,
        "InvoiceIssuerName": issuer.provider,
        "PricingCategory": "Standard",
        "PricingQuantity": _text(sum((share.hours for share in shares), Decimal(0))),
        "PricingUnit": "Hours",
        "ProviderName": issuer.provider,
        "PublisherName": issuer.provider,
        "ResourceId": gpu_hour.uuid,
        "ResourceName": escape_formula(f"{gpu_hour.node} {gpu_hour.model}".strip()),
        "ResourceType": "GPU",
        "ServiceCategory": "Compute",
        "ServiceName": SERVICE,
        "ServiceProviderName": issuer.provider,
        "SkuId": "gpu-hour",
        "SkuPriceId": escape_formula(f"gpu-hour/{gpu_hour.model}" if gpu_hour.model else "gpu-hour"),
        "Tags": _json({key: value for key, value in tags.items() if value}),
    }  # fmt: skip


def _allocated(
    share: _Share, energy_ratio: Decimal, hours_ratio: Decimal, heads: Sequence[str], gpu_hour: GpuHour
) -> dict[str, str]:
    """The columns in which an allocated charge differs from its origin charge."""
    elements = [
        {"AllocatedRatio": energy_ratio, "UsageUnit": "kWh", "UsageQuantity": share.kwh},
        {"AllocatedRatio": hours_ratio, "UsageUnit": "GPU-Hours", "UsageQuantity": share.hours},
    ]
    details = {"Elements": elements, "x_Ratio": energy_ratio + hours_ratio, "x_Version": __version__}
    tags = {"gpuledger/gpu-model": gpu_hour.model, "gpuledger/node": gpu_hour.node}
    tags |= {f"gpuledger/{head}": part for head, part in zip(heads, share.holder.key, strict=False)}
    tags["gpuledger/kind"] = share.holder.kind
    name = "/".join(part for part in share.holder.key if part) or share.holder.kind
    return dict.fromkeys(COSTS, _text(share.cost)) | {
        "AllocatedMethodId": METHOD,
        "AllocatedMethodDetails": _json(details),
        # Null without an allocation, as the specification requires.
        "AllocatedResourceId": escape_formula(name) if share.holder.is_owner else "",
        "AllocatedResourceName": escape_formula(name) if share.holder.is_owner else "",
        "AllocatedTags": _json({key: value for key, value in tags.items() if value}),
        "ConsumedQuantity": _text(share.kwh),
        "PricingQuantity": _text(share.hours),
    }


def _rounded(amounts: Sequence[float]) -> list[Decimal]:
    """Amounts in units of DECIMALS whose sum is the rounded sum (largest remainder)."""
    exact = [Decimal(amount) for amount in amounts]
    return _fitted(exact, sum(exact, Decimal(0)).quantize(DECIMALS))


def _split(parts: Sequence[Decimal], whole: Decimal, left: Decimal | None = None) -> list[Decimal]:
    """Ratios of parts to a whole; `left` is their sum if it must be exact. Equal parts of it if there is no whole."""
    if not whole:
        count = len(parts)
        return (
            _fitted([(left if left is not None else Decimal(0)) / count] * count, left or Decimal(0)) if count else []
        )
    exact = [part / whole for part in parts]
    return _fitted(exact, sum(exact, Decimal(0)).quantize(DECIMALS) if left is None else left)


def _fitted(exact: Sequence[Decimal], total: Decimal) -> list[Decimal]:
    """The amounts rounded down, the largest remainders up, so that they add up to `total`."""
    down = [amount.quantize(DECIMALS, ROUND_DOWN) for amount in exact]
    missing = int((total - sum(down, Decimal(0))) / DECIMALS)
    order = sorted(range(len(exact)), key=lambda n: down[n] - exact[n])
    for n in order[: max(0, missing)]:
        down[n] += DECIMALS
    return down


def _text(amount: Decimal) -> str:
    return f"{amount:f}"


def _json(value: Mapping[str, object]) -> str:
    """JSON with exact numbers; empty for an empty object."""
    if not value:
        return ""
    return json.dumps(value, default=float, ensure_ascii=False)


def _moment(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
