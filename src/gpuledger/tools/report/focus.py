"""`--format focus`: rows of the FinOps specification FOCUS, with its split cost allocation (since 1.3).

Each GPU and hour is one origin charge. Its allocated charges, one per group, one for idle and one for unattributed
energy, add up to it exactly in every summable column, and their ratios add up to 1. The file has both: sum the rows
with, or the rows without AllocatedMethodId.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from decimal import ROUND_DOWN, Decimal, localcontext
from itertools import accumulate

from gpuledger import __version__
from gpuledger.catalog import metrics
from gpuledger.errors import ConfigError
from gpuledger.tools.prometheus.answer import RangeSeries
from gpuledger.tools.prometheus.expression import series
from gpuledger.tools.report.formats import escape_formula
from gpuledger.tools.report.gather import Gatherer, Key
from gpuledger.tools.report.queries import Grouping, Part, Quantity, Query, Step, queries
from gpuledger.tools.report.rates import Rates
from gpuledger.tools.report.rows import Kind
from gpuledger.tools.report.span import Chunk, Span
from gpuledger.tools.text import JOULES_PER_KWH

HOUR_MS = 3_600_000
NOISE = 1e-6
"""Joules and seconds below which a charge is rounding error."""
METHOD = "gpuledger-energy-ledger"
"""AllocatedMethodId; docs/attribution.md documents the method."""
SERVICE = "GPU"
DECIMALS = Decimal("0.0000000001")
DIGITS = 60
"""Of the arithmetic: enough for the largest value of a query, with DECIMALS."""
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
class Holder:
    """The owner of a part of a GPU's hour."""

    kind: str
    """The kind of a row of the report."""
    key: Key = ()

    @property
    def is_owner(self) -> bool:
        """False for idle and unattributed energy."""
        return self.kind not in (Kind.IDLE.value, Kind.UNATTRIBUTED.value)


@dataclass(slots=True)
class Charge:
    """Energy and GPU-seconds."""

    joules: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuHour:
    """One GPU in one hour, and the charges that it consists of."""

    uuid: str
    model: str
    node: str
    begin_ms: int
    end_ms: int
    charges: Mapping[Holder, Charge]


@dataclass(slots=True)
class _Gpu:
    """The amounts of one GPU by cell."""

    device: dict[int, Charge] = field(default_factory=dict)
    all_groups: dict[int, float] = field(default_factory=dict)
    holders: dict[int, dict[Holder, Charge]] = field(default_factory=dict)


