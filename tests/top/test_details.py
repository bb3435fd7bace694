"""All that is known of a row."""

from __future__ import annotations

from hypothesis import given

from gpuledger.top.details import MOST_USES, details
from gpuledger.top.line import UNICODE, text_of
from gpuledger.top.rows import Choice, rows
from gpuledger.top.seen import read
from gpuledger.view.snapshot import Picture
from tests.top.pictures import MANY, PICTURES, busy, gpu, picture, process, seen


def told(grouping: str, owner: str, one: Picture | None = None) -> list[str]:
    """The lines about a row."""
    (row,) = (row for row in rows(seen(one or busy()), Choice(grouping)) if row.owner == owner)
    return [text_of(line).strip() for line in details(row, UNICODE)]


def test_energy_is_told_by_method() -> None:
    """Which of it is measured, which is estimated, and how sure that is."""
    lines = told("pod", "ml/train-0")

    assert "9.00 kJ measured: exclusive" in lines
    assert "4.00 kJ estimated: sm_time" in lines
    assert "its share is right to ±25 %" in told("pod", "ml/chat-1") + told("process", "ml/chat-1/main")


def test_every_field_is_there() -> None:
    """Of everybody behind the row, but for what is empty."""
    lines = told("process", "ml/chat-1/main")

    assert "process 13 on GPU 0" in lines
    assert [line.split() for line in lines if line.startswith("user ")] == [["user", "eve"]]
    assert not any(line.startswith("watts") for line in lines)


def test_inferred_memory_is_called_so() -> None:
    """Beside what the driver lists."""
    lines = told("container", "hidden")

    assert "4.00 GiB inferred" in lines
    assert lines[2].endswith("– GiB listed by the driver")  # noqa: RUF001


def test_a_large_group_ends() -> None:
    """With how many more there are."""
    many = picture(gpu(), processes=[process(n, user="eve") for n in range(1, MOST_USES + 9)])

    assert told("user", "eve", many)[-1] == "and 8 more"


def test_who_has_left_is_said() -> None:
    """Its energy stays for a while."""
    assert told("process", "host")[0] == "host  has exited"


@MANY
@given(PICTURES)
def test_nothing_commands_the_terminal(one: Picture) -> None:
    """Neither names nor values nor the names of fields nobody knows."""
    one["processes"] = [{**p, "\x1b[2J": "\x1b[2J"} for p in one["processes"]]

    for row in rows(read(one), Choice()):
        assert all(text_of(line).isprintable() for line in details(row, UNICODE))
