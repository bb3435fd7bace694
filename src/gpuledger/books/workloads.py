"""Fingerprints of workloads: what stays when a process is started again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from gpuledger.books.fingerprint import Activities, Behaviour, Fingerprint
from gpuledger.books.rows import Row

MOST = 1000
"""Workloads, the last to be alone; of any others nothing is known any more."""

Workload = tuple[str, ...]


class Workloads:
    """What is known of each; that of a process is in its row."""

    def __init__(self) -> None:
        self._known: OrderedDict[Workload, Fingerprint] = OrderedDict()

    def learn(self, row: Row, seen: Activities, seconds: float, engine_s: float, joules: float) -> None:
        """Take in an interval in which only this process worked."""
        if row.fingerprint is None:
            row.fingerprint = Fingerprint()
        row.fingerprint.learn(seen, seconds, engine_s, joules)
        workload = workload_of(row)
        if workload is not None:
            self._known.setdefault(workload, Fingerprint()).learn(seen, seconds, engine_s, joules)
            self._known.move_to_end(workload)
            if len(self._known) > MOST:
                self._known.popitem(last=False)

    def of(self, row: Row) -> list[Behaviour]:
        """What is known of a process: from itself, else from its workload."""
        own = row.fingerprint.sure() if row.fingerprint is not None else []
        workload = None if own else workload_of(row)
        known = self._known.get(workload) if workload is not None else None
        return own if known is None else known.sure()

    def all(self) -> Iterable[tuple[Workload, Fingerprint]]:
        """The last to be alone first."""
        return reversed(self._known.items())


def workload_of(row: Row) -> Workload | None:
    """Kind of GPU and program; then image, pod template and container, or systemd unit and user.

    None where not even the program is known.
    """
    owner, facts = row.owner, row.facts
    name = facts.name if facts is not None else ""
    if owner.image or owner.workload_name:
        place = (owner.image, owner.namespace, owner.workload_kind, owner.workload_name, owner.container)
    elif name:
        uid = "" if facts is None or facts.uid is None else str(facts.uid)
        place = (owner.unit, uid, owner.container, "", "")
    else:
        return None
    return (row.device.name, name, *place)
