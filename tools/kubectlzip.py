"""The kubectl plugin as one file that needs only Python, in dist/kubectl-gpu.tar.gz, and its krew manifest."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import zipfile
from pathlib import Path

from gpuledger import __version__

ROOT = Path(__file__).parents[1]
MANIFEST = ROOT / "deploy" / "krew" / "gpu.yaml"
EPOCH = (2020, 1, 1, 0, 0, 0)
MAIN = "import sys\nfrom gpuledger.cli.kubectl import main\nsys.exit(main())\n"


def plugin() -> bytes:
    """The executable file: a zip archive of the package after a line that names Python. Reproducible."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        sources = ROOT / "src"
        texts = {str(path.relative_to(sources)): path.read_bytes() for path in sorted(sources.rglob("*.py"))}
        for name, text in {"__main__.py": MAIN.encode(), **texts}.items():
            info = zipfile.ZipInfo(name, EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(info, text)
    return b"#!/usr/bin/env python3\n" + archive.getvalue()


def package() -> bytes:
    """The plugin and its license."""
    files = {"kubectl-gpu": (plugin(), 0o755), "LICENSE": ((ROOT / "LICENSE").read_bytes(), 0o644)}
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        for name, (data, mode) in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def manifest(archive: bytes, repository: str) -> str:
    """The manifest with the version, and the address and checksum of the archive; without the comment."""
    text = MANIFEST.read_text(encoding="utf-8").partition("\n")[2].replace("VERSION", __version__)
    return text.replace("REPOSITORY", repository).replace("SHA256", hashlib.sha256(archive).hexdigest())


if __name__ == "__main__":
    built, dist = package(), ROOT / "dist"
    (dist / "kubectl-gpu.tar.gz").write_bytes(built)
    repository = os.environ.get("GITHUB_REPOSITORY", "OWNER/gpuledger")
    (dist / "gpu.yaml").write_text(manifest(built, repository), encoding="utf-8")
    print(f"wrote dist/kubectl-gpu.tar.gz ({len(built) >> 10} KiB) and dist/gpu.yaml")
