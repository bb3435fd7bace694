"""One snapshot as text."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from gpuledger.tools.top.columns import COLUMNS, View
from gpuledger.tools.top.pages import once
from gpuledger.tools.top.rows import GROUPINGS, TREE, Choice
from gpuledger.tools.top.text import cells
from gpuledger.web.snapshot.codec import decode
from tests.web.snapshot.pictures import HOSTILE, MANY, PICTURES, Picture, busy, demo, gpu, picture, process, shown_as


def test_the_demo_on_a_small_screen() -> None:
    """The GPU, the sums and all rows."""
    text = once(demo(12), View(), columns=80, colour=False, utf8=True)

    lines = text.splitlines()
    assert lines[0].startswith("gpuledger ")
    assert "RECORDING" in lines[0]
    assert lines[1] == "GPU 0  NVIDIA H200  57°C"
    assert lines[7].startswith("GPU 2  NVIDIA H200  44°C  allocated to research/notebook-dana-0/notebook, not")
    assert lines[8] == "  used for 0m11s"
    assert lines[14].startswith("5 by process  26.8 GiB")
    assert lines[15].split() == ["GPU", "PID", "OWNER", "PROCESS", "MEM", "GiB▼", "SM%", "WATTS", "kJ", "HOW"]
    assert lines[16].split()[:4] == ["0", "487", "ollama.service", "ollama"]
    assert lines[20].split() == ["2", "–", "research/not…a-0/notebook", "–", "0.00", "0", "0.00", "0.00"]  # noqa: RUF001
    assert len(lines) == 21


def test_colours_and_ascii() -> None:
    """Codes only where they are wanted; nothing but ASCII where there is nothing else."""
    coloured = once(shown_as(busy()), View(), columns=80, colour=True, utf8=True)
    plain = once(shown_as(busy()), View(), columns=80, colour=False, utf8=True)
    ascii_only = once(shown_as(busy()), View(), columns=80, colour=False, utf8=False)

    assert "\x1b[" in coloured
    assert re.sub(r" *\n", "\n", re.sub(r"\x1b\[[0-9;]*m", "", coloured)) == plain
    assert ascii_only.isascii()
    assert "\x1b" not in ascii_only


def test_a_fix_is_there_to_the_last_word() -> None:
    """Wrapped at spaces, and indented; a word that is too long is broken."""
    what = "cannot open /var/run/docker.sock: " + "permission " * 9
    fix = "`sudo usermod -aG docker USER` for the user that runs gpuledger, then log in again " + "x" * 150
    problem = {"level": "problem", "about": "docker", "what": what.strip(), "fix": fix}
    text = once(shown_as(picture(gpu(), problems=[problem])), View(), columns=60, colour=False, utf8=True)

    lines = text.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("docker: "))
    last = next(at for at, line in enumerate(lines) if line.startswith("GPU 0 "))
    shown = lines[first:last]
    assert max(map(len, shown)) <= 60
    assert " ".join(line.strip() for line in shown).startswith(f"docker: {what.strip()} fix: {fix[:60]}")
    assert "".join("".join(shown).split()).endswith("again" + "x" * 150)
    assert shown[1].startswith("  ")
    assert shown[-1].startswith(" " * 7)


def test_nothing_is_cropped() -> None:
    """The alerts of a GPU, the legend of the sums and the title continue on the next line, in cards and in lines."""
    allocated = [gpu(n, in_use=False, allocated_to=["research/notebook-dana-0/notebook"]) for n in (0, 1)]
    many = [gpu(n, in_use=False, allocated_to=["research/notebook-dana-0/notebook"]) for n in range(12)]
    for gpus in (allocated, many):
        text = once(decode(picture(*gpus)), View(), columns=60, colour=False, utf8=True)
        assert max(map(cells, text.splitlines())) <= 60
        words = " ".join(text.split())
        assert words.count("allocated to research/notebook-dana-0/notebook, not used") == len(gpus)
        assert "= measured ~ estimated" in words
        assert "CUDA 13.0" in words


def test_a_chosen_gpu() -> None:
    """Its card and its rows, no other."""
    text = once(shown_as(busy()), View(Choice(gpu=1)), columns=120, colour=False, utf8=False)

    assert "GPU 1 " in text
    assert "GPU 0 " not in text
    assert "ollama" not in text


def test_hostile_names_do_nothing() -> None:
    """Escape sequences, markup, line breaks, turned writing."""
    names = [process(n, process_name=name, unit=name, user=name) for n, name in enumerate(HOSTILE, 1)]
    text = once(decode(picture(gpu(name="\x1b[2J"), processes=names)), View(), columns=120, colour=False, utf8=True)

    assert all(line.isprintable() for line in text.splitlines())
    assert len(text.splitlines()) == 6 + len(HOSTILE)
    assert "[bold red]x[/]" in text


@MANY
@given(
    PICTURES,
    st.sampled_from((*GROUPINGS, TREE)),
    st.sampled_from([column.name for column in COLUMNS if not column.only]),
    st.integers(20, 250),
    st.booleans(),
)
def test_any_picture_fits_any_width(one: Picture, grouping: str, sort: str, columns: int, utf8: bool) -> None:
    """No line is longer than the screen is wide, and none commands it."""
    text = once(decode(one), View(Choice(grouping), sort), columns=columns, colour=False, utf8=utf8)

    for line in text.split("\n"):
        assert cells(line) <= columns
        assert line.isprintable()
