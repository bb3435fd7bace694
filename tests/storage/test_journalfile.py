"""The journal's file: its lock, which files are used, and slow or failing disks."""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gpuledger.books import Books
from gpuledger.errors import ConfigError
from gpuledger.ledger.state import State
from gpuledger.model import Activity, Tick
from gpuledger.storage import fingerprints, journalfile
from gpuledger.storage.journal import LARGEST_BYTES, encode, zipped
from gpuledger.storage.journalfile import JournaledBooks, JournalFile
from tests.builders import GPU, S, World, accounts, energy

BOOT = "8a6f3c52"
Open = Callable[..., JournaledBooks]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the journal is."""
    return tmp_path / "journal"


@pytest.fixture
def opened(path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens journals that wait for a busy machine, and closes all of them at the end."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(journalfile, "WRITE_TIMEOUT_S", 10.0)
    monkeypatch.setattr(journalfile, "CLOSE_TIMEOUT_S", 10.0)
    made: list[JournaledBooks] = []

    def make(where: Path = path, boot_id: str = BOOT, interval_s: float = 0.0) -> JournaledBooks:
        made.append(JournaledBooks(Books(), str(where), boot_id=boot_id, interval_s=interval_s))
        return made[-1]

    yield make
    for one in made:
        one.close()


def total_mj(tick: Tick) -> int | None:
    """Of the GPU."""
    return accounts(tick)[GPU.uuid].energy_mj


def test_totals_go_on(opened: Open, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A tick is in the file before it is shown; the next books begin there, and say so in one line."""
    world, books = World(), opened()
    shown = books.book(world.tick(7))
    shown = books.book(world.tick(7, mj=500))
    state = JournalFile(str(path)).read(BOOT)
    assert state is not None
    assert state.time_ns == shown.time_ns
    assert shown.journal is not None
    assert (shown.journal.written_ns, shown.journal.failures) == (shown.time_ns, 0)
    assert shown.journal.size_bytes == path.stat().st_size
    books.close()
    caplog.clear()

    again = opened().book(world.tick(7, mj=900, samples=False))

    assert total_mj(again) == 1_001_400
    assert again.processes[0].energy_mj == (("exclusive", 500), ("gap", 900))
    assert [r.message.partition(", written")[0] for r in caplog.records] == [f"totals continue from journal {path}"]
    assert sorted(file.name for file in path.parent.iterdir()) == ["journal", "journal.lock"]


def write_state(path: Path, boot_id: str = BOOT) -> bytes:
    """A journal of a GPU."""
    world, books = World(), Books()
    books.book(world.tick(7))
    data = encode(books.state(boot_id, world.now_ns))
    path.write_bytes(data)
    return data


def damaged(path: Path) -> None:
    """The last byte is missing."""
    path.write_bytes(write_state(path)[:-1])


