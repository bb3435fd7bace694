"""What DCGM leaves blank, or cannot have measured, is absent."""

from __future__ import annotations

from ctypes import sizeof

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.integrations.dcgm.library import PidInfo, PidSingleInfo
from gpuledger.integrations.dcgm.session import BLANK_32, BLANK_64, by_gpu
from gpuledger.model import DcgmStats


def stats(**numbers: int) -> DcgmStats:
    """Of one GPU with these numbers and zeros."""
    info = PidInfo(gpu_count=1)
    for name, number in numbers.items():
        setattr(info.gpus[0], name, number)
    return by_gpu(info)[0][1]


@pytest.mark.parametrize("reason", range(4))
def test_all_blanks_are_absent(reason: int) -> None:
    """Unknown, not found, not supported, not permitted: none of them is a number."""
    found = stats(
        energy_mj=BLANK_64 + reason,
        max_memory_bytes=BLANK_64 + reason,
        start_us=BLANK_64 + reason,
        other_compute=BLANK_32 + reason,
    )

    assert found == DcgmStats(sm_pct=0, memory_pct=0)


def test_zero_is_a_number_and_a_negative_difference_is_none() -> None:
    """DCGM subtracts counters without a look at whether they were reset."""
    assert stats(energy_mj=0).energy_mj == 0
    assert stats(energy_mj=-1).energy_mj is None


def test_percents_out_of_range_are_absent() -> None:
    """The blank of a summary too."""
    info = PidInfo(gpu_count=1)
    info.gpus[0].sm_pct.average, info.gpus[0].memory_pct.average = BLANK_32, 101

    assert by_gpu(info)[0][1] == DcgmStats(energy_mj=0, max_memory_bytes=0, other_processes=0)


@given(st.binary(min_size=sizeof(PidSingleInfo), max_size=sizeof(PidSingleInfo)), st.integers(-(2**31), 2**31 - 1))
def test_whatever_is_in_memory_gives_sensible_numbers(content: bytes, count: int) -> None:
    """Any bytes and any count: at most 32 GPUs, no number below zero, none that means blank."""
    info = PidInfo(gpu_count=count)
    info.gpus[0] = PidSingleInfo.from_buffer_copy(content)

    found = by_gpu(info)

    assert len(found) == min(max(count, 0), 32)
    for _, one in found:
        for number in (one.energy_mj, one.max_memory_bytes, one.start_us):
            assert number is None or 0 <= number < BLANK_64
        for percent in (one.sm_pct, one.memory_pct):
            assert percent is None or 0 <= percent <= 100
