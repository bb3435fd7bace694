"""The directory of jobs that a scheduler's prolog writes: what is in it, what changes, and what does not belong."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuledger.errors import ProviderError
from gpuledger.owners.providers.hpcdir import HpcProvider


def write(path: Path, text: str | bytes, at_s: int) -> None:
    """A file with a time of its own, so that no test depends on how fine the clock is."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    os.utime(path, (at_s, at_s))
    os.utime(path.parent, (at_s, at_s))


def test_jobs(tmp_path: Path) -> None:
    """Whole GPUs and MIG instances, one job to a line, in order and each once; a GPU without a job is left out."""
    write(tmp_path / "0", "job1\njob2\n", 1)
    write(tmp_path / "1.3", " 211 \r\n\n211\n212", 1)
    write(tmp_path / "12", "\n", 1)

    assert HpcProvider(tmp_path).fetch().jobs == {(0, None): ("job1", "job2"), (1, 3): ("211", "212")}


def test_accounts(tmp_path: Path) -> None:
    """The account of a job is the first line of its file; an empty file has none."""
    write(tmp_path / "account.211", "physics\nx\n", 1)
    write(tmp_path / "account.212", "\n", 1)
    write(tmp_path / "account.x", "chemistry", 1)

    names = HpcProvider(tmp_path).fetch()
    assert (names.accounts, names.jobs) == ({"211": "physics"}, {})


def test_users(tmp_path: Path) -> None:
    """The user of a job is a number."""
    write(tmp_path / "user.211", "1001\n", 1)
    write(tmp_path / "user.212", "alice\n", 1)

    names = HpcProvider(tmp_path).fetch()
    assert (names.job_uids, names.accounts, names.jobs) == ({"211": "1001"}, {}, {})


def test_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read again when a file came, changed or went, and only then."""
    directory = HpcProvider(tmp_path)
    write(tmp_path / "0", "a", 1)
    first = directory.fetch().jobs
    opened: list[str] = []
    real = os.open

    def note(path: Path, flags: int) -> int:
        opened.append(path.name)
        return real(path, flags)

    monkeypatch.setattr(os, "open", note)
    assert directory.fetch().jobs is first
    assert opened == []

    write(tmp_path / "0", "b", 2)
    assert directory.fetch().jobs == {(0, None): ("b",)}
    write(tmp_path / "1", "c", 3)
    assert directory.fetch().jobs == {(0, None): ("b",), (1, None): ("c",)}
    (tmp_path / "0").unlink()
    assert directory.fetch().jobs == {(1, None): ("c",)}
    assert opened == ["0", "0", "1", "1"]


def test_changed_twice_in_one_tick_of_the_clock(tmp_path: Path) -> None:
    """A file that changed just now may do so again without another time or size, so it is read again."""
    directory = HpcProvider(tmp_path)
    now_s = int(time.time())
    write(tmp_path / "0", "a", now_s)
    directory.fetch()
    write(tmp_path / "0", "b", now_s)

    assert directory.fetch().jobs == {(0, None): ("b",)}


def test_replaced_by_rename(tmp_path: Path) -> None:
    """A file that another one took the place of is another one, even with the same time and size."""
    directory = HpcProvider(tmp_path)
    write(tmp_path / "0", "a", 1)
    directory.fetch()
    write(tmp_path / ".new", "b", 1)
    (tmp_path / ".new").rename(tmp_path / "0")
    os.utime(tmp_path, (1, 1))

    assert directory.fetch().jobs == {(0, None): ("b",)}


def test_junk(tmp_path: Path) -> None:
    """Entries with other names or types are never opened: not a pipe, which would wait, nor a link to a secret."""
    for name in ("readme", "0.1.2", "-1", "00", "1.", "٣", "99999", "GPU-1"):
        write(tmp_path / name, "x", 1)
    (tmp_path / "2").mkdir()
    os.mkfifo(tmp_path / "3")
    (tmp_path / "4").symlink_to(tmp_path / "readme")
    write(tmp_path / "5", "x" * 65537, 1)
    write(tmp_path / "6", b"\xff\xfe\nok\n" + b"y" * 129 + b"\na\x00b\n", 1)
    directory = HpcProvider(tmp_path)

    assert directory.fetch().jobs == {(6, None): ("��", "ok")}


def test_bounds(tmp_path: Path) -> None:
    """A file with thousands of jobs, and a directory with thousands of files, cost no more than they should."""
    write(tmp_path / "0", "".join(f"{number}\n" for number in range(5000)), 1)
    directory = HpcProvider(tmp_path)
    assert len(directory.fetch().jobs[0, None]) == 256

    for number in range(4097):
        (tmp_path / f"x{number}").touch()
    with pytest.raises(ProviderError, match="more than 4096 files"):
        directory.fetch()


def test_missing_directory(tmp_path: Path) -> None:
    """The error names it and what to do; when it is there, it is read."""
    directory = HpcProvider(tmp_path / "jobs")
    with pytest.raises(ProviderError, match=r"cannot read .*/jobs: No such file or directory; create the directory"):
        directory.fetch()
    (tmp_path / "jobs").mkdir()
    write(tmp_path / "jobs" / "0", "a", 1)

    assert directory.fetch().jobs == {(0, None): ("a",)}


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be opened costs its own jobs only."""
    write(tmp_path / "0", "a", 1)
    write(tmp_path / "1", "b", 1)
    real = os.open

    def refuse(path: Path, flags: int) -> int:
        if path.name == "0":
            raise PermissionError(13, "Permission denied")
        return real(path, flags)

    monkeypatch.setattr(os, "open", refuse)
    directory = HpcProvider(tmp_path)

    assert directory.fetch().jobs == {(1, None): ("b",)}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(data=st.binary(max_size=400))
def test_any_content(tmp_path: Path, data: bytes) -> None:
    """Whatever a file holds, jobs are texts of one line that can be printed."""
    (tmp_path / "0").write_bytes(data)
    jobs = HpcProvider(tmp_path).fetch().jobs.get((0, None), ())

    assert all(job.isprintable() and job.strip() == job and job for job in jobs)
