"""Many series, and a collector that answers with anything, on the way over OTLP."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace

import pytest

from gpuledger.config.load import load
from gpuledger.integrations.otlp.push import MOST_BYTES, Push, create_push
from gpuledger.integrations.otlp.request import Points
from gpuledger.model import ContainerUse, Owner, Tick
from gpuledger.net.protobuf import bytes_field, number_field
from tests.builders import pod_tick
from tests.integrations.otlp.collector import Collector, collector

CONTAINERS = 5000
LARGEST_REQUEST = 4 << 20
"""Bytes; collectors accept 20 MiB by default, proxies before them less."""


def create(server: Collector) -> Push:
    """A push without compression, stepped by the test."""
    push = create_push(load({"otlp.endpoint": [server.url], "otlp.compression": ["none"]}, {}), "node1")
    assert push is not None
    return Push(push._target, 0.0, monotonic=lambda: 100.0, now_ns=lambda: 5)


def large_tick() -> Tick:
    """A tick with a container for each of thousands of pods, with long names."""
    tick = pod_tick(3, 300)
    use = ContainerUse(tick.readings[0].device, Owner(), 1, 1 << 30, 50, energy_mj=(("exclusive", 1000),), busy_ns=1)
    owners = [Owner(container="c" * 60, container_id=f"{n:064x}", namespace="n" * 60, pod=f"{n:060d}", pod_uid=f"{n}")
              for n in range(CONTAINERS)]  # fmt: skip
    return replace(tick, containers=tuple(replace(use, owner=owner) for owner in owners))


def test_more_than_a_request_can_hold() -> None:
    """Tenants start so many containers that a push exceeds 8 MiB: it is sent in parts, and nothing is dropped."""
    with collector() as server:
        push = create(server)
        push.publish(large_tick())
        push.step()

    sent = sum(len(received.body) for received in server.received)
    assert sent > MOST_BYTES
    assert max(len(received.body) for received in server.received) < LARGEST_REQUEST
    assert (push.health.dropped, push.health.waiting, push.health.up) == ((), 0, True)
    values = [received.values() for received in server.received]
    assert sum(map(len, values)) == len({key for part in values for key in part}) == push.health.sent_points


def test_processes_that_come_and_go() -> None:
    """A tenant starts ever new processes: no attributes are kept for those that are gone."""
    points = Points()

    def collect(first: int, last: int) -> None:
        for second in range(first, last):
            tick = pod_tick(3, 100)
            (use,) = tick.processes
            pids = range(1000 * second, 1000 * second + 100)
            uses = (replace(use, resident=replace(use.resident, pid=pid)) for pid in pids)
            points.collect(replace(tick, processes=tuple(uses)))

    collect(0, 20)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    collect(20, 80)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert after - before < 2 << 20


@pytest.mark.parametrize("count", [1 << 62, 1 << 63, (1 << 64) - 1, -(10**30) % (1 << 64)])
def test_numbers_that_are_no_counts(count: int) -> None:
    """A collector says that it rejected a negative or huge number of points: each request is sent once."""
    with collector() as server:
        server.answer = bytes_field(1, number_field(1, count))
        push = create(server)
        for second in (1, 2):
            push.publish(pod_tick(second, 100))
            push.step()

    health = push.health
    assert len(server.received) == 2
    assert 0 <= health.rejected_points <= health.sent_points
    assert (health.rejected_points > 0) == (count < 1 << 63)
