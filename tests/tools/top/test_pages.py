"""The full-screen pages."""

from __future__ import annotations

import re
import time

from hypothesis import given

from gpuledger.tools.top.bars import History
from gpuledger.tools.top.cards import Screen
from gpuledger.tools.top.keys import KEYS
from gpuledger.tools.top.pages import MAX_USES, charts, details, help_lines
from gpuledger.tools.top.rows import Choice, rows
from gpuledger.tools.top.text import ASCII, UNICODE, plain
from gpuledger.web.snapshot.codec import decode
from tests.web.snapshot.pictures import GIB, MANY, NOW, PICTURES, Picture, busy, gpu, picture, process, shown_as


def lines_about(grouping: str, owner: str, one: Picture | None = None) -> list[str]:
    """The details of a row."""
    (row,) = (row for row in rows(shown_as(one or busy()), Choice(grouping)) if row.owner == owner)
    return [plain(line).strip() for line in details(row, UNICODE)]


def test_energy_by_method() -> None:
    """Which of it is measured, which is estimated, and how sure that is."""
    lines = lines_about("pod", "ml/train-0")

    assert "9.00 kJ measured: exclusive" in lines
    assert "4.00 kJ estimated: sm_time" in lines
    assert "standard deviation of its share: ±25 %" in lines_about("pod", "ml/chat-1") + lines_about(
        "process", "ml/chat-1/main"
    )


def test_every_field_is_there() -> None:
    """All fields of the processes and containers in the row, except for empty ones."""
    lines = lines_about("process", "ml/chat-1/main")

    assert "process 13 on GPU 0" in lines
    assert [line.split() for line in lines if line.startswith("user ")] == [["user", "eve"]]
    assert not any(line.startswith("watts") for line in lines)


def test_times_and_sizes_have_units() -> None:
    """As people read them, in local time; the names of fields without the unit."""
    one = process(13, memory_bytes=3 * GIB, busy_seconds=3725.0, sm_ratio=0.25, watts=120.0, start_time=NOW - 90,
                  joules={"sm_time": 2500.0, "parked": 1500.0}, energy_share_error_ratio=0.05)  # fmt: skip
    (row,) = rows(shown_as(picture(gpu(), processes=[one])), Choice())
    lines = [" ".join(plain(line).split()) for line in details(row, UNICODE, NOW)]

    assert "memory 3.00 GiB" in lines
    assert "busy 1h02m" in lines
    assert "sm 25 %" in lines
    assert "power 120.0 W" in lines
    assert "energy 2.50 kJ sm_time, 1.50 kJ parked" in lines
    assert "energy_share_error 5 %" in lines
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(NOW - 90))
    assert f"started {started} (1m30s ago)" in lines


def test_help_says_what_is_omitted_and_why() -> None:
    """Kill and command lines, which users of other tools look for."""
    text = "\n".join(plain(line) for line in help_lines(UNICODE))

    assert re.search(r"kill, renice +top changes nothing, so that anyone may run it", text)
    assert re.search(r"command lines +They often contain passwords and tokens", text)


def test_inferred_memory_is_called_so() -> None:
    """Beside what the driver lists."""
    lines = lines_about("container", "hidden")

    assert "4.00 GiB inferred" in lines
    assert lines[2].endswith("– GiB listed by the driver")  # noqa: RUF001


def test_a_large_group_ends() -> None:
    """With how many more there are."""
    many = picture(gpu(), processes=[process(n, user="eve") for n in range(1, MAX_USES + 9)])

    assert lines_about("user", "eve", many)[-1] == "and 8 more"


def test_an_exited_process_is_marked() -> None:
    """Its energy stays for a while."""
    assert lines_about("process", "host")[0] == "host  has exited"


@MANY
@given(PICTURES)
def test_nothing_commands_the_terminal(one: Picture) -> None:
    """Names and values contain no control characters."""
    one["processes"] = [{**p, "\x1b[2J": "\x1b[2J"} for p in one["processes"]]

    for row in rows(decode(one), Choice()):
        assert all(plain(line).isprintable() for line in details(row, UNICODE))


def test_charts_are_beside_each_other() -> None:
    """With their numbers of now, and how long they go back."""
    history, screen = History(), Screen(columns=80, glyphs=ASCII)
    for second in range(90):
        shown = shown_as(picture(gpu(), gpu(1), time=NOW + second))
        history.add(shown)

    lines = [plain(line) for line in charts(shown.gpus, history, screen, 20)]

    assert lines[0] == "GPU 0  NVIDIA H200  last 1m29s"
    assert lines[1].split() == ["busy", "50", "%", "memory", "80.0", "/", "160.0", "GiB", "power", "350/700", "W"]
    assert len(lines) == 2 * (2 + 7 + 1)
    assert plain(charts([], history, screen, 20)[0]) == "no GPU"


def test_help_has_every_key() -> None:
    """In lines that fit into 80 columns."""
    lines = [plain(line) for line in help_lines(ASCII)]

    assert all(any(line.startswith(key.names) for line in lines) for key in KEYS)
    assert max(map(len, lines)) <= 80
