"""Snapshots as JSON for tests: short ways to write one, the demo's, and arbitrary ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from gpuledger.books import Books
from gpuledger.model import OUTSIDE, Owner
from gpuledger.recording.replay import Replay
from gpuledger.web.snapshot.build import snapshot
from gpuledger.web.snapshot.codec import decode
from gpuledger.web.snapshot.schema import VERSION, Snapshot

Picture = dict[str, Any]
"""A snapshot or a part of it as parsed JSON."""
GIB = 1 << 30
DEMO = Path(__file__).parents[3] / "src" / "gpuledger" / "demo.jsonl.gz"
NOW = 1_800_000_000.0
HOSTILE = (
    "\x1b]0;owned\x07",
    "[bold red]x[/]",
    "a\nb\tc",
    "\u202egnp.exe",
    "e\u0301" + "\u0301" * 9,
    "漢字" * 20,
    "\ud800",
    "",
)


def gpu(index: int = 0, **more: Any) -> Picture:
    """A healthy one, half used."""
    uuid = f"GPU-{index}"
    given: Picture = {
        "gpu": index, "uuid": uuid, "gpu_uuid": uuid, "name": "NVIDIA H200", "mig_profile": "", "up": True,
        "reason": "", "memory": memory(), "utilization_ratio": 0.5, "power_watts": 350.0, "power_limit_watts": 700.0,
        "temperatures_celsius": {"gpu": 50}, "slowed_by": [], "xids": {}, "energy": {"joules": 1000.0},
    }  # fmt: skip
    return {**given, **more}


def memory(**more: Any) -> Picture:
    """80 GiB of 160."""
    given = {"total_bytes": 160 * GIB, "used_bytes": 80 * GIB, "reserved_bytes": 0, "overhead_bytes": 0,
             "unknown_bytes": 0, "inferred_bytes": 0}  # fmt: skip
    return {**given, **more}


def process(pid: int, index: int = 0, **more: Any) -> Picture:
    """One outside of containers; what is not given is not known."""
    given: Picture = {
        **_use(index), "pid": pid, "process_name": "python3", "kind": "compute", "active": True, "start_time": NOW - 90,
        "energy_share_error_ratio": None, "unknown_because": OUTSIDE,
    }  # fmt: skip
    return owned({**given, **more})


def owned(row: Picture) -> Picture:
    """The row with the owner that an exporter would write, unless it has one."""
    names = ("namespace", "pod", "container", "pod_uid", "container_id", "unit", "job")
    owner = Owner(**{name: row[name] for name in names}, reason=row["unknown_because"])
    return {"owner": owner.display_name, **row}


def container(name: str, index: int = 0, **more: Any) -> Picture:
    """One of Docker's."""
    given = {**_use(index), "container": name, "container_id": name * 3, "processes": 1, "inferred_bytes": None}
    return owned({**given, **more})


def _use(index: int) -> Picture:
    texts = ("namespace", "pod", "container", "pod_uid", "container_id", "runtime", "image", "workload", "unit", "job",
             "user", "unknown_because")  # fmt: skip
    numbers = ("memory_bytes", "sm_ratio", "watts", "busy_seconds")
    place = {"gpu": index, "uuid": f"GPU-{index}", "gpu_uuid": f"GPU-{index}", "joules": {}}
    return {**place, **dict.fromkeys(texts, ""), **dict.fromkeys(numbers)}


def picture(*gpus: Picture, processes: Any = (), containers: Any = (), **more: Any) -> Picture:
    """A host that is well."""
    given: Picture = {
        "version": VERSION, "gpuledger": "1.2.3", "time": NOW, "interval_seconds": 1.0, "node": "n1",
        "recording": False, "driver": {"up": True, "reason": "", "driver_version": "580.1", "cuda_version": "13.0"},
        "gpus": list(gpus), "processes": list(processes), "containers": list(containers), "dropped_processes": 0,
        "problems": [],
    }  # fmt: skip
    return {**given, **more}


def pod(name: str, pid: int, index: int = 0, **more: Any) -> tuple[Picture, Picture]:
    """A process in a pod of namespace `ml`, and its container."""
    names = {"namespace": "ml", "pod": name, "container": "main", "container_id": f"{name}-id", "unknown_because": ""}
    numbers = {key: more[key] for key in ("memory_bytes", "sm_ratio", "watts", "joules") if key in more}
    return process(pid, index, **names, **more), container("", index, **names, **numbers)


