"""The renderer: both formats, any label text, no series twice, memory that stays flat."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuledger.catalog import CATALOG, Family, Type, kinds
from gpuledger.model import Account, ContainerUse, Owner, Tick
from gpuledger.web import text
from gpuledger.web.json import tick_json
from gpuledger.web.negotiate import Format
from gpuledger.web.text import LONGEST_VALUE, LabelBlocks, Renderer, escape
from tests.builders import H200, booked_tick, process_use

TEXT_MADE_OF_ANYTHING = st.text(st.characters(codec=None), max_size=40) | st.text(
    alphabet='\\"\n\r\t{}=, #\x00\ud800é', max_size=20
)


def render(tick: Tick, fmt: Format = Format.TEXT) -> str:
    """The whole body."""
    return b"".join(Renderer().chunks(tick, fmt)).decode()


def samples(body: str, fmt: Format) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every series with its value, through prometheus_client's parser; a series that stands twice is an error."""
    parse = parse_text if fmt is Format.TEXT else parse_openmetrics
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in parse(body):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


@pytest.mark.parametrize("fmt", Format)
def test_the_container_around_an_owner_is_a_label(fmt: Format) -> None:
    """A pod inside a container, and a job inside a pod, have the label; all others lack it, in every format."""
    node, slurmd = Owner(container="kind-worker"), Owner(namespace="slurm", pod="w-0", container="slurmd")
    pod = Owner(container="main", container_id="c1", namespace="ml", pod="a", runtime="containerd", outer=node)
    owners = [pod, Owner(job="slurm/12", outer=slurmd), Owner(container="web", container_id="c2", runtime="docker")]
    uses = [process_use(pid, owner=owner) for pid, owner in enumerate(owners, 7)]
    containers = tuple(ContainerUse(use.device, use.owner, 1, None, None) for use in uses if use.owner.container_id)
    tick = replace(booked_tick(*uses), containers=containers)

    around: dict[str, list[str]] = {"gpu_process_info": [], "gpu_owner_info": []}
    for name, labels in samples(render(tick, fmt), fmt):
        if name in around:
            around[name].append(dict(labels).get("outer_container", "-"))
    shown = json.loads(tick_json(tick))["metrics"]
    of_json = [one["labels"].get("outer_container", "-") for one in shown["gpu_process_info"]["series"]]
    assert around["gpu_process_info"] == of_json == ["kind-worker", "slurm/w-0/slurmd", "-"]
    assert around["gpu_owner_info"] == ["kind-worker", "-"]


@pytest.mark.parametrize("fmt", Format)
def test_values_and_units(fmt: Format) -> None:
    """Milliwatts become watts, percentages ratios, and integers stay integers, in both formats."""
    body = render(booked_tick(process_use(7), power_mw=290_500, utilization_pct=40, memory_used_bytes=2**40 + 1), fmt)

    gpu = '{gpu="0",uuid="GPU-1"}'
    assert f"gpu_power_watts{gpu} 290.5\n" in body
    assert f"gpu_utilization_ratio{gpu} 0.4\n" in body
    assert f"gpu_memory_used_bytes{gpu} 1099511627777\n" in body
    assert 'gpu_process_sm_utilization_ratio{pid="7",' in body


def test_absent_is_absent() -> None:
    """A family without a value is not in the body at all, not even its HELP."""
    body = render(booked_tick())

    assert "gpu_power_watts" not in body
    assert "gpu_process" not in body.replace("gpu_processes", "")


def test_openmetrics_differs_where_it_must() -> None:
    """Counters lose `_total` in TYPE, infos are of type info, units are named, and the end is marked."""
    body = render(replace(booked_tick(), accounts={H200.uuid: Account(energy_mj=5000)}), Format.OPENMETRICS)

    assert "# TYPE gpu_energy_joules counter\n# UNIT gpu_energy_joules joules\n# HELP gpu_energy_joules " in body
    assert 'gpu_energy_joules_total{gpu="0",uuid="GPU-1"} 5.0\n' in body
    assert "# TYPE gpu info\n" in body
    assert body.endswith("# EOF\n")


def test_two_things_with_equal_labels_are_one_series() -> None:
    """A driver that lists a process twice cannot break the scrape: a duplicate series would lose all of it."""
    body = render(booked_tick(process_use(7), process_use(7), process_use(8)))

    assert body.count('gpu_process_memory_used_bytes{pid="7"') == 1
    assert body.count('gpu_process_memory_used_bytes{pid="8"') == 1


def test_names_that_differ_only_in_what_is_cut_are_one_series() -> None:
    """Two long names equal as far as they are shown give one line, not the same line twice."""
    long = "x" * LONGEST_VALUE

    body = render(booked_tick(process_use(7, long + "a"), process_use(7, long + "b")))

    assert body.count("gpu_process_memory_used_bytes{") == 1


