"""Fingerprints of workloads: what stays when a process is started again."""

from __future__ import annotations

from collections import OrderedDict

from gpuledger.books.fingerprint import PARTS, Alone, Behaviour, Fingerprint
from gpuledger.books.rows import Row
from gpuledger.model import Device, Facts, Learned, LearnedBehaviour, Owner

MOST = 1000
"""Workloads, the last to be alone; of any others nothing is known any more."""

Workload = tuple[tuple[str, str], ...]
"""What it is known by: names and values, those that are empty left out."""


class Workloads:
    """What is known of each; that of a process is in its row."""

    def __init__(self) -> None:
        self._known: OrderedDict[Workload, Fingerprint] = OrderedDict()
        self._learned: dict[Workload, Learned] = {}

    def learn(self, row: Row, seen: Alone, parked_w: float) -> None:
        """Take in an interval in which only this process worked."""
        if row.fingerprint is None:
            row.fingerprint = Fingerprint()
        row.fingerprint.learn(seen)
        workload = workload_of(row.device, row.facts, row.owner)
        if workload is None:
            return
        known = self._known.setdefault(workload, Fingerprint())
        known.learn(seen)
        self._known.move_to_end(workload)
        self._learned[workload] = Learned(workload, tuple(_learned(one, parked_w) for one in known.behaviours))
        if len(self._known) > MOST:
            del self._learned[self._known.popitem(last=False)[0]]

    def of(self, row: Row) -> list[Behaviour]:
        """What is known of a process: from itself, else from its workload."""
        own = row.fingerprint.sure() if row.fingerprint is not None else []
        workload = None if own else workload_of(row.device, row.facts, row.owner)
        known = self._known.get(workload) if workload is not None else None
        return own if known is None else known.sure()

    def learned(self) -> tuple[Learned, ...]:
        """All that is known. Made when it is learned, for it is in every tick."""
        return tuple(self._learned.values())


def workload_of(device: Device, facts: Facts | None, owner: Owner) -> Workload | None:
    """Kind of GPU and program, with image, pod template and container, or with systemd unit and user.

    None where not even the program is known.
    """
    name = facts.name if facts is not None else ""
    words = [("gpu_model", device.name), ("process_name", name), ("container", owner.container)]
    if owner.image or owner.workload_name:
        words += [("image", owner.image), ("namespace", owner.namespace)]
        words += [("workload_kind", owner.workload_kind), ("workload_name", owner.workload_name)]
    elif name:
        uid = None if facts is None else facts.uid
        words += [("unit", owner.unit), ("uid", "" if uid is None else str(uid))]
    else:
        return None
    return tuple(word for word in words if word[1])


def _learned(one: Behaviour, parked_w: float) -> LearnedBehaviour:
    shape = tuple(
        (name.removesuffix("_pct"), round(amount, 4)) for name, amount in zip(PARTS, one.shape(), strict=True)
    )
    return LearnedBehaviour(round(one.seconds, 1), round(one.watts(parked_w) * 1000), shape)