def busy() -> Picture:
    """Two GPUs with pods, a container, a service, an unknown owner, an exited process, and inferred memory."""
    a, in_a = pod("train-0", 11, memory_bytes=40 * GIB, sm_ratio=0.8, watts=500.0, joules={"exclusive": 9000.0})
    b, in_b = pod("train-0", 12, 1, memory_bytes=20 * GIB, sm_ratio=0.5, watts=200.0, joules={"sm_time": 4000.0})
    c, in_c = pod("chat-1", 13, memory_bytes=10 * GIB, sm_ratio=0.1, watts=None, joules={"sm_time": 50.0}, user="eve",
                  energy_share_error_ratio=0.25)  # fmt: skip
    return picture(
        gpu(0, memory=memory(unknown_bytes=6 * GIB, inferred_bytes=4 * GIB)),
        gpu(1, slowed_by=["gpu_idle", "hw_slowdown"], xids={"79": 1}),
        processes=[
            a, b, c,
            process(21, unit="ollama.service", process_name="ollama", memory_bytes=5 * GIB, watts=0.0, user="ollama"),
            process(22, 1, unknown_because="its cgroup cannot be read", user="root"),
            process(23, active=False, joules={"exclusive": 700.0}, process_name="old"),
        ],
        containers=[in_a, in_b, in_c, container("hidden", inferred_bytes=4 * GIB, processes=0)],
    )  # fmt: skip


def shown_as(one: Picture) -> Snapshot:
    """As a client decodes it."""
    return decode(one)


def demo(ticks: int = 30) -> Snapshot:
    """The bundled recording after some ticks."""
    replay, books = Replay(DEMO, paced=False), Books()
    before = tick = books.book(replay.read())
    for _ in range(ticks - 1):
        before, tick = tick, books.book(replay.read())
    return snapshot(tick, before, node="n1")


NAMES = st.sampled_from(HOSTILE) | st.text(max_size=40)
NUMBERS = st.none() | st.integers(0, 10**15) | st.floats(0, 1e12)
JUNK = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
)
PLACES = st.fixed_dictionaries({"gpu": st.integers(0, 20), "uuid": st.sampled_from(["GPU-0", "MIG-0"]),
                                "gpu_uuid": st.just("GPU-0")})  # fmt: skip


def _record(texts: str, numbers: str, **more: Any) -> st.SearchStrategy[Picture]:
    fields: dict[str, Any] = dict.fromkeys(texts.split(), NAMES | NAMES | JUNK)
    fields |= dict.fromkeys(numbers.split(), NUMBERS | NUMBERS | JUNK)
    both = st.tuples(PLACES, st.fixed_dictionaries({}, optional=fields | more))
    return both.map(lambda parts: {**parts[0], **parts[1]})


JOULES = st.dictionaries(st.sampled_from(["exclusive", "sm_time"]) | NAMES, NUMBERS, max_size=3)
USES = _record(
    "owner process_name kind namespace pod container container_id unit job workload image user unknown_because",
    "start_time memory_bytes sm_ratio watts busy_seconds energy_share_error_ratio inferred_bytes processes",
    active=st.booleans(), joules=JOULES | JUNK,
)  # fmt: skip
GPUS = _record(
    "name mig_profile reason",
    "utilization_ratio power_watts power_limit_watts",
    up=st.booleans(),
    memory=_record("", "total_bytes used_bytes reserved_bytes overhead_bytes unknown_bytes inferred_bytes") | JUNK,
    temperatures_celsius=st.dictionaries(st.just("gpu"), NUMBERS) | JUNK,
    slowed_by=st.lists(NAMES, max_size=3) | JUNK, xids=JOULES, energy=_record("", "joules"),
)  # fmt: skip
PICTURES = st.builds(
    lambda gpus, processes, pids, containers, more: {
        **picture(*gpus, processes=[{**p, "pid": pid} for p, pid in zip(processes, pids, strict=False)],
                  containers=containers), **more,
    },
    st.lists(GPUS, max_size=4), st.lists(USES, max_size=6), st.lists(st.integers(1, 9), min_size=6, max_size=6),
    st.lists(USES, max_size=3),
    st.fixed_dictionaries({}, optional={
        "node": NAMES | JUNK, "time": NUMBERS | JUNK, "gpuledger": NAMES, "recording": st.booleans(),
        "driver": st.fixed_dictionaries({"up": st.booleans(), "reason": NAMES}) | JUNK,
        "problems": st.lists(
            st.fixed_dictionaries({
                "level": st.sampled_from(["problem", "warning", "note"]), "about": NAMES, "what": NAMES, "fix": NAMES,
            }), max_size=3
        ),
        "dropped_processes": NUMBERS, "process_count": NUMBERS | JUNK,
    }),
)  # fmt: skip
"""Whatever another host may send: hostile names, missing and senseless values."""
MANY = settings(max_examples=60)
"""For tests over pictures, which are large, on a machine that has other things to do."""
