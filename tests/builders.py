"""Builders of readings, processes, rows and ticks for tests: single ones, a GPU over time, and random sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from gpuledger.books import Books
from gpuledger.ledger.rows import Row
from gpuledger.ledger.split import Policy
from gpuledger.ledger.state import State
from gpuledger.model import (
    Account,
    Activity,
    Device,
    Driver,
    Facts,
    Health,
    Owner,
    Owners,
    ProcessUse,
    Reading,
    Resident,
    Sample,
    Stage,
    Tick,
)
from gpuledger.storage.journal import decode, encode

GPU = Device(0, "GPU-0")
CUT = Device(1, "GPU-1")
MIGS = tuple(
    Device(1, f"MIG-{number}", parent_uuid=CUT.uuid, gpu_instance_id=number, multiprocessors=16 * number)
    for number in (1, 2)
)
START_NS = 1_700_000_000 * 10**9
S = 10**9
BOOT = "8a6f3c52"
POLICIES = st.builds(Policy, st.booleans(), st.booleans(), st.sampled_from(["fingerprint", "fingerprint", "sm_time"]))
KEEP = st.sampled_from([1, 5, 300]).map(lambda seconds: seconds * S)
MOST = st.sampled_from([None, 0, 1, 2])
"""Of containers."""

H200 = Device(0, "GPU-1", name="NVIDIA H200")
DRIVER = Driver(up=True, driver_version="580.1", nvml_version="13.580.1", cuda_version="13.0")
POD = Owner(container="main", container_id="c" * 64, namespace="ml", pod="train", pod_uid="u1")


def row(pid: int = 7, name: str = "python3", uid: int = 0, owner: Owner | None = None) -> Row:
    """A process on the GPU, as the ledger has it."""
    facts = Facts(pid, 1, 0, name, uid, program=name)
    return Row(GPU, GPU.uuid, pid, 1, pid, Resident(pid, "compute"), facts, owner or Owner())


def process_use(pid: int, name: str = "python3", *, device: Device = H200, **more: Any) -> ProcessUse:
    """A process on a device, as the books show it."""
    given: dict[str, Any] = {"sample": Sample(pid, 1, 40, 10), **more}
    return ProcessUse(device, Resident(pid, "compute", 100), Facts(pid, 1, 1000, name), **given)


def booked_tick(*processes: ProcessUse, **reading: Any) -> Tick:
    """A booked tick of an H200 with these processes."""
    return Tick(
        time_ns=START_NS,
        driver=DRIVER,
        readings=(Reading(H200, **reading),),
        processes=processes,
        health=Health(stages=(Stage("read", 5, success=True),)),
    )


def pod_tick(second: int, energy_j: int, *, owner: Owner = POD, start_ms: int = 1000) -> Tick:
    """A booked tick of an H200 with one process of a pod."""
    return replace(
        booked_tick(
            ProcessUse(H200, Resident(7, "compute", 5), Facts(7, 1, 0, "python3"), owner=owner),
            utilization_pct=40,
            memory_used_bytes=5,
            power_mw=200_000,
        ),
        time_ns=second * S,
        driver=Driver(up=True),
        accounts={H200.uuid: Account(energy_mj=energy_j * 1000)},
        health=Health(start_time_ms=start_ms),
    )


@dataclass
class World:
    """One GPU whose time goes on from tick to tick."""

    now_ns: int = START_NS
    energy_mj: int = 1_000_000
    starts: dict[int, int | None] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    mps_servers: dict[int, str] = field(default_factory=dict)
    containers: dict[int, str] = field(default_factory=dict)

    def tick(
        self,
        *pids: int,
        mj: int = 0,
        after_s: float = 1.0,
        work: dict[int, int] | None = None,
        samples: bool = True,
        **more: Any,
    ) -> Tick:
        """A tick after that time and energy, with these residents and their work in percent."""
        self.now_ns += int(after_s * S)
        self.energy_mj += mj
        rows = tuple(Sample(pid, self.now_ns // 1000, pct, 0) for pid, pct in (work or {}).items())
        given: dict[str, Any] = {
            "energy_mj": self.energy_mj,
            "residents": tuple(Resident(pid, "compute") for pid in pids),
            "samples": rows if samples else None,
        }
        return self.around(Reading(GPU, **{**given, **more}))

    def around(self, *readings: Reading) -> Tick:
        """A tick of these readings, with facts and owners of all processes in it."""
        pids = {r.pid for reading in readings for r in reading.residents or ()}
        starts = {pid: self.starts.get(pid, 1) for pid in pids}
        facts = {
            pid: Facts(pid, n, 0, name := self.names.get(pid, ""), mps_server=self.mps_servers.get(pid, ""),
                       program=name)
            for pid, n in starts.items() if n is not None
        }  # fmt: skip
        owners = {pid: Owner(container_id=self.containers[pid]) for pid in pids if pid in self.containers}
        return Tick(self.now_ns, Driver(up=True), readings, facts=facts, owners=Owners(by_pid=owners))


PIDS = st.integers(1, 4)
MJ = st.integers(1, 3000) | st.integers(1, 10**6)
ENERGY = st.one_of(
    MJ.map(lambda mj: ("rise", mj)),
    MJ.map(lambda mj: ("rise", mj)),
    MJ.map(lambda mj: ("rise", mj)),
    st.tuples(st.just("jump"), st.integers(10**7, 10**10)),
    st.tuples(st.just("reset"), st.integers(0, 10**5)),
    st.just(("none", 0)),
)
RESIDENTS = st.lists(
    st.tuples(PIDS, st.sampled_from(["compute", "compute", "mps"])), max_size=3, unique_by=lambda r: r[0]
)
SAMPLES = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 120), st.integers(-400_000, 100_000)), max_size=4)
PCT = st.none() | st.just(0.0) | st.floats(0, 100)
ACTIVITY = st.builds(Activity, sm_pct=PCT, occupancy_pct=PCT, tensor_pct=PCT, dram_pct=PCT, fp32_pct=PCT)
STEPS = st.sampled_from([0.0, 0.1, 0.1, 0.5, 1.0, 1.0, 1.0, 1.0, 5.0, 11.0, 60.0, 400.0, -1.0])


@st.composite
def sequences(draw: st.DrawFn, *, may_stick: bool = False) -> list[tuple[Tick, int | None]]:
    """Any ticks of a whole GPU and one cut by MIG, each with what the whole GPU's counter has counted in all.

    If the counter may stick, it stands still for some ticks, and then continues or catches up.
    """
    world, counter, counted = World(), draw(st.integers(0, 10**6)), None
    with_counter = draw(st.integers(0, 5)) > 0
    missed_mj, sticks = 0, may_stick and with_counter
    made: list[tuple[Tick, int | None]] = []
    for _ in range(draw(st.integers(1, 20 if may_stick else 12))):
        world.now_ns += int(draw(STEPS) * S)
        world.starts = draw(st.dictionaries(PIDS, st.none() | st.integers(1, 2)))
        world.mps_servers = draw(st.dictionaries(PIDS, st.sampled_from(["root", "user"]), max_size=2))
        world.containers = draw(st.dictionaries(PIDS, st.sampled_from(["c1", "c2"])))
        if not draw(st.integers(0, 9)):
            made.append((Tick(world.now_ns, Driver(up=False)), counted))
            continue
        up = draw(st.integers(0, 7)) > 0
        how, mj = draw(ENERGY)
        if sticks and draw(st.integers(0, 3)):
            missed_mj, how, mj = missed_mj + mj, "stuck", 0
        elif how == "rise":
            missed_mj, mj = 0, mj + draw(st.sampled_from([0, missed_mj]))
        before = counter
        counter = mj + (mj == before) if how == "reset" else counter + mj  # only a stuck counter stands still
        told = up and how != "none" and with_counter
        if told:
            counted = counter if counted is None else counted + (counter - before if counter >= before else counter)
        else:
            counter = before
        listed, rows = draw(st.none() | RESIDENTS), draw(st.none() | SAMPLES)
        whole = Reading(
            GPU,
            up=up,
            energy_mj=counter if told else None,
            # Power stands in for a counter that was never there; one that comes later would have to be weighed with it.
            power_mw=draw(st.none() | st.integers(0, 700_000)) if told or not with_counter else None,
            power_limit_mw=draw(st.none() | st.just(700_000)),
            utilization_pct=draw(st.none() | st.integers(0, 100)),
            activity=draw(st.none() | ACTIVITY),
            clocks_mhz=draw(st.sampled_from([(), (("sm", 0),), (("sm", 1000),)])),
            max_clocks_mhz=draw(st.sampled_from([(), (("sm", 1980),)])),
            residents=None if listed is None else tuple(Resident(pid, kind) for pid, kind in listed),
            samples=None if rows is None else tuple(
                Sample(pid, world.now_ns // 1000 + at, pct, 0) for pid, pct, at in rows
            ),
        )  # fmt: skip
        cut = Reading(CUT, energy_mj=counter, residents=draw(st.none() | st.just(())))
        instances = [
            Reading(
                mig,
                residents=draw(st.none() | RESIDENTS.map(lambda rows: tuple(Resident(p, k, None, 1) for p, k in rows))),
                activity=draw(st.none() | ACTIVITY | st.floats(0, 100).map(lambda pct: Activity(sm_pct=pct))),
            )
            for mig in MIGS
        ]
        made.append((world.around(whole, cut, *instances), counted))
    return made


def never_falls(steps: list[tuple[Tick, int | None]], device: Device = GPU) -> bool:
    """Whether the counter of a device only rises."""
    told = [r.energy_mj for tick, _ in steps for r in tick.readings if r.device == device and r.energy_mj is not None]
    return told == sorted(told)


def account(tick: Tick) -> Account:
    """That of the first GPU."""
    return tick.accounts[tick.readings[0].device.uuid]


def energy(tick: Tick) -> dict[int, dict[str, int]]:
    """By pid and method."""
    return {use.resident.pid: dict(use.energy_mj) for use in tick.processes}


def run(*steps: dict[str, Any], world: World | None = None, **settings: Any) -> Tick:
    """Ticks one after the other; the last of them booked."""
    books, world = Books(**settings), world or World()
    booked = None
    for step in steps:
        booked = books.book(world.tick(*step.pop("pids", ()), **step))
    assert booked is not None
    return booked


def cut(world: World, *residents: tuple[int, ...], activity: tuple[float | None, ...] = (None, None)) -> Tick:
    """A tick of the GPU that is cut in two."""
    inside = [tuple(Resident(pid, "compute", gpu_instance_id=1) for pid in pids) for pids in residents]
    told = [None if pct is None else Activity(sm_pct=pct) for pct in activity]
    whole = Reading(CUT, energy_mj=world.energy_mj, residents=tuple(r for rows in inside for r in rows))
    migs = [Reading(mig, residents=r, activity=a) for mig, r, a in zip(MIGS, inside, told, strict=True)]
    return world.around(whole, *migs)


def reopened(books: Books, world_ns: int, policy: Policy | None = None, **settings: Any) -> Books:
    """New books that go on from the journal of these, through its bytes, as after a kill."""
    return resumed(decode(encode(books.state(BOOT, world_ns))), world_ns, policy, **settings)


def resumed(state: State, now_ns: int, policy: Policy | None = None, **settings: Any) -> Books:
    """Books that go on from there."""
    books = Books(policy=policy, **settings)
    books.resume(state, now_ns)
    return books


def accounts(tick: Tick) -> dict[str, Account]:
    """By GPU."""
    return dict(tick.accounts)


def parts_mj(tick: Tick, uuid: str) -> int:
    """All that is published of a GPU: its processes, retired, idle and unattributed energy."""
    account = accounts(tick)[uuid]
    processes = sum(
        mj for use in tick.processes if uuid in (use.device.uuid, use.device.parent_uuid) for _, mj in use.energy_mj
    )
    return processes + account.retired_mj + account.idle_mj + sum(mj for _, mj in account.unattributed_mj)


def published(tick: Tick) -> Mapping[object, object]:
    """What is said of processes, in no order."""
    return {(use.device.uuid, use.resident.pid): (use.active, use.energy_mj, use.busy_ns) for use in tick.processes}
