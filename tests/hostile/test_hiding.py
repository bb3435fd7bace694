"""Tenants that hide the use of a GPU behind the limit of processes."""

from __future__ import annotations

from gpuledger.books import Books
from gpuledger.model import Device, Driver, Facts, Owner, Owners, Reading, Resident, Sample, Tick

GPU = Device(0, "GPU-0", name="NVIDIA L4")
LIMIT, IDLE = 50, 200
MINER, VICTIM, CROWD = 9001, 9002, 1000
"""Pids; those of the crowd are 1000, 1001, ..."""
UIDS = {MINER: 1001, VICTIM: 1002}
WATTS = 70
SECONDS = 60


def users(pid: int) -> int:
    """The miner's user has the crowd, too."""
    return UIDS.get(pid, 1001)


def last_tick(*, crowd: bool = True, works: dict[int, int] | None = None) -> Tick:
    """A minute in which two small processes work, next to idle ones with much memory."""
    books = Books(max_processes=LIMIT)
    works = works or {MINER: 60, VICTIM: 30}
    pids = [*works, *(range(CROWD, CROWD + IDLE) if crowd else ())]
    residents = tuple(Resident(pid, "compute", memory_bytes=1 << (20 if pid in works else 26)) for pid in pids)
    facts = {pid: Facts(pid, 1, 0, uid=users(pid)) for pid in pids}
    owners = Owners(by_pid={pid: Owner(user=f"u{users(pid)}") for pid in pids})
    for second in range(SECONDS):
        now_ns = (1_700_000_000 + second) * 10**9
        samples = tuple(Sample(pid, now_ns // 1000, sm, 0) for pid, sm in works.items())
        reading = Reading(GPU, energy_mj=second * WATTS * 1000, power_mw=WATTS * 1000, residents=residents,
                          samples=samples)  # fmt: skip
        tick = books.book(Tick(now_ns, Driver(up=True), (reading,), facts=facts, owners=owners))
    return tick


def test_idle_processes_hide_no_work() -> None:
    """A crowd of idle processes with much memory fills --process.max: the processes that work are shown."""
    tick = last_tick()
    shown = {use.resident.pid for use in tick.processes}

    assert len(shown) == LIMIT
    assert {MINER, VICTIM} <= shown


def test_totals_by_user_have_all_processes() -> None:
    """A crowd beyond --process.max works a little each: the totals by user have the energy of all of them."""
    tick = last_tick(works={MINER: 60, VICTIM: 30, **dict.fromkeys(range(CROWD, CROWD + 3 * LIMIT), 1)})
    account = tick.accounts["GPU-0"]
    by_user = {uid: mj for uid, _, mj in tick.users["GPU-0"]}
    shown_mj = sum(mj for use in tick.processes for _, mj in use.energy_mj)
    unattributed_mj = sum(mj for _, mj in account.unattributed_mj)

    assert account.energy_mj is not None
    assert sum(by_user.values()) == account.energy_mj - account.idle_mj - unattributed_mj
    assert shown_mj < sum(by_user.values())
    assert set(by_user) == {"1001", "1002"}
