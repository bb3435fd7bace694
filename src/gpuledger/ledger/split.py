"""The rules that attribute the energy of an interval to processes.

docs/attribution.md explains the rules with an example.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, TypeVar

from gpuledger.ledger.interval import Interval
from gpuledger.ledger.rows import Row
from gpuledger.model import MPS_OF_ROOT
from gpuledger.model.record import dataclass

NS_MW_PER_MJ = 1_000_000_000
CARRY_S = 3
"""Most seconds of parked power that are carried to the next interval; the steps of a counter are shorter."""
LATEST = 2
"""Longest late interval in buffers of the driver's samples, which then cover half of it. Longer ones are gaps."""
K = TypeVar("K", bound=Any)  # sortable keys


def apportion(total: int, weights: Mapping[K, int]) -> dict[K, int]:
    """Split `total` in proportion to the weights by largest remainder; the shares add up to `total` exactly.

    Equal remainders are rounded up in the order of the keys. No share differs from the exact proportion by 1 or more,
    and a weight of 0 gets 0. At least one weight must be positive.
    """
    whole = sum(weights.values())
    if total < 0 or whole <= 0:
        raise ValueError(f"cannot split {total} by weights that add up to {whole}")
    shares = {key: total * weight // whole for key, weight in weights.items()}
    remainder = total - sum(shares.values())
    if not remainder:
        return shares
    for key in sorted(weights, key=lambda key: (-(total * weights[key] % whole), key))[:remainder]:
        shares[key] += 1
    return shares


def equally(total: int, keys: Iterable[K]) -> dict[K, int]:
    """Split `total` into equal shares; they differ by 1 at most."""
    return apportion(total, dict.fromkeys(keys, 1))


@dataclass(frozen=True, slots=True)
class Policy:
    """How the user wants shared energy to be split."""

    strict: bool = False
    """Attribute only measured energy: that of one process alone on a GPU."""
    parked_apart: bool = False
    """Report parked power as unattributed instead of splitting it equally between the processes on the GPU."""
    method: str = "fingerprint"
    """How to split energy above parked power: `fingerprint` where possible, or always `sm_time`."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Estimated shares of the energy above parked power."""

    method: str
    rows: Mapping[Row, int]
    unseen: int = 0
    """Weight of MIG instances that are busy without a process."""


@dataclass(slots=True)
class Split:
    """The accounts to which an interval's energy is booked."""

    idle_mj: int = 0
    entries: list[tuple[Row, str, int]] = field(default_factory=list)
    """Process, method and millijoules."""
    unattributed_mj: dict[str, int] = field(default_factory=dict)
    """By reason."""
    parked_mj: dict[Row, int] = field(default_factory=dict)
    """The parked part of each process's energy: what the GPU draws while all its processes wait."""
    carried_mj: int = 0
    """Parked power x time that the energy of a single process did not contain; added to the next interval."""

    def attribute(self, shares: Mapping[Row, int], method: str) -> None:
        """Book shares to processes."""
        self.entries += [(row, method, mj) for row, mj in shares.items() if mj]

    def attribute_single(self, rows: Iterable[Row], method: str, mj: int, parked_mw: int, elapsed_ns: int) -> None:
        """Book energy to the only process. Its parked part is parked power x time, or all of the energy if it is less.

        The rest is carried, because the energy counter moves in steps that do not match the intervals.
        """
        (row,) = rows
        self.attribute({row: mj}, method)
        available_mj = self.carried_mj + parked_mw * max(0, elapsed_ns) // NS_MW_PER_MJ
        self.parked_mj[row] = min(available_mj, mj)
        self.carried_mj = min(available_mj - self.parked_mj[row], parked_mw * CARRY_S)

    def leave(self, mj: int, reason: str) -> None:
        """Book energy as unattributed."""
        if mj:
            self.unattributed_mj[reason] = self.unattributed_mj.get(reason, 0) + mj

    def total_mj(self) -> int:
        """The sum over all accounts: the interval's energy."""
        return self.idle_mj + sum(mj for *_, mj in self.entries) + sum(self.unattributed_mj.values())


def split(
    interval: Interval,
    at_end: frozenset[Row] | None,
    elapsed_ns: int,
    *,
    longest_ns: int,
    idle_mw: int | None,
    parked_mw: int | None,
    policy: Policy,
    weights: Weights | None = None,
    carried_mj: int = 0,
) -> Split:
    """Split the interval's energy, all of it, once. `weights` are estimated shares, if there are any.

    `carried_mj` is that of the interval before.
    """
    result = Split(carried_mj=carried_mj)
    energy_mj, rows, at_start = interval.energy_mj, interval.rows, interval.at_start
    alone = len(rows) == 1 and bool(at_start) and at_start == at_end
    if interval.restarted:
        # No tick was read in between. That no other process came and went is likely, but not measured.
        if alone and not interval.hidden and not policy.strict:
            result.attribute_single(rows, "gap", energy_mj, parked_mw or 0, elapsed_ns)
        else:
            result.leave(energy_mj, "gap")
    elif not 0 < elapsed_ns <= longest_ns:
        is_covered = 0 < elapsed_ns <= LATEST * longest_ns
        at_both = (at_start or frozenset()) & (at_end or frozenset()) if is_covered else frozenset()
        _split_late(result, interval, at_both, _energy_at(parked_mw, elapsed_ns, energy_mj), policy)
    elif at_start is None or at_end is None or (interval.failed and not alone):
        result.leave(energy_mj, "error")
    elif not rows and interval.hidden:
        result.leave(energy_mj, "unseen")
    elif not rows:
        result.idle_mj = energy_mj
    elif alone and not interval.hidden:
        result.attribute_single(rows, "exclusive", energy_mj, parked_mw or 0, elapsed_ns)
    elif policy.strict:
        result.leave(energy_mj, "shared")
    elif rows <= interval.unlisted or (len(rows) == 1 and not interval.hidden):
        above_idle_mw = max(0, (parked_mw or 0) - (idle_mw or 0))
        _split_partial(result, interval, _energy_at(idle_mw, elapsed_ns, energy_mj), above_idle_mw, elapsed_ns)
    else:
        _split_shared(result, interval, _energy_at(parked_mw, elapsed_ns, energy_mj), policy, weights)
    return result


def _energy_at(power_mw: int | None, elapsed_ns: int, most_mj: int) -> int:
    return min(most_mj, (power_mw or 0) * elapsed_ns // NS_MW_PER_MJ)


def _split_late(result: Split, interval: Interval, at_both: frozenset[Row], parked_mj: int, policy: Policy) -> None:
    """Samples do not cover the interval: its energy is for the processes that were there at both ends."""
    if interval.failed or not at_both or policy.strict or interval.hidden:
        result.leave(interval.energy_mj, "error" if interval.failed else "gap")
    elif interval.rows == at_both and len(at_both) == 1:
        result.attribute(dict.fromkeys(at_both, interval.energy_mj), "edge")
    else:
        interval.rows = set(at_both)
        _split_shared(result, interval, parked_mj, policy, None)


def _split_partial(result: Split, interval: Interval, idle_mj: int, above_idle_mw: int, elapsed_ns: int) -> None:
    """No process was on the GPU for the whole interval: idle power is booked as idle, the rest to processes."""
    if interval.hidden:
        result.leave(idle_mj, "unseen")
    else:
        result.idle_mj = idle_mj
    if len(interval.rows) == 1:
        result.attribute_single(interval.rows, "edge", interval.energy_mj - idle_mj, above_idle_mw, elapsed_ns)
    else:
        busy_ns = {row: ns for row, ns in interval.busy_ns.items() if row in interval.rows}
        result.attribute(apportion(interval.energy_mj - idle_mj, busy_ns), "sm_time")


def _split_shared(result: Split, interval: Interval, parked_mj: int, policy: Policy, weights: Weights | None) -> None:
    """Split parked power equally, and the rest by work."""
    rows = interval.rows
    servers, clients = mps(interval)
    migs = {row.device.uuid for row in rows if row.device.parent_uuid}
    active_mj = interval.energy_mj - parked_mj
    if weights is not None:
        whole = sum(weights.rows.values()) + weights.unseen
        unseen_mj = (2 * active_mj * weights.unseen + whole) // (2 * whole)
        result.leave(unseen_mj, "unseen")
        result.attribute(apportion(active_mj - unseen_mj, weights.rows), weights.method)
    elif migs:
        instances = _mig_weights(interval, migs)
        if sum(instances.values()):
            _attribute_instances(result, interval, active_mj, instances)
        else:
            parked_mj = interval.energy_mj
    elif not interval.has_samples:
        result.leave(active_mj, "shared")
    else:
        busy_ns = {row: ns for row, ns in interval.busy_ns.items() if row in rows}
        if sum(busy_ns.values()):
            _attribute_work(result, active_mj, busy_ns, servers, clients)
        else:
            parked_mj = interval.energy_mj
    parked = rows - servers - interval.unlisted
    if interval.hidden:  # the hidden process is parked too, and gets one share
        hidden_mj = parked_mj // (len(parked) + 1)
        result.leave(hidden_mj, "unseen")
        parked_mj -= hidden_mj
    if policy.parked_apart:
        result.leave(parked_mj, "parked")
    else:
        result.parked_mj = equally(parked_mj, parked)
        result.attribute(result.parked_mj, "parked")


def _attribute_work(
    result: Split, energy_mj: int, busy_ns: Mapping[Row, int], servers: set[Row], clients: set[Row]
) -> None:
    """Split by compute-engine time; the share of an MPS server is split equally between its clients."""
    shares = apportion(energy_mj, busy_ns)
    result.attribute({row: mj for row, mj in shares.items() if row not in servers}, "sm_time")
    if served_mj := sum(mj for row, mj in shares.items() if row in servers):
        result.attribute(equally(served_mj, clients), "mps")


def mps(interval: Interval) -> tuple[set[Row], set[Row]]:
    """MPS servers and their clients. The driver's samples name only the server.

    Clients are the processes in the driver's MPS list. If that list is empty (as on the H200), they are the processes
    without samples of their own. A server that root started serves every process; the name of another server proves
    nothing, so its clients are of its own user and container. Servers of several tenants keep their energy.
    """
    servers = {row for row in interval.rows if row.mps_server == MPS_OF_ROOT}
    others = interval.rows - servers
    if not servers:
        servers = {row for row in interval.rows if row.mps_server}
        tenants = {row.tenant for row in servers}
        others = {row for row in interval.rows - servers if row.tenant in tenants} if len(tenants) == 1 else set()
    listed = {row for row in others if "mps" in row.resident.kind}
    clients = listed or {row for row in others if not interval.busy_ns.get(row)}
    return (servers, clients) if clients else (set(), set())


def _mig_weights(interval: Interval, migs: set[str]) -> dict[str, int]:
    """Activity if every instance in use reports it, else equal weights."""
    if interval.mig_missing & migs or not migs <= set(interval.mig_busy):
        return dict.fromkeys(migs, 1)
    return interval.mig_busy


def _attribute_instances(result: Split, interval: Interval, energy_mj: int, weights: Mapping[str, int]) -> None:
    for uuid, mj in apportion(energy_mj, weights).items():
        rows = [row for row in interval.rows if row.device.uuid == uuid]
        if rows:
            result.attribute(equally(mj, rows), "mig")
        else:
            result.leave(mj, "unseen")
