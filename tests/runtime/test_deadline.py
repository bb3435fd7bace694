"""One time limit for several calls."""

from __future__ import annotations

import time

import pytest

from gpuledger.runtime.deadline import Deadline


def test_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shrinks with time, and then it is a TimeoutError."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    limit = Deadline(2.0)
    now[0] = 101.5

    assert (limit.left_s(), limit.remaining_s, limit.timeout_s) == (0.5, 0.5, 2.0)
    now[0] = 102.0
    assert limit.remaining_s == 0
    with pytest.raises(TimeoutError):
        limit.left_s()
