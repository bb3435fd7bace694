"""Tenants that hide the use of a GPU behind the limit of processes."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger.books import Books
from gpuledger.ledger.ledger import MOST_USERS, OTHER_USERS
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


def crowd_of_users(uids_by_second: Sequence[Sequence[int]]) -> Tick:
    """In each second, one process of each of these users shares the GPU; all are new processes."""
    books = Books()
    for second, uids in enumerate(uids_by_second):
        now_ns = (1_700_000_000 + second) * 10**9
        users = {5000 * second + number + 1: uid for number, uid in enumerate(uids)}
        reading = Reading(
            GPU, energy_mj=second * WATTS * 1000, power_mw=WATTS * 1000,
            residents=tuple(Resident(pid, "compute", memory_bytes=1 << 20) for pid in users),
            samples=tuple(Sample(pid, now_ns // 1000, 1, 0) for pid in users),
        )  # fmt: skip
        facts = {pid: Facts(pid, 1, 0, uid=uid) for pid, uid in users.items()}
        owners = Owners(by_pid={pid: Owner(user=f"u{uid}") for pid, uid in users.items()})
        tick = books.book(Tick(now_ns, Driver(up=True), (reading,), facts=facts, owners=owners))
    return tick


def balanced(tick: Tick) -> dict[str, int]:
    """Energy by user, which is all that has an owner."""
    account = tick.accounts["GPU-0"]
    by_user = {uid: mj for uid, _, mj in tick.users["GPU-0"]}
    assert account.energy_mj is not None
    assert sum(by_user.values()) == account.energy_mj - account.idle_mj - sum(mj for _, mj in account.unattributed_mj)
    return by_user


def test_more_users_than_totals() -> None:
    """A tenant works as 50 new uids a second: a victim that starts later has an own total, and none is lost."""
    strangers = [[100_000 + 50 * second + number for number in range(50)] for second in range(60)]
    by_user = balanced(crowd_of_users([[*uids, 1002] if second >= 40 else uids
                                       for second, uids in enumerate(strangers)]))  # fmt: skip

    assert len(by_user) == MOST_USERS + 1
    assert by_user["1002"] > 0.9 * 19 * WATTS * 1000 / 51
    assert by_user[OTHER_USERS] > 0


def test_a_total_that_is_large_outlives_many_users() -> None:
    """A victim has left when a tenant works as thousands of uids: the total of the victim stays."""
    strangers = [[100_000 + 50 * second + number for number in range(50)] for second in range(60)]
    by_user = balanced(crowd_of_users([[1002]] * 20 + strangers))

    assert by_user["1002"] > 0.9 * 19 * WATTS * 1000


def test_more_users_at_a_time_than_totals() -> None:
    """1,100 users work at the same time: the last ones are counted together."""
    by_user = balanced(crowd_of_users([list(range(2000, 3100))] * 5))

    assert len(by_user) == MOST_USERS + 1
    assert by_user[OTHER_USERS] > 0
