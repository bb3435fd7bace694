"""A file that is there whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpuledger.errors import UsageError
from gpuledger.storage.atomicfile import replacing, resolve


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path: Path) -> None:
    """Readers see one or the other; afterwards nothing else is left, and the same users may read it as before."""
    path = tmp_path / "gpu.prom"
    path.write_text("old")
    path.chmod(0o640)

    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
        assert list(tmp_path.glob("*.prom")) == [path]  # what node_exporter would read

    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("bug")])
def test_when_writing_fails_nothing_has_changed(error: BaseException, tmp_path: Path) -> None:
    """Neither the old file nor the folder."""
    path = tmp_path / "gpu.prom"
    path.write_text("old")

    with pytest.raises((UsageError, KeyboardInterrupt, ValueError)), replacing(path) as file:
        file.write(b"half" + _raise(error))

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def _raise(error: BaseException) -> bytes:
    raise error


def test_a_full_disk_is_said_in_one_line(tmp_path: Path) -> None:
    """With the file's name and the system's reason."""
    with pytest.raises(UsageError) as caught, replacing(tmp_path / "x"):
        raise OSError(28, "No space left on device")

    assert str(caught.value) == (
        f"cannot write {tmp_path / 'x'}: No space left on device; name a file that can be written"
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no/such/folder", "No such file or directory; name a file that can be written"),
        ("file/below", "Not a directory; name a file that can be written"),
        ("x" * 300, "File name too long; name a file that can be written"),
        ("", "it exists and is not a regular file; name another file"),
        ("/", "it exists and is not a regular file; name another file"),
        ("/dev/null", "it exists and is not a regular file; name another file"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_done(name: str, reason: str, tmp_path: Path) -> None:
    """In particular a device: renaming a file over /dev/null would take it from the whole host."""
    (tmp_path / "file").write_text("")
    path = tmp_path / name

    with pytest.raises(UsageError) as caught, replacing(path):
        pytest.fail("there is nothing to write to")

    assert str(caught.value) == f"cannot write {path}: {reason}"


def test_private_file(tmp_path: Path) -> None:
    """Only its owner may read it, also while it is written and if others could read the old one."""
    path = tmp_path / "journal"
    path.touch(0o644)
    with replacing(path, private=True) as file:
        assert {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir() if p != path} == {0o600}
        file.write(b"new")

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_links_in_a_circle(tmp_path: Path) -> None:
    """They are refused, not followed for ever."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    with pytest.raises(UsageError, match="too many symbolic links"):
        resolve(tmp_path / "a")


def test_relative_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path from the working directory, over links and .., leads where the kernel says; the end need not exist."""
    (tmp_path / "one" / "two").mkdir(parents=True)
    (tmp_path / "link").symlink_to("one/two")
    (tmp_path / "one" / "two" / "back").symlink_to("../../link")
    monkeypatch.chdir(tmp_path)

    for name in ("link/../file", "link/back/x/y", "./link", "one/two/back/../new"):
        assert str(resolve(name)) == os.path.realpath(name)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """What it points to is replaced."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)

    with replacing(link) as file:
        file.write(b"new")

    assert link.is_symlink()
    assert target.read_text() == "new"
