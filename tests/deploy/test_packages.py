"""Debian and RPM packages: reproducible, and without complaints of the distributions' linters."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuledger import __version__
from tests import checkout
from tests.components import program
from tools import packages

TOLERATED = {
    "no-signature",  # the key is the packager's
    "only-non-binary-in-usr-lib",  # units
    "no-url-tag",
    "no-manual-page-for-binary",  # looked for without the suffix .gz
    "manpage-not-compressed",  # with bz2
    "invalid-license",  # SPDX
}
"""Of rpmlint, in the default configuration of Debian."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Both packages."""
    folder = tmp_path_factory.mktemp("dist")
    os.environ.setdefault("SOURCE_DATE_EPOCH", "1700000000")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(argv, cwd=checkout.ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return [packages.deb(wheel, folder), packages.rpm(wheel, folder)]


def output(*words: str) -> str:
    """What a command prints, whatever its exit status is."""
    done = subprocess.run([program(words[0]), *words[1:]], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.needs("dpkg-deb", "rpmbuild")
def test_packages_are_reproducible(built: list[Path], tmp_path: Path) -> None:
    """The same wheel and date give the same bytes."""
    (wheel,) = built[0].parent.glob("*.whl")
    again = [packages.deb(wheel, tmp_path), packages.rpm(wheel, tmp_path)]

    digests = [[hashlib.sha256(path.read_bytes()).hexdigest() for path in paths] for paths in (built, again)]
    assert digests[0] == digests[1]


@pytest.mark.needs("dpkg-deb", "rpmbuild")
def test_content_of_packages(built: list[Path]) -> None:
    """Both have the program, the units, the manual page, completion, the commit's wheel and no tests."""
    names = output("sh", "-c", f"dpkg-deb --fsys-tarfile {built[0]} | tar -t").split()
    deb = {name.removeprefix(".") for name in names}
    rpm = set(output("rpm", "-qpl", str(built[1])).split())

    for files in (deb, rpm):
        assert {
            "/usr/bin/gpuledger",
            "/usr/bin/kubectl-gpu",
            "/usr/lib/systemd/system/gpuledger-bill.service",
            "/usr/lib/systemd/system/gpuledger-bill.timer",
            "/usr/lib/systemd/system/gpuledger.service",
            "/usr/lib/systemd/system/gpuledger.socket",
            "/usr/share/bash-completion/completions/gpuledger",
            "/usr/share/gpuledger/gpuledger/demo.jsonl.gz",
            "/usr/share/man/man1/gpuledger.1.gz",
        } <= files
        assert not [name for name in files if "/tests" in name]
    assert output("dpkg-deb", "--field", str(built[0]), "Version").strip() == __version__


@pytest.mark.needs("dpkg-deb", "rpmbuild", "lintian")
def test_lintian(built: list[Path]) -> None:
    """No error and no warning."""
    assert output("lintian", "--allow-root", str(built[0])) == ""


@pytest.mark.needs("dpkg-deb", "rpmbuild", "rpmlint")
def test_rpmlint(built: list[Path]) -> None:
    """Nothing but what is listed above with its reason."""
    lines = [line.split() for line in output("rpmlint", str(built[1])).splitlines() if line.startswith("gpuledger.")]

    assert {words[2] for words in lines} <= TOLERATED
