"""The rule of a report on samples that were worked out by hand, in a real Prometheus and a real VictoriaMetrics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.history import History, remembering
from tests.real.prometheus import Prometheus
from tests.real.scriptednode import BEGAN, GIB, Node, column, report

pytestmark = pytest.mark.needs("prometheus", "victoria-metrics")

BACKENDS = ("prometheus", "victoria-metrics")


def short(minute: float) -> float:
    """Joules of a pod that came at minute 12 and left at 18: 500 when it was first scraped, 6,500 at last."""
    return 1000 * (min(minute, 18.5) - 12)


def newer(minute: float) -> float:
    """What it, a process since minute 44 and a pod since 50 have used together."""
    return max(0, short(minute)) + max(0, 20 * (minute - 44)) + max(0, 40 * (minute - 50))


def history() -> History:
    """Six nodes; what is expected of each is said where it is made."""
    found = History()
    # Always there, and scraped by two jobs. Of 6,000 J a minute `long` has 3,000, `short` its part, idle the rest.
    for job in ("gpuledger", "twice"):
        node = Node(found, "a", job=job)
        node.container("long", lambda m: 3000 * (m + 30))
        node.container("short", short, within=(12, 18.5))
        # And 10 J a minute are a process of the host's that was not shown from 21.5 to 34.5.
        hidden = {**node.gpu, "pid": "9", "process_name": "small", "method": "exclusive"}
        node.add("gpu_process_energy_joules_total", lambda m: 10 * (m + 30), hidden, (-30, 21.4))
        node.add("gpu_process_energy_joules_total", lambda m: 10 * (m + 30), hidden, (34.4, 90))
        # Another one comes at 44, with 20 J a minute, and a pod at 50, with 40, that has no name in its first scrapes.
        late = {**node.gpu, "pid": "11", "process_name": "late", "method": "exclusive"}
        node.add("gpu_process_energy_joules_total", lambda m: 20 * (m - 44), late, (44, 90))
        unnamed = {**node.gpu, "container_id": "id-late", "method": "exclusive"}
        node.add("container_gpu_energy_joules_total", lambda m: 40 * (m - 50), unnamed, (50, 52))
        node.container("late", lambda m: 40 * (m - 50), within=(52, 90))
        node.books(1e6, lambda m: 2990 * (m + 30) - newer(m), lambda m: 1e6 + 6000 * (m + 30))
    # It restarts at 27 without a journal, was last scraped at 24.5, and all of its 12,000 J a minute are `train`'s.
    node = Node(found, "b", (-30, 24.6), (27, 90))
    node.container("train", lambda m: 12_000 * (m + 40) if m < 25 else 12_000 * (m - 27))
    node.books(5e6, lambda _: 0, lambda m: 5e6 + 12_000 * (m + 40))
    # New at 33: nobody on it, 600 J a minute, and a counter of its past.
    node = Node(found, "c", (33.2, 90))
    node.books(9e6, lambda m: 600 * (m - 33), lambda m: 9e6 + 600 * (m - 33))
    # Cut off from 15.5 to 42.5; `serve` goes on all the while, `fresh` comes at 30, each with 100 J a minute.
    node = Node(found, "d", (-30, 15.6), (42.4, 90))
    node.container("serve", lambda m: 100 * (m + 100))
    node.container("fresh", lambda m: 100 * (m - 30), within=(30, 90))
    node.books(2e6, lambda _: 7, lambda m: 2e6 + 7 + 100 * (m + 100) + max(0, 100 * (m - 30)))
    # Dies at 20, with 50 J a minute of a process of the host.
    node = Node(found, "e", (-30, 20))
    process = {**node.gpu, "pid": "7", "process_name": "job"}
    node.add("gpu_process_energy_joules_total", lambda m: 50 * (m + 30), {**process, "method": "exclusive"})
    node.add("gpu_process_info", lambda _: 1, {**process, "user": "ada", "uid": "1000"})
    node.add("gpu_process_active", lambda _: 1, process)
    node.books(3e6, lambda _: 0, lambda m: 3e6 + 50 * (m + 30))
    # Loses its counter and its exporter's books at 35, when the driver is loaded anew: nobody on it, 60 J a minute.
    node = Node(found, "f")
    # Two pods that only a kubelet knows, and so without a container's id, hold 2 GiB of it each.
    for pod in ("guessed", "supposed"):
        labels = {**node.gpu, "namespace": pod, "pod": f"{pod}-0", "container": "main", "method": "inferred"}
        node.add("container_gpu_memory_bytes", lambda _: 2 * GIB, labels)
    node.books(500, lambda m: 60 * (m + 30 if m < 35 else m - 35), lambda m: 60 * (m + 1e6 if m < 35 else m - 25))
    return found


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Prometheus]]:
    """Both, with the same history."""
    with remembering(history()) as first, remembering(history(), "victoria-metrics") as second:
        yield dict(zip(BACKENDS, (first, second), strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_joules_to_the_last(servers: dict[str, Prometheus], backend: str) -> None:
    """Births, an end, a restart, a new node, a gap and a death, as worked out by hand; the sum is the counters'."""
    found = report(servers[backend])

    assert column(found, "energy_kwh", 3.6e6) == pytest.approx({
        "long": 60 * 3000,
        "short": 6500,
        "train": 25 * 12_000 + 32.5 * 12_000,  # -0.5 to 24.5, and from 0 at 27 to 59.5
        "serve": 60 * 100,
        "fresh": 29.5 * 100,
        "late": 9.5 * 40,
        "guessed": None,
        "supposed": None,
        "outside of containers": 20 * 50 + 60 * 10 + 15.5 * 20,
        # Of the new node from its first scrape at 33.5 on; of the one whose books began anew from 35 on.
        "idle": 60 * 2990 - 6500 - 15.5 * 20 - 9.5 * 40 + 26 * 600 + (35 + 24.5) * 60,
        # The counter that fell is known from 35.5 on: 30 J less than its book.
        "unattributed": 2.5 * 12_000 - 0.5 * 60,
        "total": 60 * 6000 + 60 * 12_000 + 26 * 600 + 60 * 100 + 29.5 * 100 + 20 * 50 + 59 * 60,
    })  # fmt: skip
    assert found["unattributed_kwh_by_reason"] == {"unrecorded": pytest.approx((2.5 * 12_000 - 30) / 3.6e6)}
    assert ["in allocated h (" in note for note in found["notes"]] == [True]  # `serve` and `fresh` share a GPU


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gap_that_is_too_long_is_not_bridged(servers: dict[str, Prometheus], backend: str) -> None:
    """Nothing is known of it, so nothing is said: counters count from where they were first seen again."""
    joules = column(report(servers[backend], "--gap=10m"), "energy_kwh", 3.6e6)

    assert joules["serve"] == pytest.approx((16 + 17) * 100)  # -0.5 to 15.5, 42.5 to 59.5
    assert joules["fresh"] == pytest.approx(17 * 100)
    assert joules["train"] == pytest.approx(57.5 * 12_000)


