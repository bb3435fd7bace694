"""Rows: grouping, order and sums."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from gpuledger.tools.top.rows import GROUPINGS, TREE, Choice, TableRow, is_match, ordered, owner_styles, rows
from gpuledger.tools.top.text import OWNER_STYLES
from gpuledger.web.snapshot.codec import decode
from gpuledger.web.snapshot.colours import first_choice
from gpuledger.web.snapshot.schema import sum_known
from tests.web.snapshot.pictures import GIB, MANY, PICTURES, Picture, busy, container, demo, gpu, pod, process, shown_as
from tests.web.snapshot.pictures import picture as made


def by(grouping: str, **more: object) -> dict[str, TableRow]:
    """The rows of the busy host, by their owners."""
    choice = replace(Choice(grouping), **more)  # type: ignore[arg-type]
    found = rows(shown_as(busy()), choice)
    return {row.owner: row for row in found}


def test_one_row_per_process_and_per_container_with_inferred_memory() -> None:
    """Each row has the display name of its owner, or the reason why the owner is unknown."""
    found = rows(shown_as(busy()), Choice())

    assert [(row.pid, row.owner) for row in found] == [
        (11, "ml/train-0/main"),
        (12, "ml/train-0/main"),
        (13, "ml/chat-1/main"),
        (21, "ollama.service"),
        (22, "unknown"),
        (23, "host"),
        (None, "hidden"),
    ]
    assert (found[-1].known_bytes, found[-1].inferred_bytes, found[-1].memory_bytes) == (None, 4 * GIB, 4 * GIB)
    assert found[-1].joules is None


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_the_owner_of_an_unused_gpu_has_a_row(grouping: str) -> None:
    """With no use; an allocation of a GPU that other owners use has none, unless it is a part of the GPU."""
    place = {"gpu": 1, "uuid": "GPU-1", "gpu_uuid": "GPU-1", "namespace": "ml", "state": "no_process"}
    unused, other, part = (
        {**place, "owner": f"ml/{name}", "pod": name, **more}
        for name, more in (
            ("unused", {}),
            ("other", {"uuid": "GPU-0", "gpu_uuid": "GPU-0"}),
            ("part", {"uuid": "GPU-0", "gpu_uuid": "GPU-0", "entitlement": "kai", "asked_ratio": 0.25}),
        )
    )
    one = made(gpu(0, in_use=True), gpu(1, in_use=False), processes=[process(1)], allocations=[unused, other, part])
    found = [use.owner for row in rows(shown_as(one), Choice(grouping)) for use in row.uses]
    values = {use.owner: row for row in rows(shown_as(one), Choice("pod")) for use in row.uses}

    assert found == ["host", "ml/unused", "ml/part"]
    row = values["ml/unused"]
    assert (row.memory_bytes, row.sm, row.watts, row.joules, row.processes, row.asked) == (0, 0, 0, 0, 0, None)
    assert values["ml/part"].asked == 0.25


def test_colours_are_those_of_the_exporter() -> None:
    """As in its snapshot; of an exporter that sends none, each name has its own, which another name may share."""
    pods = [process(number, owner=f"owner-{number}") for number in range(3)]
    colours = {"owner-0": 4, "owner-1": 7, "owner-2": 4}
    old = made(gpu(), processes=pods)

    new = owner_styles(shown_as({**old, "colours": colours}))
    assert new == {name: OWNER_STYLES[colour] for name, colour in colours.items()}
    assert owner_styles(shown_as(old)) == {name: OWNER_STYLES[first_choice(name)] for name in colours}


def test_a_pod_on_two_gpus_is_one_row() -> None:
    """Its sums are those of its parts."""
    row = by("pod")["ml/train-0"]

    assert (row.gpus, row.processes) == ((0, 1), 2)
    assert (row.known_bytes, row.sm, row.watts, row.joules) == (60 * GIB, 1.3, 700.0, 13000.0)
    assert row.methods == (("exclusive", 9000.0), ("sm_time", 4000.0))
    assert row.is_estimated is True


@pytest.mark.parametrize(
    ("grouping", "owners"),
    [
        ("container", ["ml/train-0/main", "ml/chat-1/main", "hidden", "ollama.service", "unknown",
                       "host"]),
        ("pod", ["ml/train-0", "ml/chat-1", "hidden", "ollama.service", "unknown", "host"]),
        ("namespace", ["ml", "(no namespace)"]),
        ("user", ["(no user)", "eve", "ollama", "root"]),
    ],
)  # fmt: skip
def test_groupings(grouping: str, owners: list[str]) -> None:
    """Each process is in one group, also without a container, pod or user."""
    assert list(by(grouping)) == owners


def test_an_unknown_value_is_not_0() -> None:
    """A sum leaves unknown values out; if all are unknown, there is no sum."""
    assert by("pod")["ml/chat-1"].watts is None
    assert by("user")["root"].known_bytes is None
    assert by("namespace")["(no namespace)"].watts == 0.0
    assert sum_known([None, 2, None, 3]) == 5
    assert sum_known([]) is None


def test_energy_is_not_known_where_the_gpu_has_no_meter() -> None:
    """No booked energy is 0 J on a GPU with a meter, and unknown on one without."""
    metered, silent = gpu(0), gpu(1, energy={"joules": None})

    first, second = rows(shown_as(made(metered, silent, processes=[process(1, 0), process(2, 1)])), Choice())

    assert (first.joules, second.joules) == (0, None)
    assert (first.is_estimated, second.is_estimated) == (None, None)


def test_containers_are_whole_where_processes_are_not_shown() -> None:
    """An exporter may keep processes to itself: then they stand for them in every grouping."""
    _, one = pod("train-0", 1, memory_bytes=GIB, watts=5.0)
    shown = shown_as(made(gpu(), containers=[one, container("web", memory_bytes=GIB)]))

    assert [(row.owner, row.pid, row.known_bytes, row.watts) for row in rows(shown, Choice())] == [
        ("ml/train-0/main", None, GIB, 5.0),
        ("web", None, GIB, None),
    ]
    assert [(row.owner, row.known_bytes) for row in rows(shown, Choice("pod"))] == [("ml/train-0", GIB), ("web", GIB)]


def test_containers_of_one_name_are_apart() -> None:
    """Names are used again; ids are not."""
    two = [container("web", container_id="a", memory_bytes=1), container("web", container_id="b", memory_bytes=2)]

    assert len(rows(shown_as(made(gpu(), containers=two)), Choice("container"))) == 2
    assert len(rows(shown_as(made(gpu(), containers=two)), Choice("pod"))) == 1


def test_choosing() -> None:
    """One GPU, some words, without exited processes."""
    assert list(by("container", gpu=1)) == ["ml/train-0/main", "unknown"]
    assert list(by("container", filter="ML chat")) == ["ml/chat-1/main"]
    assert list(by("process", filter="python3 eve")) == ["ml/chat-1/main"]
    assert list(by("process", filter="nothing of this")) == []
    assert "host" not in by("process", exited=False)


def test_what_is_not_known_comes_last() -> None:
    """Whichever way it is sorted; what is equal stays in one order."""
    found = rows(shown_as(busy()), Choice())

    largest = ordered(found, lambda row: row.watts, descending=True)
    rising = ordered(found, lambda row: row.watts, descending=False)

    assert [row.watts for row in largest] == [500.0, 200.0, 0.0, None, None, None, None]
    assert [row.watts for row in rising] == [0.0, 200.0, 500.0, None, None, None, None]


def test_a_search_finds_any_name() -> None:
    """Of a group, that of any member."""
    row = by("namespace")["ml"]

    assert is_match(row, "CHAT")
    assert not is_match(row, "ollama")


def test_sums_are_those_of_the_picture() -> None:
    """In every grouping, of the demo."""
    shown = demo(20)
    joules = sum(sum(use.joules.values()) for use in shown.processes)

    for grouping in GROUPINGS:
        grouped = rows(shown, Choice(grouping))
        assert sum_known(row.known_bytes for row in grouped) == sum_known(use.memory_bytes for use in shown.processes)
        assert sum_known(row.sm for row in grouped) == pytest.approx(sum_known(use.sm_ratio for use in shown.processes))
        assert sum_known(row.watts for row in grouped) == pytest.approx(sum_known(use.watts for use in shown.processes))
        assert sum_known(row.joules for row in grouped) == pytest.approx(joules)
        assert sum(row.processes for row in grouped) == len(shown.processes)


@MANY
@given(PICTURES)
def test_nothing_is_lost_or_counted_twice(one: Picture) -> None:
    """Whatever is grouped, each process is in one row, and sums stay the same."""
    shown = decode(one)
    alone, users = rows(shown, Choice()), rows(shown, Choice("user"))

    there = len(shown.processes) or sum(use.processes for use in shown.containers)
    assert sum(row.processes for row in alone) == sum(row.processes for row in users) == there
    for value in ("known_bytes", "inferred_bytes", "watts", "sm"):
        numbers = [sum_known(getattr(row, value) for row in found) for found in (alone, users)]
        assert numbers[0] == (numbers[1] if numbers[1] is None else pytest.approx(numbers[1]))


def test_a_tree_of_pods() -> None:
    """Each pod with its sums, then its processes in order; other owners only if they have several processes."""
    two = made(gpu(), processes=[*busy()["processes"], process(31, unit="ollama.service", memory_bytes=GIB)],
               containers=busy()["containers"])  # fmt: skip
    tree = ordered(rows(shown_as(two), Choice(TREE)), lambda row: row.memory_bytes, descending=True)

    assert [(row.owner, row.pid, row.label, bool(row.branch)) for row in tree] == [
        ("ml/train-0", None, "ml/train-0", False),
        ("ml/train-0/main", 11, "main", True),
        ("ml/train-0/main", 12, "main", True),
        ("ml/chat-1", None, "ml/chat-1", False),
        ("ml/chat-1/main", 13, "main", True),
        ("ollama.service", None, "ollama.service", False),
        ("ollama.service", 21, "ollama.service", True),
        ("ollama.service", 31, "ollama.service", True),
        ("hidden", None, "hidden", False),
        ("unknown", 22, "unknown", False),
        ("host", 23, "host", False),
    ]
    assert len({row.key for row in tree}) == len(tree)
    found = rows(shown_as(two), Choice(TREE, filter="python3 12"))
    assert [(row.pid, row.branch) for row in found] == [(12, ())], "its pod does not have these words"


@MANY
@given(PICTURES)
def test_a_tree_loses_no_row(one: Picture) -> None:
    """Every process is in it once."""
    shown = decode(one)
    tree = ordered(rows(shown, Choice(TREE)), lambda row: row.owner, descending=False)

    assert sorted(row.key for row in tree if row.key[0] != TREE) == sorted(row.key for row in rows(shown, Choice()))