def whole_hours(span: Span) -> Span:
    """The whole hours within a span, in cells of an hour. Raises ConfigError if there is none."""
    begin_ms, end_ms = -(-span.begin_ms // HOUR_MS) * HOUR_MS, span.end_ms // HOUR_MS * HOUR_MS
    if begin_ms >= end_ms:
        raise ConfigError("--format focus: the span contains no whole hour", "choose a longer one")
    return Span(begin_ms, end_ms, HOUR_MS)


def gather_hours(gatherer: Gatherer, grouping: Grouping, span: Span, gap_ms: int) -> Iterator[GpuHour]:
    """All hours of all GPUs, in order of time. Their energy is the increase of the GPUs' energy counters."""
    instances = gatherer.label_sets(series(metrics.gpu_mig_info), ("uuid", "parent_uuid"), span)
    parents = {labels.get("uuid", ""): labels["parent_uuid"] for labels in instances if "parent_uuid" in labels}
    gpus = gatherer.label_sets(series(metrics.gpu_info), ("uuid", "name", "node", "hostname", "instance"), span)
    infos = {labels.get("uuid", ""): labels for labels in gpus}
    hours = _Hours(parents)
    gatherer.collect(
        span, gap_ms, lambda step: _queries(grouping, step), hours.add, of_containers=grouping.of == "containers"
    )
    for cell in range(span.cells):
        for uuid, charges in hours.charges(cell, span.cells):
            info = infos.get(uuid, {})
            node = next(filter(None, (info.get(name, "") for name in ("node", "hostname", "instance"))), "")
            yield GpuHour(uuid, info.get("name", ""), node, span.begin_of(cell), span.begin_of(cell + 1), charges)


def _queries(grouping: Grouping, step: Step) -> Iterator[Query]:
    """The queries of energy and apportioned hours, by GPU."""
    for query in queries(grouping, step, Quantity.SHARED):
        if query.column in (Quantity.ENERGY, Quantity.SHARED, Quantity.OBSERVED):
            yield replace(query, more_labels=("uuid",))


class _Hours:
    """Adds up the results of the queries."""

    def __init__(self, parents: Mapping[str, str]) -> None:
        self._parents = parents
        self._gpus: dict[str, _Gpu] = {}
        self._unrecorded: dict[str, list[float]] = {}

    def add(self, query: Query, chunk: Chunk, result: Iterable[RangeSeries]) -> None:
        """Add the result of one query."""
        for member in result:
            uuid = member.labels.get("uuid", "")
            gpu = self._gpus.setdefault(self._parents.get(uuid, uuid), _Gpu())
            for moment_s, amount in member.points:
                cell = chunk.cell(moment_s)
                if query.part is Part.ALL_GROUPS:
                    gpu.all_groups[cell] = gpu.all_groups.get(cell, 0.0) + amount
                    continue
                if query.part is Part.WHOLE:
                    charge = gpu.device.setdefault(cell, Charge())
                else:
                    holder = _holder(query, member.labels)
                    charge = gpu.holders.setdefault(cell, {}).setdefault(holder, Charge())
                if query.column is Quantity.ENERGY:
                    charge.joules += amount
                else:
                    charge.seconds += amount

    def charges(self, cell: int, cells: int) -> Iterator[tuple[str, dict[Holder, Charge]]]:
        """The charges of each GPU in a cell: holders, idle, and unattributed energy."""
        if not self._unrecorded:
            self._unrecorded = {uuid: _unrecorded(gpu, cells) for uuid, gpu in self._gpus.items()}
        for uuid, gpu in sorted(self._gpus.items()):
            charges = {holder: replace(charge) for holder, charge in gpu.holders.get(cell, {}).items()}
            unknown = gpu.all_groups.get(cell, 0.0) - _joules(charges, (Kind.GROUP.value, Kind.UNKNOWN.value))
            if cell in gpu.all_groups and unknown > NOISE:
                charges.setdefault(Holder(Kind.UNKNOWN.value), Charge()).joules += unknown
            if (lost := self._unrecorded[uuid][cell]) > NOISE:
                charges.setdefault(Holder(Kind.UNATTRIBUTED.value), Charge()).joules += lost
            held_s = sum([charge.seconds for charge in charges.values()])
            if (idle_s := gpu.device.get(cell, Charge()).seconds - held_s) > NOISE:
                charges.setdefault(Holder(Kind.IDLE.value), Charge()).seconds += idle_s
            charges = {h: charge for h, charge in charges.items() if charge.joules > NOISE or charge.seconds > NOISE}
            if charges:
                yield uuid, dict(sorted(charges.items(), key=lambda item: (not item[0].is_owner, item[0].key)))


def _holder(query: Query, labels: Mapping[str, str]) -> Holder:
    if query.part is not Part.GROUP:
        kinds = {Part.OUTSIDE: Kind.OUTSIDE, Part.IDLE: Kind.IDLE, Part.UNATTRIBUTED: Kind.UNATTRIBUTED}
        return Holder(kinds[query.part].value)
    key = query.grouping.key(labels)
    return Holder(Kind.UNKNOWN.value) if query.grouping.join and not any(key) else Holder(Kind.GROUP.value, key)


def _joules(charges: Mapping[Holder, Charge], kinds: tuple[str, ...]) -> float:
    return sum([charge.joules for holder, charge in charges.items() if holder.kind in kinds])


def _unrecorded(gpu: _Gpu, cells: int) -> list[float]:
    """Energy of each cell that is in the GPU's counter and in no book.

    Energy may be booked a cell after it was counted. With D_k, counted minus booked energy up to cell k, the unrecorded
    energy up to cell k is the least D from k on, but not negative: it never falls, and ends at the whole difference.
    """
    missing = []
    for cell in range(cells):
        holders = gpu.holders.get(cell, {})
        groups = gpu.all_groups.get(cell)
        booked = sum([charge.joules for charge in holders.values()])
        if groups is not None:
            booked += groups - _joules(holders, (Kind.GROUP.value, Kind.UNKNOWN.value))
        missing.append(gpu.device.get(cell, Charge()).joules - booked)
    difference = list(accumulate(missing))
    least = list(accumulate(reversed(difference), min))[::-1]
    upto = [max(0.0, value) for value in least]
    return [after - before for before, after in zip([0.0, *upto], upto, strict=False)]


@dataclass(frozen=True, slots=True)
class Issuer:
    """The issuer of a bill: names that a bill must have."""

    account: str
    provider: str


@dataclass(frozen=True, slots=True)
class _Share:
    """One allocated charge of an origin charge."""

    holder: Holder
    energy_cost: Decimal
    hours_cost: Decimal
    kwh: Decimal
    hours: Decimal

    @property
    def cost(self) -> Decimal:
        return self.energy_cost + self.hours_cost


def to_focus(gpu_hours: Iterable[GpuHour], prices: Rates, heads: Sequence[str], issuer: Issuer) -> str:
    """All rows as CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    with localcontext() as context:
        context.prec = DIGITS
        for gpu_hour in gpu_hours:
            for row in rows_of(gpu_hour, prices, heads, issuer):
                writer.writerow(row)
    return out.getvalue()


def rows_of(gpu_hour: GpuHour, prices: Rates, heads: Sequence[str], issuer: Issuer) -> Iterator[dict[str, str]]:
    """The origin charge of one GPU and hour, then its allocated charges."""
    shares = _shares(gpu_hour, prices)
    origin = _origin(gpu_hour, prices, issuer, shares)
    yield origin
    cost = sum((share.cost for share in shares), Decimal(0))
    energy_ratios = _split([share.energy_cost for share in shares], cost)
    hours_ratios = _split([share.hours_cost for share in shares], cost, left=1 - sum(energy_ratios, Decimal(0)))
    for share, energy_ratio, hours_ratio in zip(shares, energy_ratios, hours_ratios, strict=True):
        yield origin | _allocated(share, energy_ratio, hours_ratio, heads, gpu_hour)


def _shares(gpu_hour: GpuHour, prices: Rates) -> list[_Share]:
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
    return [_Share(holder, *amounts) for holder, *amounts in zip(charges, *columns, strict=True)]


def _origin(gpu_hour: GpuHour, prices: Rates, issuer: Issuer, shares: Sequence[_Share]) -> dict[str, str]:
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
        "ResourceId": escape_formula(gpu_hour.uuid),
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
    return json.dumps(value, default=float)


def _moment(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
