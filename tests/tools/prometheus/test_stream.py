"""Series as they arrive: the same as when they are read whole, however the answer is written and cut."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import PrometheusError
from gpuledger.tools.prometheus import stream
from gpuledger.tools.prometheus.answer import Answer, parse
from gpuledger.tools.prometheus.stream import BETWEEN, GpuSample, identity, read
from tests.tools.fleet.answers import vector

names = st.sampled_from(["uuid", "UUID", "GPU_I_ID", "a", "pod", "zone", "metric"])
texts = st.sampled_from(["", "GPU-1", "GPU-2", "x", 'quote"', "brace}{", "back\\", BETWEEN.decode(), "ü", "[1,2]"])
labels = st.dictionaries(names, texts, max_size=4) | st.fixed_dictionaries(
    {"uuid": st.sampled_from(["GPU-1", "GPU-2"])}, optional={"a": st.just("x"), "zone": st.just("y")}
)
many = st.lists(st.tuples(labels, st.floats(width=64)), max_size=12)


def taken(body: bytes, piece: int = 7, part: int = 1) -> tuple[Answer, list[GpuSample]]:
    """The answer, read in small pieces and in parts of a few series."""
    found: list[GpuSample] = []
    with patch.object(stream, "PART_BYTES", part):
        answer = read([body[at : at + piece] for at in range(0, len(body), piece)], "q", found.extend)
    return answer, found


def known(found: list[GpuSample]) -> list[Any]:
    """In any order, and without the UUID, which may be apart."""
    return sorted([(str(which), sorted([i for i in names.items() if i[0] != "uuid"]), value)
                   for which, names, value in found])  # fmt: skip


@given(many, st.integers(1, 400), st.integers(1, 400), st.sampled_from([None, 1]), st.booleans())
def test_the_same_as_when_it_is_read_whole(
    series: list[tuple[dict[str, str], float]], piece: int, part: int, indent: int | None, compact: bool
) -> None:
    """Whatever the labels hold, wherever it is cut, and with or without white space."""
    body = vector(*series, warnings=["w"])
    if compact:
        body = json.dumps(json.loads(body), separators=(",", ":"), indent=indent).encode()
    whole = parse(body, "q")
    answer, found = taken(body, piece, part)

    assert known(found) == known([(identity(names), names, value) for names, value in whole.series])
    assert (answer.count, answer.dropped, answer.warnings) == (len(whole.series), whole.dropped, ("w",))
    assert (answer.series, answer.time_s) == ((), whole.time_s)


@given(many, st.integers(0, 2000), st.binary(max_size=3))
def test_a_damaged_answer_is_an_answer_or_one_error(
    series: list[tuple[dict[str, str], float]], at: int, damage: bytes
) -> None:
    """No other exception is raised."""
    body = json.dumps(json.loads(vector(*series)), separators=(",", ":")).encode()
    with suppress(PrometheusError):
        taken(body[:at] + damage + body[at + 1 :], 50, 30)


def test_series_of_a_large_answer_are_not_kept() -> None:
    """They come in parts, with labels that are one mapping for all series of a part that have the same."""
    body = json.dumps(json.loads(vector(*[({"uuid": f"GPU-{n}", "ns": "a"}, n / 7) for n in range(9000)])),
                      separators=(",", ":")).encode()  # fmt: skip
    parts: list[list[GpuSample]] = []
    read([body[at : at + 9999] for at in range(0, len(body), 9999)], "q", parts.append)

    assert len(parts) > 2
    assert sum(map(len, parts)) == 9000
    assert len({id(names) for _, names, _ in parts[0]}) == 1


def test_instances_are_separate_in_every_part() -> None:
    """Also where a series has a UUID in small letters."""
    series = [({"uuid": "GPU-1", "GPU_I_ID": str(n)}, 1.0) for n in range(5)]
    body = json.dumps(json.loads(vector(*series)), separators=(",", ":")).encode()

    assert sorted(which for which, _, _ in taken(body)[1]) == [f"GPU-1/{n}" for n in range(5)]


@pytest.mark.parametrize(
    ("kind", "point", "says"),
    [
        ("matrix", {"metric": {"uuid": "a"}, "values": [[1, "2"]]}, "returns a matrix"),
        ("vector", {"metric": {"uuid": "a"}, "value": [1]}, "not in the format of Prometheus"),
    ],
)
def test_errors_in_a_large_answer_are_reported(kind: str, point: object, says: str) -> None:
    """Also when it is met before the end of the answer."""
    good = {"metric": {"uuid": "a"}, "value": [1, "2"]}
    result = [good, *[point] * 9, good] if kind == "vector" else [point] * 9
    tree = {"status": "success", "data": {"resultType": kind, "result": result}}

    with pytest.raises(PrometheusError, match=says):
        taken(json.dumps(tree, separators=(",", ":")).encode())
