"""The web configuration file as a file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpuledger.export.webfile import WebFile
from tests.export.test_webconfig import HASH


def test_it_is_read_again(tmp_path: Path) -> None:
    """Users that are added or taken away count from the next request on."""
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users: {{alice: {HASH}}}")
    file = WebFile(str(path))
    assert list(file.get().users) == ["alice"]

    path.write_text(f"basic_auth_users: {{alice: {HASH}, bob: {HASH}}}")
    assert list(file.get().users) == ["alice", "bob"]
    path.write_text(f"basic_auth_users: {{bob: {HASH}}}")
    assert list(file.get().users) == ["bob"]


@pytest.mark.parametrize(
    "content", ["", " \n", "# soon\n", "basic_auth_users:\n", "junk", "basic_auth_users: {alice: wrong}", None]
)
def test_nobody_gets_in_by_a_broken_file(tmp_path: Path, content: str | None) -> None:
    """One that is empty, broken or gone while it is being written leaves the users as they were."""
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users: {{alice: {HASH}}}")
    file = WebFile(str(path))

    if content is None:
        path.unlink()
    else:
        path.write_text(content)

    assert list(file.get().users) == ["alice"]


def test_an_empty_file_is_fine_at_the_start(tmp_path: Path) -> None:
    """As with other exporters: it asks for nothing."""
    path = tmp_path / "web.yml"
    path.write_text("")

    assert WebFile(str(path)).get().tls is None


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "open {}: no such file or directory"),
        (b"\xff", "{} is not a text file in UTF-8"),
        (b"#" * 1_000_001, "{} has more than 1000000 characters"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | None, error: str) -> None:
    """Each is told in one line."""
    path = tmp_path / "web.yml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ValueError, match=r".") as raised:
        WebFile(str(path))
    assert str(raised.value) == error.format(path)


def test_without_bcrypt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users need a package that is not always there; the error says which."""
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users: {{alice: {HASH}}}")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "bcrypt", raising=False)

    with pytest.raises(ValueError, match=r"needs the bcrypt package; install it with `pip install gpuledger\[auth\]`"):
        WebFile(str(path))