def huge(path: Path) -> None:
    """A file that is larger than any journal."""
    with path.open("wb") as file:
        file.truncate(LARGEST_BYTES + 1)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "another boot": (lambda path: write_state(path, boot_id="other"), "written in another boot"),
    "damaged": (damaged, "truncated"),
    "empty": (Path.touch, "truncated"),
    "huge": (huge, "larger than 16 MiB"),
    "folder": (Path.mkdir, "not a regular file"),
    "pipe": (os.mkfifo, "not a regular file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_said_once(
    case: str, opened: Open, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In one line with the file and the reason; the books begin anew, and write over it where they can."""
    make, reason = REFUSED[case]
    make(path)

    shown = opened().book(World().tick(7))

    assert caplog.records[0].message == f"cannot resume from journal {path}: {reason}; totals start from zero"
    assert total_mj(shown) == 1_000_000
    if case in ("folder", "pipe"):
        assert len(caplog.records) == 2
        assert not path.is_file()
    else:
        assert len(caplog.records) == 1
        assert JournalFile(str(path)).read(BOOT) is not None


def test_a_boot_without_a_name_is_no_boot(opened: Open, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two of them are not the same one."""
    write_state(path, boot_id="")

    opened(boot_id="")

    assert "the boot id cannot be read" in caplog.records[0].message


def test_a_second_one_is_refused(opened: Open, path: Path) -> None:
    """Before it reads or writes anything, by whatever name it knows the file; once the first has ended, it may."""
    first = opened()
    link = path.with_name("link")
    link.symlink_to(path)

    with pytest.raises(ConfigError) as caught:
        opened(link)

    assert str(caught.value) == (f"--journal.path: {path} is in use by another running gpuledger; choose another file")
    first.close()
    opened(link)


def test_what_a_killed_one_left_is_removed(opened: Open, path: Path) -> None:
    """Half a file under another name, and nothing else."""
    for name in (".journal.77", ".journal2.77", "journal.77"):
        (path.parent / name).touch()

    opened()

    assert sorted(file.name for file in path.parent.iterdir()) == [".journal2.77", "journal.77", "journal.lock"]


def test_a_file_that_cannot_be_written_costs_a_line(
    opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """When it begins and when it ends; every tick is shown, and the failures are counted."""
    world, folder = World(), tmp_path / "later"
    books = opened(folder / "journal")
    caplog.clear()

    shown = [books.book(world.tick(7, mj=100)) for _ in range(3)]
    folder.mkdir()
    shown += [books.book(world.tick(7, mj=100)) for _ in range(2)]

    assert [tick.journal and tick.journal.failures for tick in shown] == [1, 2, 3, 3, 3]
    assert [tick.journal and tick.journal.written_ns for tick in shown] == [None] * 3 + [t.time_ns for t in shown[3:]]
    assert [total_mj(tick) for tick in shown] == [1_000_100 + 100 * n for n in range(5)]
    path = folder / "journal"
    reason = f"cannot write {path}: No such file or directory; choose a writable file"
    assert [record.message for record in caplog.records] == [
        f"journal is not written: {reason}",
        f"journal {path} is written again",
    ]


def test_a_disk_that_hangs_delays_nothing(
    opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One write waits for it, ticks go on, and one line tells of it; when it is back, the newest tick is written."""
    hangs, let_go, calls = threading.Event(), threading.Event(), 0
    write = JournalFile.write

    def hang(file: JournalFile, state: State) -> int:
        nonlocal calls
        calls += 1
        hangs.set()
        let_go.wait()
        return write(file, state)

    monkeypatch.setattr(JournalFile, "write", hang)
    monkeypatch.setattr(journalfile, "HANGS_S", 0.0)
    monkeypatch.setattr(journalfile, "WRITE_TIMEOUT_S", 0.01)
    world, books = World(), opened()
    caplog.clear()

    shown = [books.book(world.tick(7, mj=100)) for _ in range(5)]

    assert hangs.wait(10)
    assert calls == 1
    assert total_mj(shown[-1]) == 1_000_500
    assert len(caplog.records) == 1
    assert "takes longer than" in caplog.records[0].message
    let_go.set()
    books.close()
    state = JournalFile(str(books._file.path)).read(BOOT)
    assert state is not None
    assert state.time_ns == shown[-1].time_ns


def test_it_is_written_every_interval_and_at_the_end(opened: Open, path: Path) -> None:
    """With 10 s between, and what is not written yet when the exporter stops."""
    world, books = World(), opened(interval_s=10)
    written = []
    for _ in range(25):
        shown = books.book(world.tick(7, mj=100))
        assert shown.journal is not None
        written.append(((shown.journal.written_ns or 0) - World().now_ns) // S)

    assert sorted(set(written)) == [1, 11, 21]
    books.close()
    state = JournalFile(str(path)).read(BOOT)
    assert state is not None
    assert state.time_ns == world.now_ns


WORK = {
    "train": (Activity(sm_pct=95.0, tensor_pct=93.0, dram_pct=17.0), 570_000),
    "copy": (Activity(sm_pct=99.0, dram_pct=88.0), 360_000),
}
"""Activity and millijoules a second above parked power, by program."""
PARKED_MJ = 100_000


def alone(world: World, pid: int) -> Tick:
    """A second in which only this process works."""
    activity, mj = WORK[world.names[pid]]
    return world.tick(pid, mj=PARKED_MJ + mj, work={pid: 100}, activity=activity, utilization_pct=100)


def together(world: World, *pids: int) -> Tick:
    """A second in which two processes have half of the compute engine each."""
    both = [WORK[world.names[pid]] for pid in pids]
    sm, tensor, dram = (
        sum((getattr(activity, unit) or 0.0) / 2 for activity, _ in both)
        for unit in ("sm_pct", "tensor_pct", "dram_pct")
    )
    return world.tick(
        *pids, mj=PARKED_MJ + sum(mj for _, mj in both) // 2, work=dict.fromkeys(pids, 50),
        activity=Activity(sm_pct=sm, tensor_pct=tensor, dram_pct=dram), utilization_pct=100,
    )  # fmt: skip


def learn(books: JournaledBooks, *, world: World | None = None, seconds: int = 6) -> World:
    """Two workloads, each alone for a while."""
    world = world or World(names={1: "train", 2: "copy"})
    for pid in (1, 2):
        for _ in range(2):
            books.book(world.tick(pid, mj=PARKED_MJ, activity=Activity(sm_pct=0.0), utilization_pct=0))
        for _ in range(seconds):
            books.book(alone(world, pid))
        books.book(world.tick())
    return world


def share(books: JournaledBooks) -> float:
    """The part of `train` in the first shared energy of two new processes that have half of the engine each."""
    world = World(names={11: "train", 12: "copy"})
    for _ in range(6):
        booked = books.book(together(world, 11, 12))
    energy_mj = energy(booked)
    train, copy = (energy_mj[pid]["fingerprint"] for pid in (11, 12))
    return train / (train + copy)


def beside(path: Path) -> Path:
    """The file of the fingerprints."""
    return path.with_name(f"{path.name}.fingerprints")


def known(path: Path) -> list[str]:
    """The programs in the file."""
    workloads = JournalFile(str(path)).read_fingerprints()
    assert workloads is not None
    return [workload.workload["process_name"] for workload in workloads]


@pytest.mark.parametrize("boot_id", [BOOT, "another"])
def test_workloads_are_known_after_a_restart(
    boot_id: str, opened: Open, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also after a reboot: shared energy of new processes is split by fingerprints from the start."""
    first = opened()
    learn(first)
    first.close()
    assert known(path) == ["train", "copy"]
    caplog.clear()

    again = opened(boot_id=boot_id)

    assert f"fingerprints restored from {beside(path)}, number of workloads: 2" in caplog.messages
    assert share(again) == pytest.approx(570 / (570 + 360), abs=0.02)
    again.close()
    beside(path).unlink()
    assert share(opened(boot_id="third")) == pytest.approx(0.5, abs=0.02)


def cut(path: Path) -> None:
    """The last byte is missing."""
    path.write_bytes(fingerprints.encode([])[:-1])


def newer(path: Path) -> None:
    """A file of a later version."""
    path.write_bytes(zipped(b'{"gpuledger":"fingerprints","version":3}'))


def older(path: Path) -> None:
    """A file of version 1, as an exporter before an upgrade wrote it."""
    path.write_bytes(
        zipped(
            b'{"gpuledger":"fingerprints","version":1,"workloads":[{"labels":[["process_name","copy"],["uid","0"]],'
            b'"peak":1.0,"behaviours":[{"seconds":9.0,"engine_s":9.0,"joules":99.0,"clock_s":9.0,"spread":0.0,'
            b'"activity_s":[["sm",8.0]]}]}]}'
        )
    )


def large(path: Path) -> None:
    """A file that is larger than the limit."""
    with path.open("wb") as file:
        file.truncate(fingerprints.LARGEST_BYTES + 1)


UNUSABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (cut, "truncated"),
    "empty": (Path.touch, "truncated"),
    "newer": (newer, "format version 3, but this gpuledger reads version 2"),
    "older": (older, "format version 1, but this gpuledger reads version 2"),
    "another file": (write_state, "not a file of gpuledger fingerprints"),
    "large": (large, "larger than 4 MiB"),
    "directory": (Path.mkdir, "not a regular file"),
    "pipe": (os.mkfifo, "not a regular file"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_fingerprints_are_logged_once(
    case: str, opened: Open, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The fingerprints start empty, and the file is overwritten; a directory or a pipe is not."""
    make, reason = UNUSABLE[case]
    make(beside(path))

    books = opened()

    line = f"cannot restore fingerprints from {beside(path)}: {reason}; fingerprints start empty"
    assert caplog.messages[1:] == [line]  # the first line is about the journal
    caplog.clear()
    learn(books)
    books.close()
    if case in ("directory", "pipe"):
        (message,) = caplog.messages
        assert message.startswith(f"fingerprints are not written: cannot write {beside(path)}: ")
    else:
        assert caplog.messages == []
        assert known(path) == ["train", "copy"]


def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the files of fingerprints that are written from now on."""
    sizes: list[int] = []
    write = JournalFile.write_fingerprints

    def count(file: JournalFile, workloads: Sequence[fingerprints.WorkloadState]) -> int:
        sizes.append(write(file, workloads))
        return sizes[-1]

    monkeypatch.setattr(JournalFile, "write_fingerprints", count)
    return sizes


def test_fingerprints_are_written_once_a_minute_and_at_the_end(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first observation, once within the next minute, and the rest when the exporter stops."""
    written, world, books = writes(monkeypatch), World(names={1: "train"}), opened()
    for _ in range(100):
        books.book(alone(world, 1))
        books._collect(10.0)  # a second passes

    assert len(written) == 2
    books.close()
    assert len(written) == 3


def test_fingerprints_are_not_written_without_a_change(
    opened: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle hours, and a restart after which nothing was learned."""
    books = opened()
    world = learn(books)
    books.close()
    written, before = writes(monkeypatch), beside(path).stat().st_mtime_ns

    again = opened()
    for _ in range(5):
        again.book(world.tick(mj=100, after_s=3600))
    again.close()

    assert written == []
    assert beside(path).stat().st_mtime_ns == before


def test_a_nameless_process_leaves_no_file(opened: Open, path: Path) -> None:
    """Nothing was learned of a workload, so there is nothing to write."""
    world, books = World(), opened()
    for _ in range(20):
        books.book(world.tick(7, mj=500_000, work={7: 100}, activity=Activity(sm_pct=90.0)))
    books.close()

    assert not beside(path).exists()


def test_a_disk_that_hangs_on_fingerprints_delays_nothing(
    opened: Open, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ticks continue without their journal, one line reports it, and both files are written afterwards."""
    released, written = threading.Event(), writes(monkeypatch)
    write = JournalFile.write_fingerprints

    def hang(file: JournalFile, workloads: Sequence[fingerprints.WorkloadState]) -> int:
        released.wait()
        return write(file, workloads)

    monkeypatch.setattr(JournalFile, "write_fingerprints", hang)
    monkeypatch.setattr(journalfile, "HANGS_S", 0.0)
    books = opened()
    caplog.clear()

    world = learn(books)

    assert written == []
    assert caplog.messages == [f"fingerprints are not written: writing {beside(path)} takes longer than 0 s"]
    released.set()
    books.close()
    assert caplog.messages[1:] == [f"fingerprints {beside(path)} are written again"]
    assert known(path) == ["train", "copy"]
    state = JournalFile(str(path)).read(BOOT)
    assert state is not None
    assert state.time_ns == world.now_ns


class SlowWorker:
    """A writer whose jobs are never done within the tick that starts them."""

    def __init__(self, _name: str) -> None:
        self.busy = False
        self._is_done = False

    def start(self, job: Callable[[], int]) -> None:
        """The next result is too early."""
        self.busy, self._is_done, self._job = True, False, job

    def result(self, _timeout_s: float) -> int | None:
        """None, and at the next call the size."""
        if not self._is_done:
            self._is_done = True
            return None
        self.busy = False
        return self._job()

    def close(self) -> None:
        """There is no thread."""


def test_a_slow_journal_does_not_starve_the_fingerprints(
    opened: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If each journal takes longer than a tick waits, the fingerprints replace the journal of one tick."""
    monkeypatch.setattr(journalfile, "Worker", SlowWorker)
    world, books, written = World(names={1: "train"}), opened(), writes(monkeypatch)
    shown = [books.book(alone(world, 1)) for _ in range(20)]

    assert len(written) == 1
    assert known(path) == ["train"]
    assert len({tick.journal and tick.journal.written_ns for tick in shown}) == 19


@pytest.mark.needs("root")
def test_a_lock_created_by_root_belongs_to_the_owner_of_the_directory(path: Path) -> None:
    """An exporter that runs as that user can open it, and no other user can."""
    os.chown(path.parent, 65534, 65534)

    file = JournalFile(str(path))
    file.write_fingerprints(())
    file.close()

    for name in ("journal.lock", "journal.fingerprints"):
        status = path.with_name(name).stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (65534, 0o600)
