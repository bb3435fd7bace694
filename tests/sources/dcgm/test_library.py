"""Whatever is wrong with libdcgm is said, with what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.sources.dcgm import library
from gpuledger.sources.dcgm.library import DcgmError, Library
from tests import fakedcgm


def test_no_library_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both names that were searched, the package, and the container."""
    monkeypatch.setattr(library, "NAMES", ("libnodcgm.so.4", "libnodcgm.so.3"))

    with pytest.raises(DcgmError) as caught:
        Library()

    for part in (
        "libnodcgm.so.4: cannot open shared object file",
        "libnodcgm.so.3: cannot open shared object file",
        "install datacenter-gpu-manager-4-core",
        "mount it into the container",
        "--dcgm.library",
    ):
        assert part in str(caught.value)


def test_the_library_that_was_named_is_not_there() -> None:
    """No other is looked for."""
    with pytest.raises(DcgmError, match=r"/no/libdcgm\.so\.4: cannot open .*; name libdcgm\.so\.4 or"):
        Library("/no/libdcgm.so.4")


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    """The loader's own words are in the message."""
    path = tmp_path / "libdcgm.so.4"
    path.write_text("nothing")

    with pytest.raises(DcgmError, match=r"no library: .*libdcgm\.so\.4: (file too short|invalid ELF header)"):
        Library(str(path))


def test_another_library() -> None:
    """One that loads, and is not DCGM."""
    with pytest.raises(DcgmError, match=r"libc\.so\.6 has no dcgmInit: it is not DCGM, or too old; .*DCGM 3 and 4"):
        Library("libc.so.6")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-12, "Version Mismatch (-12); gpuledger speaks the interface of DCGM 3 and 4; install one of them"),
        (-16, "Field is not being updated (-16); turn accounting mode on with `nvidia-smi -am 1` as root; with MIG on"),
        (-21, "not valid any longer (-21); start nv-hostengine there, or give its address with --dcgm.hostengine"),
        (-29, "running as non-root (-29); turn accounting mode on with `nvidia-smi -am 1` as root, or run as root"),
        (-99, "dcgmInit: unknown error (-99)"),
    ],
)
def test_errors_say_what_to_do(code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call, DCGM's words, its code, and the remedy where there is one."""
    monkeypatch.setenv("FAKE_DCGM_SCENARIO", str(fakedcgm.write(tmp_path / "dcgm", f"error dcgmInit {code}")))

    with pytest.raises(DcgmError) as caught:
        Library(str(fakedcgm.build())).call("dcgmInit")

    assert words in str(caught.value)
    assert caught.value.code == code
