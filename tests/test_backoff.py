"""When something that failed is tried again."""

from __future__ import annotations

from gpuledger.backoff import Backoff


def test_the_wait_doubles_from_one_second_to_thirty() -> None:
    """Soon at first, then ever more rarely, but never more rarely than every 30 s."""
    now = [100.0]
    backoff = Backoff(lambda: now[0])
    waits = []
    for _ in range(8):
        assert backoff.due()
        backoff.failed()
        began = now[0]
        while not backoff.due():
            now[0] += 0.5
        waits.append(now[0] - began)

    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]


def test_success_begins_anew() -> None:
    """After it worked, the next failure waits one second again."""
    now = [0.0]
    backoff = Backoff(lambda: now[0])
    for _ in range(6):
        backoff.failed()

    backoff.reset()

    assert backoff.due()
    backoff.failed()
    assert not backoff.due()
    now[0] = 1.0
    assert backoff.due()
