"""The journal's file: who may write it, which one is used, and what a disk on a bad day costs."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuledger import journalfile
from gpuledger.books.book import Books
from gpuledger.books.journal import LARGEST_BYTES, State, encode
from gpuledger.errors import ConfigError
from gpuledger.journalfile import JournaledBooks, JournalFile
from gpuledger.model import Tick
from tests.books.worlds import GPU, S, World, accounts

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
    let_go, calls = threading.Event(), 0
    write = JournalFile.write

    def hang(file: JournalFile, state: State) -> int:
        nonlocal calls
        calls += 1
        let_go.wait()
        return write(file, state)

    monkeypatch.setattr(JournalFile, "write", hang)
    monkeypatch.setattr(journalfile, "HANGS_S", 0.0)
    monkeypatch.setattr(journalfile, "WRITE_TIMEOUT_S", 0.01)
    world, books = World(), opened()
    caplog.clear()

    shown = [books.book(world.tick(7, mj=100)) for _ in range(5)]

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