def test_label_blocks_are_kept_and_dropped() -> None:
    """A process whose name changes gets its new name; one that ended leaves nothing behind."""
    renderer = Renderer()
    first = b"".join(renderer.chunks(booked_tick(process_use(7, "old")), Format.TEXT)).decode()
    second = b"".join(renderer.chunks(booked_tick(process_use(7, "new")), Format.TEXT)).decode()
    list(renderer.chunks(booked_tick(), Format.TEXT))

    assert 'process_name="old"' in first
    assert 'process_name="new"' in second
    assert 'process_name="old"' not in second
    assert renderer._blocks._cache[kinds.PROCESS] == {}


@pytest.mark.parametrize("fmt", Format)
@given(names=st.lists(TEXT_MADE_OF_ANYTHING, min_size=1, max_size=5))
@settings(max_examples=60)
def test_any_name_survives(fmt: Format, names: list[str]) -> None:
    """Quotes, newlines, braces, NULs, broken surrogates: the parser reads back what went in."""
    tick = booked_tick(*(process_use(pid, name) for pid, name in enumerate(names)))

    found = samples(render(tick, fmt), fmt)

    for pid, name in enumerate(names):
        readable = name.encode("utf-8", "replace").decode()
        labels = {"pid": str(pid), "gpu": "0", "uuid": "GPU-1", "process_name": readable} | dict.fromkeys(
            ("namespace", "pod", "container", "pod_uid", "container_id"), ""
        )
        assert found["gpu_process_memory_used_bytes", tuple(sorted(labels.items()))] == 100


@given(st.text(st.characters(codec=None), max_size=5 * LONGEST_VALUE))
@settings(max_examples=20)
def test_escaped_text_has_no_way_out(text: str) -> None:
    """Escaped text holds no bare quote and no newline, can be encoded, and is bounded."""
    escaped = escape(text)

    assert "\n" not in escaped
    assert '"' not in escaped.replace("\\\\", "").replace('\\"', "")
    assert len(escaped.encode()) <= 4 * 2 * LONGEST_VALUE


@pytest.mark.parametrize("fmt", Format)
@given(value=st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 2**64))
@settings(max_examples=40)
def test_any_number_survives(fmt: Format, value: float) -> None:
    """What is written is read back as the same number."""
    family = Family("x_ratio", Type.GAUGE, kinds.EXPORTER, "X.", "nowhere", lambda _: value)
    body = b"".join(Renderer([family]).chunks(booked_tick(), fmt)).decode()

    (found,) = samples(body, fmt).values()

    assert math.isclose(found, float(value), rel_tol=0, abs_tol=0)


def test_body_comes_family_by_family() -> None:
    """No chunk holds more than one family, so that the whole body is never in memory."""
    tick = replace(booked_tick(energy_mj=1, power_mw=1), processes=tuple(process_use(pid) for pid in range(500)))

    chunks = list(Renderer().chunks(tick, Format.TEXT))

    assert all(chunk.count(b"# TYPE") == 1 for chunk in chunks)
    assert len(chunks) <= len(CATALOG)


def test_labels_of_very_many_things_are_written_but_not_kept() -> None:
    """What is kept from tick to tick is bounded; every thing has its lines all the same."""
    tick = booked_tick(*[process_use(pid) for pid in range(5)])
    blocks = LabelBlocks()
    with patch.object(text, "CACHED_BLOCKS", 2):
        first, again = (list(blocks.label(kinds.PROCESS, kinds.PROCESS.things(tick))) for _ in range(2))

    assert first == again
    assert len({block for block, _ in first}) == 5
    assert sum(one is other for (one, _), (other, _) in zip(first, again, strict=True)) == 2


@given(TEXT_MADE_OF_ANYTHING)
def test_created(name: str) -> None:
    """OpenMetrics has the time at which a counter was 0, next to the counter, where it is known; text never has."""
    new = replace(
        process_use(7, name=name), energy_mj=(("exclusive", 5), ("parked", 3)), created_ns=1_700_000_000 * 10**9
    )
    resumed = replace(process_use(8), energy_mj=(("exclusive", 5),))
    tick = booked_tick(new, resumed)
    tick = replace(tick, health=replace(tick.health, start_time_ms=1_600_000_000_500))
    renderer = Renderer(created=True)

    found = samples(b"".join(renderer.chunks(tick, Format.OPENMETRICS)).decode(), Format.OPENMETRICS)
    created = {key: value for key, value in found.items() if key[0].endswith("_created")}
    energy = {key for key in found if key[0] == "gpu_process_energy_joules_total"}
    of_new = {("gpu_process_energy_joules_created", labels) for _, labels in energy if dict(labels)["pid"] == "7"}
    assert {key for key in created if key[0] == "gpu_process_energy_joules_created"} == of_new
    assert len(of_new) == 2
    assert {created[key] for key in of_new} == {1.7e9}
    assert created["gpuledger_ticks_created", ()] == 1_600_000_000.5
    assert "_created" not in b"".join(renderer.chunks(tick, Format.TEXT)).decode()
