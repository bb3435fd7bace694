"""The book stage: who is there, what each did, and what each used."""

from __future__ import annotations

from dataclasses import replace

from gpuledger.books import journal
from gpuledger.books.energy import EnergyBook
from gpuledger.books.interval import Policy
from gpuledger.books.kept import State
from gpuledger.books.memory import MemoryBook, with_inferred
from gpuledger.books.processes import ProcessBook
from gpuledger.books.retention import Retention
from gpuledger.books.rows import Row, Rows
from gpuledger.books.time import BUFFER_NS, TimeBook
from gpuledger.model import Tick


class Books:
    """All books, in the order in which they are written."""

    def __init__(
        self,
        most: int | None = None,
        *,
        shown: bool = True,
        policy: Policy | None = None,
        keep_ns: int = 300_000_000_000,
        longest_ns: int = BUFFER_NS,
    ) -> None:
        self._processes = ProcessBook(most, shown=shown)
        self._rows = Rows()
        self._memory = MemoryBook()
        self._time = TimeBook(longest_ns)
        self._energy = EnergyBook(policy, longest_ns)
        self._retention = Retention(keep_ns, most if shown else 0)

    def book(self, tick: Tick) -> Tick:
        """The tick with its processes, containers and accounts."""
        tick = self._processes.book(tick)
        present = self._rows.meet(tick)
        memory = self._memory.book(tick)
        tick = replace(tick, containers=with_inferred(tick, memory))
        work = self._time.book(tick, self._rows, present, memory.hidden)
        self._energy.book(tick, present, work)
        tick = self._retention.book(tick, self._rows, self._energy.ledgers)
        rows: dict[str, list[Row]] = {}
        for row in self._rows.all():
            rows.setdefault(row.gpu, []).append(row)
        read = {reading.device.uuid for reading in tick.readings}
        accounts = {
            uuid: ledger.account(rows.get(uuid, []), self._time.gpus[uuid])
            for uuid, ledger in self._energy.ledgers.items()
            if uuid in read
        }
        return replace(tick, accounts=accounts, memory=memory.accounts, learned=self._energy.workloads.learned())

    def keep(self, boot_id: str, time_ns: int) -> State:
        """What a journal needs to go on from here."""
        return journal.keep(
            boot_id, time_ns, rows=self._rows, time=self._time, energy=self._energy, retention=self._retention
        )

    def resume(self, state: State, now_ns: int) -> None:
        """Go on where other books ended; these must be new."""
        journal.resume(state, now_ns, rows=self._rows, time=self._time, energy=self._energy, retention=self._retention)