@pytest.mark.parametrize("backend", BACKENDS)
def test_times_and_memory(servers: dict[str, Prometheus], backend: str) -> None:
    """Each sample counts for the minute before it, a first one for nothing; hours of a pod are its namespace's."""
    found = report(servers[backend])
    allocated, busy = column(found, "allocated_gpu_hours", 60), column(found, "busy_gpu_hours", 3600)

    assert column(found, "resident_gpu_hours", 60)["long"] == pytest.approx(60)
    assert allocated["long"] == pytest.approx(60)
    assert allocated["short"] == pytest.approx(7)
    assert allocated["serve"] == pytest.approx(16 + 17)
    assert allocated["idle"] is None
    assert busy["short"] == pytest.approx(6.5)
    assert busy["train"] == pytest.approx(690)
    memory = column(found, "memory_gib_hours", 60)
    assert [memory[name] for name in ("short", "guessed", "supposed")] == pytest.approx([7 * 8, 60 * 2, 60 * 2])
    assert found["observed_gpu_hours"] * 60 == pytest.approx(60 + 60 + 26 + 33 + 20 + 60)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("step", ["20s", "1m", "100s", "7m", "1h"])
def test_the_length_of_cells_does_not_matter(servers: dict[str, Prometheus], backend: str, step: str) -> None:
    """Nor whether a cell has one scrape, none, or not always as many: nothing is lost and nothing counts twice."""
    found = report(servers[backend], f"--step={step}")

    for key in ("resident_gpu_hours", "allocated_gpu_hours"):
        hours = column(found, key, 60)
        assert [hours["long"], hours["short"]] == pytest.approx([60, 7])
    assert column(found, "memory_gib_hours", 60)["short"] == pytest.approx(7 * 8)
    assert column(found, "energy_kwh", 3.6e6)["short"] == pytest.approx(6500)


def test_a_clock_that_is_set_is_no_year_of_hours() -> None:
    """An exporter whose clock was a year behind until minute 5: some minutes too many, in one cell."""
    found = History()
    node = Node(found, "late", clock=lambda minute: BEGAN + 60 * minute - (minute < 5) * 365 * 86400)
    node.container("pod", lambda _: 0)
    with remembering(found) as server:
        hours = column(report(server), "allocated_gpu_hours", 60)["pod"]

    assert hours is not None
    assert 55 <= hours <= 65


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_groupings_have_the_same_total(servers: dict[str, Prometheus], backend: str) -> None:
    """Nodes and models have what was used on them; of users only processes tell, and of one here."""
    whole = column(report(servers[backend]), "energy_kwh", 3.6e6)["total"]
    nodes = report(servers[backend], "--by=node")
    models = column(report(servers[backend], "--by=gpu-model"), "energy_kwh", 3.6e6)
    users = column(report(servers[backend], "--by=user"), "energy_kwh", 3.6e6)

    joules = column(nodes, "energy_kwh", 3.6e6)
    assert joules["a:9400"] == pytest.approx(60 * 3010 + 6500 + 310 + 380)
    assert joules["e:9400"] == pytest.approx(20 * 50)
    assert models["H200"] == pytest.approx(60 * 3010 + 6500 + 310 + 380 + 57.5 * 12_000)
    assert users["ada"] == pytest.approx(20 * 50)
    assert joules["total"] == models["total"] == users["total"] == pytest.approx(whole)


def test_short_chunks_add_up_to_the_same(servers: dict[str, Prometheus]) -> None:
    """Cells of a minute, which are asked for in pieces, and cells of an hour: one rule."""
    fine = column(report(servers["prometheus"], "--step=35s"), "energy_kwh", 3.6e6)
    coarse = column(report(servers["prometheus"], "--step=1h"), "energy_kwh", 3.6e6)

    for found in (fine, coarse):
        assert found["long"] == pytest.approx(60 * 3000)
        assert found["short"] == pytest.approx(6500)
        assert found["train"] == pytest.approx(57.5 * 12_000)
        assert found["fresh"] == pytest.approx(2950)
        assert found["total"] == pytest.approx(1_109_090)
