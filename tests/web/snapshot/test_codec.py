"""Snapshots as JSON: what the exporter writes is read back, and any other input is harmless."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import SnapshotError
from gpuledger.model.plaintext import escaped
from gpuledger.storage.codec import LONGEST_TEXT
from gpuledger.web.snapshot.codec import decode, encode, schemas
from gpuledger.web.snapshot.schema import Snapshot
from tests.web.snapshot.pictures import MANY, PICTURES, Picture, busy, demo, gpu, picture, process


def test_what_is_encoded_is_decoded() -> None:
    """Every field of the demo survives the way through JSON."""
    shown = demo(30)

    assert decode(json.loads(encode(shown))) == shown


@pytest.mark.parametrize(
    ("data", "message", "kind"),
    [
        ([], "not a gpuledger snapshot", "format"),
        ({"status": "success"}, "not a gpuledger snapshot", "format"),
        ({"version": "1"}, "not a gpuledger snapshot", "format"),
        ({"version": 2}, "snapshot version 2 is not supported, only 1; install the same version", "version"),
    ],
)
def test_other_json_is_refused(data: object, message: str, kind: str) -> None:
    """In one line, with a kind."""
    with pytest.raises(SnapshotError, match=message) as caught:
        decode(data)

    assert caught.value.kind == kind


@pytest.mark.parametrize("value", [True, -1, float("nan"), float("inf"), 10**400, "7", [], {}])
def test_an_implausible_number_is_unknown(value: object) -> None:
    """It is neither shown nor added up."""
    (row,) = decode(picture(gpu(), processes=[process(1, watts=value)])).processes

    assert row.watts is None


def test_wrong_types_become_defaults() -> None:
    """In every field: text, numbers, lists, mappings, records and choices."""
    wrong: dict[str, Any] = {
        "version": 1, "node": 7, "time": "now", "recording": "yes", "driver": [], "gpus": {}, "unresolved": 5,
        "host_pid_namespace": 1, "process_count": 1.5,
    }  # fmt: skip

    assert decode(wrong) == Snapshot()


def test_rows_without_identity_are_dropped() -> None:
    """A process without a pid or device, a problem without a known level."""
    rows = [{"pid": 1}, {"gpu": 0, "uuid": "GPU-0"}, 7, process(3), {**process(4), "pid": "x"}]
    shown = decode(picture(gpu(), processes=rows, problems=[{"level": "odd", "what": "x"}, {"level": "note"}]))

    assert [row.pid for row in shown.processes] == [3]
    assert [problem.level for problem in shown.problems] == ["note"]


def test_unknown_fields_are_ignored_and_sizes_are_bounded() -> None:
    """A newer exporter may send more; a hostile one may send too much."""
    (row,) = decode(picture(gpu(), processes=[process(1, user="x" * 9999, news=5)])).processes

    assert row.user == "x" * LONGEST_TEXT


def test_a_whole_float_is_an_integer() -> None:
    """JSON has one number type."""
    (row,) = decode(picture(gpu(), processes=[process(1, memory_bytes=2.0)])).processes

    assert row.memory_bytes == 2
    assert isinstance(row.memory_bytes, int)


def test_exited_processes_and_containers() -> None:
    """Which processes have left, and how many processes each container has."""
    shown = decode(busy())

    assert [row.pid for row in shown.processes if row.active is False] == [23]
    assert [row.processes for row in shown.containers] == [1, 1, 1, 0]


@MANY
@given(PICTURES)
def test_every_name_is_printable(one: Picture) -> None:
    """Whatever is in the JSON."""
    assert all(text.isprintable() for text in _texts(decode(one)))


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if is_dataclass(value):
        return [text for field in fields(value) for text in _texts(getattr(value, field.name))]
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in _texts(item)]
    return [text for item in value for text in _texts(item)] if isinstance(value, tuple) else []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("llama-0", "llama-0"),
        ("[bold]x[/]", "[bold]x[/]"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202egnp", "\\u202egnp"),
        ("\u200bx", "\\u200bx"),
        ("e\u0301", "é"),
        ("x\u0300\u0301", "x\\u0300\\u0301"),
        ("\ud800", "\\ud800"),
        ("\x9b2J", "\\x9b2J"),
        ("漢字", "漢字"),
    ],
)
def test_nothing_controls_a_terminal(text: str, shown: str) -> None:
    """Control characters, reversed text and combining marks without a width are escaped."""
    assert escaped(text, in_columns=True) == shown


@given(st.text())
def test_clean_text_is_printable(text: str) -> None:
    """Whatever it was."""
    assert escaped(text, in_columns=True).isprintable()


def test_schemas_come_from_the_records() -> None:
    """Types, null, descriptions and nested records."""
    described = schemas(Snapshot)
    process_schema = described["Process"]["properties"]

    assert process_schema["pid"] == {"type": "integer"}
    assert process_schema["memory_bytes"] == {"type": ["integer", "null"]}
    assert process_schema["watts"]["description"].startswith("Mean power")
    assert described["Gpu"]["properties"]["energy"]["anyOf"] == [
        {"$ref": "#/components/schemas/Energy"},
        {"type": "null"},
    ]
    assert described["Problem"]["properties"]["level"] == {"enum": ["problem", "warning", "note"]}
    assert set(described["Process"]["required"]) == set(process_schema)
