"""One owner of a process, for its labels and for the totals of its container."""

from __future__ import annotations

from gpuledger.books import Books
from tests.builders import World


def test_a_lost_daemon_does_not_separate_a_process_from_its_container() -> None:
    """While the daemon of a rootless container is lost, its process is still in the container that it adds to."""
    books, world = Books(), World(containers={7: "c" * 64})
    books.book(world.tick(7))
    books.book(world.tick(7, mj=100))
    world.containers = {}  # the provider no longer reports the container

    tick = books.book(world.tick(7, mj=100))

    (process,), (container,) = tick.processes, tick.containers
    assert process.owner.container_id == container.owner.container_id == "c" * 64
    assert container.processes == 1
    assert dict(container.energy_mj) == dict(process.energy_mj) == {"exclusive": 200}
    assert tick.owners.by_pid[7] == process.owner
