"""The structures lie in memory as DCGM's headers from 3.0.4 to 4.6.0 have them."""

from __future__ import annotations

from ctypes import Structure, sizeof

import pytest

from gpuledger.sources.dcgm import structs


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (structs.PidSingleInfo, 536),
        (structs.PidInfo, 17704),
        (structs.EmbeddedParameters, 72),
        (structs.ConnectParameters, 16),
        (structs.VersionInfo, 516),
        (structs.EntityPair, 8),
        (structs.FieldValue, 4128),
    ],
)
def test_sizes(kind: type[Structure], size: int) -> None:
    """A byte more and the library would write over our memory."""
    assert sizeof(kind) == size


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (structs.PID_INFO_VERSION, 0x02004528),
        (structs.EMBEDDED_VERSION, 0x01000048),
        (structs.CONNECT_VERSION, 0x02000010),
        (structs.VERSION_INFO_VERSION, 0x02000204),
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
    assert getattr(structs.PidSingleInfo, name).offset == offset


@pytest.mark.parametrize(
    ("name", "offset"), [("version", 0), ("pid", 4), ("gpu_count", 12), ("summary", 16), ("gpus", 552)]
)
def test_offsets_in_a_process(name: str, offset: int) -> None:
    """The GPUs begin where DCGM puts the first."""
    assert getattr(structs.PidInfo, name).offset == offset


def test_a_text_value_is_where_the_union_is() -> None:
    """After the status and the time."""
    assert (structs.FieldValue.status.offset, structs.FieldValue.text.offset) == (16, 32)
