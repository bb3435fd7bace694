"""Errors of libdcgm, each with a fix."""

from __future__ import annotations

from ctypes import Structure, sizeof
from pathlib import Path

import pytest

from gpuledger.errors import DcgmError
from gpuledger.integrations.dcgm import library
from gpuledger.integrations.dcgm.library import Library
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

    with pytest.raises(DcgmError, match=r"cannot load libdcgm: .*libdcgm\.so\.4: (file too short|invalid ELF header)"):
        Library(str(path))


def test_another_library() -> None:
    """A library that loads, and is not DCGM."""
    with pytest.raises(DcgmError, match=r"libc\.so\.6 has no dcgmInit: it is not DCGM, or too old; .*DCGM 3 and 4"):
        Library("libc.so.6")


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (-12, "version_mismatch", "Version Mismatch (-12); gpuledger supports DCGM 3 and 4: install one of them"),
        (
            -16,
            "not_watched",
            "Field is not being updated (-16); turn accounting mode on with `nvidia-smi -am 1` as root; with MIG on",
        ),
        (
            -21,
            "unreachable",
            "not valid any longer (-21); start nv-hostengine there, or give its address with --dcgm.hostengine",
        ),
        (
            -29,
            "requires_root",
            "running as non-root (-29); turn accounting mode on with `nvidia-smi -am 1` as root, or run DCGM",
        ),
        (-99, "dcgm", "dcgmInit: unknown error (-99)"),
    ],
)
def test_errors_say_what_to_do(
    code: int, kind: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call, DCGM's words, its code, and the remedy where there is one."""
    monkeypatch.setenv("FAKE_DCGM_SCENARIO", str(fakedcgm.write(tmp_path / "dcgm", f"error dcgmInit {code}")))

    with pytest.raises(DcgmError) as caught:
        Library(str(fakedcgm.build())).call("dcgmInit")

    assert words in str(caught.value)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (library.PidSingleInfo, 536),
        (library.PidInfo, 17704),
        (library.EmbeddedParameters, 72),
        (library.ConnectParameters, 16),
        (library.VersionInfo, 516),
        (library.EntityPair, 8),
        (library.FieldValue, 4128),
    ],
)
def test_sizes(kind: type[Structure], size: int) -> None:
    """A byte more and the library would write over our memory."""
    assert sizeof(kind) == size


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (library.PID_INFO_VERSION, 0x02004528),
        (library.EMBEDDED_VERSION, 0x01000048),
        (library.CONNECT_VERSION, 0x02000010),
        (library.VERSION_INFO_VERSION, 0x02000204),
    ],
)
def test_version_words(word: int, expected: int) -> None:
    """DCGM compares them before it looks at anything else."""
    assert word == expected


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        ("gpu_id", 0), ("energy_mj", 8), ("pcie_receive", 16), ("pcie_transmit", 40), ("pcie_replays", 64),
        ("start_us", 72), ("end_us", 80), ("process_utilization", 88), ("sm_pct", 112), ("memory_pct", 124),
        ("ecc_single_bit", 136), ("ecc_double_bit", 140), ("memory_clock", 144), ("sm_clock", 156), ("xids", 168),
        ("xid_times_us", 176), ("other_compute", 256), ("other_compute_pids", 260), ("other_graphics", 324),
        ("other_graphics_pids", 328), ("max_memory_bytes", 392), ("violations_us", 400), ("overall_health", 448),
        ("incidents", 452), ("systems", 456),
    ],
)  # fmt: skip
def test_offsets_in_one_gpu(name: str, offset: int) -> None:
    """Each number is where DCGM puts it."""
    assert getattr(library.PidSingleInfo, name).offset == offset


@pytest.mark.parametrize(
    ("name", "offset"), [("version", 0), ("pid", 4), ("gpu_count", 12), ("summary", 16), ("gpus", 552)]
)
def test_offsets_in_a_process(name: str, offset: int) -> None:
    """The GPUs begin where DCGM puts the first."""
    assert getattr(library.PidInfo, name).offset == offset


def test_a_text_value_is_where_the_union_is() -> None:
    """After the status and the time."""
    assert (library.FieldValue.status.offset, library.FieldValue.text.offset) == (16, 32)
