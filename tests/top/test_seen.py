"""A picture is read whatever is in it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from gpuledger.top.line import OWNERS
from gpuledger.top.seen import PictureError, read
from gpuledger.view.snapshot import Picture
from tests.top.pictures import MANY, PICTURES, busy, gpu, picture, process
from tests.view.test_snapshot import demo as demo_picture


def test_every_number_of_the_demo_is_there() -> None:
    """What the exporter writes is what is read here, field by field."""
    one = demo_picture(30)

    seen = read(json.loads(json.dumps(one)))

    assert (seen.node, seen.recording, seen.driver_up, seen.driver_version) == ("n1", True, True, "580.159.04")
    (shown,), (told,) = seen.gpus, one["gpus"]
    assert (shown.used_bytes, shown.total_bytes) == (told["memory"]["used_bytes"], told["memory"]["total_bytes"])
    assert (shown.busy, shown.power_watts, shown.celsius) == (1.0, told["power_watts"], 59)
    assert shown.slowed_by == ("sw_power_cap",)
    assert shown.joules == told["energy"]["joules"]
    assert [(use.pid, use.memory_bytes, use.sm, use.watts, use.joules) for use in seen.processes] == [
        (p["pid"], p["memory_bytes"], p["sm_ratio"], p["watts"], p["joules"]) for p in one["processes"]
    ]
    assert [use.pod for use in seen.containers] == [c["pod"] for c in one["containers"]]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ([], "is no picture of gpuledger"),
        ({"status": "success"}, "is no picture of gpuledger"),
        ({"version": "1"}, "is no picture of gpuledger"),
        ({"version": 2}, "is a picture of version 2, and this program knows 1; install the same"),
    ],
)
def test_what_is_no_picture_is_refused(answer: object, says: str) -> None:
    """In one line."""
    with pytest.raises(PictureError, match=says):
        read(answer)


@pytest.mark.parametrize("value", [True, -1, float("nan"), float("inf"), 10**400, "7", [], {}])
def test_a_senseless_number_is_not_known(value: object) -> None:
    """Neither shown nor added up."""
    (use,) = read(picture(gpu(), processes=[process(1, watts=value)])).processes

    assert use.watts is None


@MANY
@given(PICTURES)
def test_any_picture_is_read(one: Picture) -> None:
    """And every name in it can be shown."""
    seen = read(one)

    for use in (*seen.processes, *seen.containers):
        assert (use.pod + use.container + use.process + use.user).isprintable()


def test_exited_and_containers() -> None:
    """Who has left is known; a container counts its processes itself."""
    seen = read(busy())

    assert [use.pid for use in seen.processes if not use.active] == [23]
    assert [use.processes for use in seen.containers] == [1, 1, 1, 0]


def test_owners_have_colours_of_their_own() -> None:
    """As many as there are; then they are used again. Each stays when others leave."""
    six = [process(n, unit=f"unit{n}.service") for n in range(6)]
    many = [process(n, unit=f"unit{n}.service") for n in range(40)]

    assert len(set(read(picture(processes=six)).colours.values())) == 6
    assert set(read(picture(processes=many)).colours.values()) == set(OWNERS)
    assert read(picture(processes=six[:1])).colours.items() <= read(picture(processes=six)).colours.items()
