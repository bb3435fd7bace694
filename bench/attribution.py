"""`python -m bench.attribution FILE...`: how far our shares of energy are from the truth, on recorded GPUs.

Files are recordings as in tests/data/h200: those with one process say how many joules above parked power a unit of its
work takes, alone; in those with several, units done times that figure, over the sum, is each process's true share.
It is good to about 10 %: clocks differ between alone and shared.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests import h200

from gpuledger.books.book import Books
from gpuledger.model import Tick

ESTIMATED = ("sm_time", "mps", "mig", "fingerprint", "edge")
"""Methods of energy above parked power."""


def main(paths: list[str]) -> int:
    recordings = [h200.load(Path(path)) for path in paths]
    alone = {one["name"]: one for one in recordings if len(one["truth"]) == 1}
    joules = {_kind(one["truth"][0]): _joules_per_unit(one) for name, one in alone.items() if name.startswith("solo-")}
    under_mps = {_kind(r["truth"][0]): _joules_per_unit(r) for name, r in alone.items() if name.startswith("mps-")}
    print(f"{'recording':20} {'process':10} {'truth':>7} {'ours':>7} {'error':>7}   methods")
    worst: list[float] = []
    for one in recordings:
        if len(one["truth"]) < 2:
            continue
        each = joules | under_mps if one["name"].startswith("mps-") else joules
        missing = {_kind(work) for work in one["truth"]} - {*each, "hold"}
        if missing:
            print(f"{one['name']:20} left out: no recording of {', '.join(sorted(missing))} alone")
            continue
        worst.append(_compare(one, each))
    if not worst:
        print("nothing to compare: name recordings of processes together, and of each alone", file=sys.stderr)
        return 1
    print(f"largest error of a share: mean {sum(worst) / len(worst):.3f}, worst {max(worst):.3f}, of {len(worst)}")
    return 0


def _compare(one: Any, joules: dict[str, float]) -> float:
    books = Books()
    last: Tick | None = None
    for tick in h200.ticks(one):
        last = books.book(tick)
    assert last is not None
    account = last.readings[0].account
    assert account is not None
    assert account.residual_mj == 0
    rows = {use.resident.pid: dict(use.energy_mj) for use in last.processes}
    truth = {work["pid"]: _units(work) * joules.get(_kind(work), 0.0) for work in one["truth"]}
    ours = {pid: sum(rows.get(pid, {}).get(method, 0) for method in ESTIMATED) for pid in truth}
    all_truth, all_ours = sum(truth.values()), sum(ours.values())
    worst = 0.0
    for work in one["truth"]:
        pid = work["pid"]
        true, our = truth[pid] / all_truth, ours[pid] / all_ours
        worst = max(worst, abs(our - true))
        methods = " ".join(f"{method} {mj / 1000:.0f} J" for method, mj in sorted(rows.get(pid, {}).items()))
        print(f"{one['name']:20} {work['kind']:10} {true:7.3f} {our:7.3f} {our - true:+7.3f}   {methods}")
    return worst


def _kind(work: Any) -> str:
    """`big@0.3` does the units of `big`, only not all the time."""
    return str(work["kind"].partition("@")[0])


def _units(work: Any) -> float:
    return float(work["log"][-1][1] - work["log"][0][1])


def _joules_per_unit(one: Any) -> float:
    """Energy above parked power, which is that before the work began, over the units done."""
    (work,) = one["truth"]
    begin, end = work["log"][0][0], work["log"][-1][0]
    first = one["rows"][0]["t_energy"]
    parked_w = (_joules_at(one, begin) - _joules_at(one, first)) / (begin - first)
    above = _joules_at(one, end) - _joules_at(one, begin) - parked_w * (end - begin)
    units = _units(work)
    return above / units if units else 0.0


def _joules_at(one: Any, time_s: float) -> float:
    """The counter at a time, in a line between two readings of it."""
    rows = one["rows"]
    for before, after in pairwise(rows):
        if before["t_energy"] <= time_s <= after["t_energy"]:
            part = (time_s - before["t_energy"]) / (after["t_energy"] - before["t_energy"])
            return float(before["energy_mj"] + part * (after["energy_mj"] - before["energy_mj"])) / 1000
    return float(rows[-1]["energy_mj"]) / 1000


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
