"""Atomic writes: readers see the old file or the new one, never a part of it.

The directory may belong to another user, and this process may be root. Links are therefore followed only if they belong
to root or to the user of this process, and files are created under random names, in directories that are opened without
following any link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gpuledger.errors import UsageError

READABLE, PRIVATE = 0o644, 0o600
MOST_LINKS = 40
"""As many as the kernel follows."""
DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def replacing(path: str | Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """A file that replaces `path` at the end of the block. If anything fails, `path` does not change.

    It gets the mode of the old file; without one, every user can read it, as node_exporter has to. A private file can
    be read by its owner only; if root writes it, it is given to the owner of the directory.
    """
    try:
        target = resolve(path)
        directory = open_directory(target.parent)
        try:
            mode = _mode(target.name, directory, path)
            partial = f".{target.name}.{os.urandom(8).hex()}"
            descriptor = os.open(partial, NEW_FILE, PRIVATE, dir_fd=directory)
            try:
                with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
                    yield file
                    if private:
                        give_to_owner(descriptor, directory)
                    os.fchmod(descriptor, PRIVATE if private else mode)
                os.rename(partial, target.name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with suppress(OSError):
                    os.unlink(partial, dir_fd=directory)
                raise
        finally:
            os.close(directory)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "name a file that can be written") from None


def resolve(path: str | Path) -> Path:
    """The path without links. UsageError if a link on the way belongs to another user; the file need not exist."""
    names = list(reversed((Path.cwd() / path).parts[1:]))
    place, links = Path("/"), 0
    while names:
        name = names.pop()
        if name == "..":
            place = place.parent
            continue
        owner = _link_owner(place / name)
        if owner is None:
            place /= name
            continue
        links += 1
        if links > MOST_LINKS:
            raise UsageError(f"cannot write {path}: too many symbolic links", "name the file itself")
        if owner not in (0, os.geteuid()):
            raise UsageError(
                f"cannot write {path}: {place / name} is a symbolic link of another user (uid {owner})",
                "name the file itself, or choose another directory",
                "link",
            )
        link = (place / name).readlink()
        names += reversed(link.parts[1:] if link.is_absolute() else link.parts)
        place = Path("/") if link.is_absolute() else place
    return place


def open_directory(path: Path) -> int:
    """Open a directory without following any link: one may have been put there since the path was resolved."""
    directory = os.open("/", DIRECTORY)
    for name in path.parts[1:]:
        outer = directory
        try:
            directory = os.open(name, DIRECTORY, dir_fd=outer)
        finally:
            os.close(outer)
    return directory


def give_to_owner(file: int, directory: int) -> None:
    """As root, give a new file to the owner of its directory, so that an exporter of that user can use it."""
    owner = os.fstat(directory)
    if os.geteuid() == 0 and owner.st_uid:
        os.fchown(file, owner.st_uid, owner.st_gid)


def _link_owner(path: Path) -> int | None:
    """The uid of a symbolic link; None if it is none, or cannot be examined: then it cannot be opened either."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_uid if stat.S_ISLNK(status.st_mode) else None


def _mode(name: str, directory: int, path: str | Path) -> int:
    """The mode of the file that is replaced, if it belongs to this user or root; else the mode of a new file."""
    try:
        old = os.stat(name or ".", dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return READABLE
    if not stat.S_ISREG(old.st_mode):  # root could replace /dev/null by a regular file
        raise UsageError(f"cannot write {path}: it exists and is not a regular file", "name another file")
    return old.st_mode & 0o666 if old.st_uid in (0, os.geteuid()) else READABLE
