"""A tiny image for real runtimes: one static busybox, made here because tests pull nothing from anywhere."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from tests.components import program

FOLDERS = ("bin", "dev", "etc", "proc", "sys", "tmp")
APPLETS = ("cat", "echo", "env", "ls", "mkdir", "sh", "sleep", "true")


def busybox_tar() -> bytes:
    """A root file system as a tar, for `docker import -` and `podman import -`."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for folder in FOLDERS:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        binary = _busybox()
        entry = tarfile.TarInfo("bin/busybox")
        entry.size, entry.mode = len(binary), 0o755
        tar.addfile(entry, io.BytesIO(binary))
        for applet in APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return packed.getvalue()


def busybox_tree(folder: Path) -> None:
    """The same as a folder, for runtimes that take a bundle."""
    for name in FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "bin/busybox").write_bytes(_busybox())
    (folder / "bin/busybox").chmod(0o755)
    for applet in APPLETS:
        (folder / "bin" / applet).symlink_to("busybox")


def _busybox() -> bytes:
    binary = Path(program("busybox")).read_bytes()
    assert b"ld-linux" not in binary[:4096], "busybox is not static; install busybox-static"
    return binary
