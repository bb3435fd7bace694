"""Values and names in a Prometheus that break a report, or the program that opens it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from functools import partial

import pytest

from gpuledger.tools.report.formats import escape_formula
from tests.real.history import History, remembering
from tests.real.prometheus import Prometheus
from tests.real.scriptednode import Node, run_report

PREFIXES = ("", "\ufeff", "\n", " ", "\t", "\r")
SIGNS = ("=", "@", "-", "\uff1d", "\ufe66", "\uff0b", "\uff0d", "\uff20", "\u2212")
"""Full-width and small forms, and the minus sign, besides ASCII."""
NAMES = [f"{prefix}{sign}1" for prefix in PREFIXES for sign in SIGNS]
"""Texts that a spreadsheet may take for a formula, at least after it removed what is before it."""
ESCAPES = "x\x1b]0;owned\x07\u202e"
FORMATS = ("table", "csv", "json", "html", "focus")


def linear(size: float, minute: float) -> float:
    """A counter that reaches a size after two hours."""
    return size / 120 * (minute + 30)


@pytest.fixture(scope="module")
def server() -> Iterator[Prometheus]:
    """Counters of any size, a MIG instance without its GPU, and an owner with an escape in its name."""
    found = History()
    node = Node(found, "a")
    node.container("red", lambda m: 600 * (m + 30))
    node.books(1e6, lambda _: 0, lambda m: 1e6 + 600 * (m + 30))
    for name, size in (("b", 1e308), ("c", 1e20)):
        node = Node(found, name)
        grows = partial(linear, size)
        node.container(ESCAPES, grows)
        node.books(1e6, lambda _: 0, grows)
    node.add("gpu_mig_info", lambda _: 1, {**node.gpu, "uuid": "MIG-1", "profile": "1g.18gb", "name": ESCAPES})
    node.add("gpu_info", lambda _: 1, {**node.target, "gpu": "1", "uuid": "=GPU", "name": ESCAPES})
    with remembering(found) as running:
        yield running


@pytest.mark.needs("prometheus")
@pytest.mark.parametrize("output", FORMATS)
@pytest.mark.parametrize("by", ["namespace", "gpu-model"])
def test_values_of_any_size(server: Prometheus, output: str, by: str) -> None:
    """An exporter that is taken over exposes counters up to 1e308: a report is made, or refused in one line."""
    flags = ("--since=4h", "--price=0.3", "--currency=EUR", "--allow-partial", f"--by={by}", f"--format={output}")
    done = run_report(server, *flags)

    assert "Traceback" not in done.stderr
    assert done.returncode == (2 if (by, output) == ("gpu-model", "focus") else 0)
    assert output == "json" or not {"\x1b", "\u202e"} & set(done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_names_that_look_like_formulas(name: str) -> None:
    """A tenant calls a pod `=…`, also after a line break, a byte-order mark or in full width: the cell is text."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow([escape_formula(name), escape_formula(f"a {name}")])
    (row,) = csv.reader(io.StringIO(out.getvalue()))

    assert out.getvalue().count("\n") == 1
    assert row[0][0] in "'\ufffd"
    assert row[1][0] == "a"
