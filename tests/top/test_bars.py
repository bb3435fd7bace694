"""Bars and charts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.top.bars import bar, chart, means, memory_bar, parts_of
from gpuledger.top.line import ASCII, UNICODE, Line, text_of, width
from gpuledger.top.seen import Seen, read
from gpuledger.view.snapshot import Picture
from tests.top.pictures import GIB, MANY, PICTURES, busy, container, demo, gpu, memory, picture, process, seen


def drawn(shown: Seen, columns: int = 16) -> str:
    """The bar of the first GPU, in ASCII."""
    return text_of(memory_bar(shown, shown.gpus[0], columns, ASCII))


def test_memory_is_split_by_owner() -> None:
    """10 GiB a column: owners in turn, the inferred, the unknown, the driver's, the free."""
    one = gpu(memory=memory(reserved_bytes=10 * GIB, unknown_bytes=50 * GIB, inferred_bytes=20 * GIB))
    two = [process(1, unit="a.service", memory_bytes=40 * GIB), process(2, unit="b.service", memory_bytes=20 * GIB)]

    shown = seen(picture(one, processes=two, containers=[container("c", inferred_bytes=20 * GIB)]))

    assert drawn(shown) == "####==%%???:...."


def test_parts_are_those_of_the_picture() -> None:
    """All of what is used, and what the driver keeps for itself."""
    shown = demo()
    (one,) = shown.gpus

    sizes = {name: size for _, name, size in parts_of(shown, one)}

    assert sum(sizes.values()) == (one.used_bytes or 0) + (one.reserved_bytes or 0)
    assert sizes["ml/llama-finetune-0/trainer"] == 1050673152
    assert next(iter(sizes)) == "ollama.service"


def test_processes_of_one_owner_are_one_part_and_of_its_own_gpu() -> None:
    """Two processes of a pod, one of them elsewhere."""
    parts = parts_of(seen(busy()), seen(busy()).gpus[0])

    assert [(kind, name, size / GIB) for kind, name, size in parts] == [
        ("known", "ml/train-0/main", 40),
        ("known", "ml/chat-1/main", 10),
        ("known", "ollama.service", 5),
        ("inferred", "hidden", 4),
        ("unknown", "unknown", 2),
        ("kept", "driver", 0),
    ]


def test_a_whole_gpu_has_the_memory_of_its_instances() -> None:
    """A process on a MIG instance is in both bars."""
    instance = gpu(0, uuid="MIG-1", gpu_uuid="GPU-0", mig_profile="1g.10gb")
    shown = seen(picture(gpu(0), instance, processes=[process(1, uuid="MIG-1", unit="a", memory_bytes=GIB)]))

    assert [parts_of(shown, one)[0] for one in shown.gpus] == [("known", "a", GIB)] * 2


def test_containers_fill_the_bar_where_processes_are_not_shown() -> None:
    """Else it would be empty."""
    shown = seen(picture(gpu(), containers=[container("c", memory_bytes=80 * GIB)]))

    assert drawn(shown) == "########........"


def test_who_is_not_shown_one_by_one_fills_the_bar_too() -> None:
    """What the driver lists of others is not free."""
    one = gpu(memory=memory(known_bytes=80 * GIB))
    shown = seen(picture(one, processes=[process(1, unit="a.service", memory_bytes=40 * GIB)]))

    assert drawn(shown) == "####====........"


@MANY
@given(PICTURES, st.integers(0, 300))
def test_any_bar_is_as_wide_as_asked_for(one: Picture, columns: int) -> None:
    """Whatever does not add up."""
    shown = read(one)

    for each in shown.gpus:
        assert width(memory_bar(shown, each, columns, UNICODE)) == columns


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.5, "##.."), (0.0, "...."), (1.0, "####"), (9.0, "####"), (None, "....")]
)
def test_bars(ratio: float | None, text: str) -> None:
    """Never longer than they may be."""
    line: Line = bar(ratio, 4, ASCII, "good")

    assert text_of(line) == text


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
