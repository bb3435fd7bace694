"""Bars and charts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.tools.top.bars import MAX_POINTS, Point, bar, chart, means, memory_bar, memory_parts
from gpuledger.tools.top.rows import owner_styles
from gpuledger.tools.top.text import ASCII, UNICODE, plain, width
from gpuledger.web.snapshot.codec import decode
from gpuledger.web.snapshot.schema import Snapshot
from tests.tools.top.sources import watched
from tests.web.snapshot.pictures import (
    GIB,
    MANY,
    NOW,
    PICTURES,
    Picture,
    busy,
    container,
    demo,
    gpu,
    memory,
    picture,
    process,
    shown_as,
)


def drawn(shown: Snapshot, columns: int = 16) -> str:
    """The bar of the first GPU, in ASCII."""
    return plain(memory_bar(shown, shown.gpus[0], owner_styles(shown), columns, ASCII))


def test_memory_is_split_by_owner() -> None:
    """10 GiB a column: owners in turn, the inferred, the unknown, the driver's, the free."""
    one = gpu(memory=memory(reserved_bytes=10 * GIB, unknown_bytes=50 * GIB, inferred_bytes=20 * GIB))
    two = [process(1, unit="a.service", memory_bytes=40 * GIB), process(2, unit="b.service", memory_bytes=20 * GIB)]

    shown = shown_as(picture(one, processes=two, containers=[container("c", inferred_bytes=20 * GIB)]))

    assert drawn(shown) == "####==%%???:...."


def test_memory_that_is_shared_with_the_system() -> None:
    """What others than GPU processes use is not free."""
    one = gpu(memory={"total_bytes": 160 * GIB, "used_bytes": 120 * GIB, "system_bytes": 80 * GIB})

    assert drawn(shown_as(picture(one, processes=[process(1, memory_bytes=40 * GIB)]))) == "####========...."


def test_parts_are_those_of_the_picture() -> None:
    """All of what is used, and what the driver keeps for itself."""
    shown = demo()
    one = shown.gpus[0]

    sizes = {name: size for _, name, size in memory_parts(shown, one)}

    assert sum(sizes.values()) == (one.memory.used_bytes or 0) + (one.memory.reserved_bytes or 0)
    assert sizes["ml/llama-finetune-0/trainer"] == 3770679296
    assert next(iter(sizes)) == "ollama.service"


def test_processes_of_one_owner_are_one_part_and_of_its_own_gpu() -> None:
    """Two processes of a pod, one of them elsewhere."""
    parts = memory_parts(shown_as(busy()), shown_as(busy()).gpus[0])

    assert [(kind, name, size / GIB) for kind, name, size in parts] == [
        ("known", "ml/train-0/main", 40),
        ("known", "ml/chat-1/main", 10),
        ("known", "ollama.service", 5),
        ("inferred", "hidden", 4),
        ("unknown", "unknown", 2),
        ("driver", "driver", 0),
    ]


def test_a_whole_gpu_has_the_memory_of_its_instances() -> None:
    """A process on a MIG instance is in both bars."""
    instance = gpu(0, uuid="MIG-1", gpu_uuid="GPU-0", mig_profile="1g.10gb")
    shown = shown_as(picture(gpu(0), instance, processes=[process(1, uuid="MIG-1", unit="a", memory_bytes=GIB)]))

    assert [memory_parts(shown, one)[0] for one in shown.gpus] == [("known", "a", GIB)] * 2


def test_containers_fill_the_bar_where_processes_are_not_shown() -> None:
    """Else it would be empty."""
    shown = shown_as(picture(gpu(), containers=[container("c", memory_bytes=80 * GIB)]))

    assert drawn(shown) == "########........"


def test_processes_without_a_row_fill_the_bar_too() -> None:
    """Memory of processes without a row is not free."""
    one = gpu(memory=memory(known_bytes=80 * GIB))
    shown = shown_as(picture(one, processes=[process(1, unit="a.service", memory_bytes=40 * GIB)]))

    assert drawn(shown) == "####====........"


@MANY
@given(PICTURES, st.integers(0, 300))
def test_any_bar_is_as_wide_as_asked_for(one: Picture, columns: int) -> None:
    """Whatever does not add up."""
    shown = decode(one)

    for each in shown.gpus:
        assert width(memory_bar(shown, each, owner_styles(shown), columns, UNICODE)) == columns


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.5, "##.."), (0.0, "...."), (1.0, "####"), (9.0, "####"), (None, "....")]
)
def test_bars(ratio: float | None, text: str) -> None:
    """Never longer than they may be."""
    assert plain(bar(ratio, 4, ASCII, "green")) == text


def test_a_chart_ends_now() -> None:
    """The newest value is at the right; 0 is a line, what is not known a gap."""
    assert chart([0.0, None, 0.5, 1.0], 6, 1, UNICODE) == ["  ▁ ▄█"]
    assert chart([0.5, 1.0], 2, 2, UNICODE) == [" █", "██"]
    assert chart([1.0], 0, 1, UNICODE) == [""]


def test_a_long_history_fits() -> None:
    """Neighbours become their mean, from the newest on."""
    assert means([1.0, 0.0, 1.0, 1.0, None, 0.5], 3) == [0.5, 1.0, 0.5]
    assert means([0.0, 1.0, 1.0], 2) == [0.0, 1.0]
    assert means([None, None], 1) == [None]


@given(st.lists(st.none() | st.floats(-1, 5), max_size=700), st.integers(0, 90), st.integers(1, 9))
def test_any_chart_is_as_large_as_asked_for(values: list[float | None], columns: int, rows: int) -> None:
    """However many values there are."""
    lines = chart(values, columns, rows, UNICODE)

    assert [len(line) for line in lines] == [columns] * rows


def test_history_is_what_was_seen() -> None:
    """Each picture once, as parts of the whole."""
    first = picture(gpu(memory=memory(used_bytes=40 * GIB), utilization_ratio=None))
    second = picture(gpu(power_watts=None), time=NOW + 60)
    shown, history = watched(first, first, second)

    assert list(history.points(shown.gpus[0])) == [
        Point(busy=None, memory=0.25, power=0.5),
        Point(busy=0.5, memory=0.5, power=None),
    ]
    assert history.seconds == 60


def test_history_is_bounded_and_forgets_gpus_that_are_gone() -> None:
    """Ten minutes of one a second."""
    _, history = watched(*(picture(gpu(), time=NOW + n) for n in range(MAX_POINTS + 50)))

    assert len(list(history.points(shown_as(picture(gpu())).gpus[0]))) == MAX_POINTS
    history.add(shown_as(picture(time=NOW + 9999)))
    assert list(history.points(shown_as(picture(gpu())).gpus[0])) == []


def test_a_share_beyond_all_measure() -> None:
    """A bar is full at most, whatever another host sends."""
    assert plain(bar(1e308, 16, ASCII, "")) == "#" * 16
