"""The book stage: adds processes, containers and accounts to a tick.

Each book keeps its own state and returns values; `Books` passes them on. Only `Rows` changes the rows of processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from gpuledger.allocations.book import AllocationBook, Entry
from gpuledger.allocations.inforce import Allocations, in_force
from gpuledger.allocations.states import Idleness
from gpuledger.ledger.ledger import EnergyBook
from gpuledger.ledger.memory import MemoryBook
from gpuledger.ledger.retention import Retention, Total, energy_by_gpu
from gpuledger.ledger.rows import ProcessLists, Row, Rows
from gpuledger.ledger.split import Policy
from gpuledger.ledger.state import AllocationState, GpuState, RowState, State, TotalState, frozen, thawed
from gpuledger.ledger.time import BUFFER_NS, GpuTime, TimeBook
from gpuledger.ledger.uses import UseBook
from gpuledger.model import Account, Tick
from gpuledger.shares.fingerprint import Fingerprint, Workload


class Books:
    """All books. A tick has at most `max_processes` process rows, of the processes that `shown` includes.

    It has at most `max_containers` containers on devices, and one more for the rest on each device, and at most
    `max_allocations` allocations, in which work below `low_pct` percent of a device does not count as busy.
    """

    def __init__(
        self,
        max_processes: int | None = None,
        max_containers: int | None = None,
        max_allocations: int | None = None,
        *,
        shown: str = "all",
        policy: Policy | None = None,
        keep_ns: int = 300_000_000_000,
        longest_ns: int = BUFFER_NS,
        low_pct: float = 5.0,
    ) -> None:
        self._rows = Rows()
        self._memory = MemoryBook()
        self._time = TimeBook(longest_ns)
        self._energy = EnergyBook(policy, longest_ns)
        self._retention = Retention(keep_ns, max_containers)
        self._uses = UseBook(max_processes, shown)
        self._idleness = Idleness(low_pct)
        self._allocations = AllocationBook(keep_ns, longest_ns, max_allocations)
        self._previous_ns: int | None = None
        """When the previous tick was booked; on the monotonic clock, if the ticks have it."""
        self._monotonic_ns: int | None = None
        """Monotonic time of the previous tick; None if the ticks do not have it."""
        self._resumed: State | None = None
        """The journal, until the first tick."""

    def book(self, tick: Tick) -> Tick:
        """The tick with its processes, containers and accounts."""
        now_ns = tick.time_ns if tick.monotonic_ns is None else tick.monotonic_ns
        elapsed_ns = 0 if self._previous_ns is None else max(0, now_ns - self._previous_ns)
        self._previous_ns, self._monotonic_ns = now_ns, tick.monotonic_ns
        if self._resumed is not None:
            self._allocations.pause(_pause_ns(self._resumed, tick))
            self._resumed = None
        tick = self._rows.decide_owners(tick)
        lists = ProcessLists(tick)
        present = self._rows.update(tick, lists, elapsed_ns)
        memory = self._memory.book(tick)
        in_use = {gpu: None if rows is None else bool(rows) or gpu in memory.hidden for gpu, rows in present.items()}
        work = self._rows.add_work(tick, self._time.book(tick, in_use, elapsed_ns))
        intervals = []
        for booked in self._energy.book(tick, present, work, memory.hidden, now_ns=now_ns, elapsed_ns=elapsed_ns):
            self._rows.add_energy(booked.entries, booked.parked_mj, booked.share_errors, booked.activity)
            intervals.append(booked)

        retired = self._retention.retire(self._rows, lists, tick.owners.running, elapsed_ns)
        self._rows.remove(retired.rows)
        totals = self._retention.totals(self._rows.all(), self._energy.booked_rows())
        containers_mj = energy_by_gpu(totals.values())
        for uuid, ledger in self._energy.ledgers.items():
            ledger.settle(retired.retired_mj[uuid], retired.gone_mj[uuid], containers_mj[uuid])

        uses = self._uses.book(tick, self._rows, exited=retired.exited, totals=totals, inferred=memory.inferred)
        allocations = Allocations(in_force(tick), (reading.device for reading in tick.readings))
        states = self._idleness.states(
            tick, allocations, listed=uses.listed, work=work, memory=memory, lists=lists, elapsed_ns=elapsed_ns
        )
        accounts = self._accounts(tick)
        metered = {uuid for uuid, account in accounts.items() if account.energy_mj is not None}
        allocation_uses = self._allocations.book(
            allocations, states, intervals, metered, elapsed_ns=elapsed_ns, time_ns=tick.time_ns
        )
        return replace(
            tick,
            unattributed_activity=uses.unattributed_activity,
            processes=uses.processes,
            dropped_processes=uses.dropped,
            containers=uses.containers,
            users={
                uuid: tuple([(uid, *user) for uid, user in sorted(ledger.users_mj.items())])
                for uuid, ledger in self._energy.ledgers.items()
            },
            accounts=accounts,
            memory=memory.accounts,
            allocations=allocation_uses,
            dropped_allocations=self._allocations.dropped,
            learned=self._energy.fingerprints.learned(),
        )

    def _accounts(self, tick: Tick) -> dict[str, Account]:
        processes_mj: Counter[str] = Counter()
        for row in self._rows.all():
            processes_mj[row.gpu] += sum(row.energy_mj.values())
        uuids = {reading.device.uuid for reading in tick.readings}
        return {
            uuid: ledger.account(processes_mj[uuid], self._time.gpus[uuid])
            for uuid, ledger in self._energy.ledgers.items()
            if uuid in uuids
        }

    def state(self, boot_id: str, time_ns: int) -> State:
        """A snapshot for the journal."""
        rows = self._rows.all()
        numbers = {row: number for number, row in enumerate(rows)}
        ledgers = {uuid: ledger.state(numbers) for uuid, ledger in self._energy.ledgers.items()}
        return State(
            boot_id,
            time_ns,
            gpus=tuple(
                GpuState(uuid, ledgers.get(uuid), gpu.busy_ns, gpu.in_use_ns) for uuid, gpu in self._time.gpus.items()
            ),
            rows=tuple(frozen(RowState, row) for row in rows),
            totals=tuple(frozen(TotalState, total) for total in self._retention.state()),
            allocations=tuple(frozen(AllocationState, entry) for entry in self._allocations.state()),
            monotonic_ns=self._monotonic_ns,
        )

    def resume(self, state: State, now_ns: int) -> None:
        """Restore the state of a journal, before the first tick."""
        rows = [_resumed(row, number, now_ns - state.time_ns) for number, row in enumerate(state.rows, start=1)]
        self._rows.resume(rows)
        self._time.resume({gpu.uuid: GpuTime(busy_ns=gpu.busy_ns, in_use_ns=gpu.in_use_ns) for gpu in state.gpus})
        self._retention.resume([Total(**thawed(total)) for total in state.totals], rows)
        entries = [Entry(**thawed(entry)) for entry in state.allocations]
        self._allocations.resume(entries)
        self._resumed = state
        for gpu in state.gpus:
            if gpu.ledger is not None:
                alone = None if gpu.ledger.alone is None else rows[gpu.ledger.alone]
                self._energy.ledger(gpu.uuid).resume(gpu.ledger, alone)

    @property
    def fingerprint_revision(self) -> int:
        """Increases with every observation of a workload."""
        return self._energy.fingerprints.revision

    def fingerprints(self) -> list[tuple[Workload, Fingerprint]]:
        """A snapshot of the workload fingerprints."""
        return self._energy.fingerprints.snapshot()

    def restore_fingerprints(self, workloads: Iterable[tuple[Workload, Fingerprint]]) -> None:
        """Restore workload fingerprints, before the first tick."""
        self._energy.fingerprints.restore(workloads)


def _resumed(state: RowState, number: int, pause_ns: int) -> Row:
    """A row of a journal. `seen_ns` moves by the time without an exporter, so that no sample seems to be newer."""
    active = False if state.active is False else None
    state = replace(state, active=active, seen_ns=state.seen_ns + pause_ns)
    return Row(**thawed(state), gpu=state.device.gpu_uuid, pid=state.resident.pid, number=number, resumed=True)


def _pause_ns(state: State, tick: Tick) -> int:
    """How long the exporter did not run before the tick."""
    if state.monotonic_ns is not None and tick.monotonic_ns is not None:
        return max(0, tick.monotonic_ns - state.monotonic_ns)
    return max(0, tick.time_ns - state.time_ns)
