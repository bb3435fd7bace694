"""The parser of Prometheus text: any bytes, cut anywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gpuledger.errors import UpstreamError
from gpuledger.integrations.exposition import Limits, Parser, ScrapedFamily
from tests.integrations.dcgmexporter.world import NAMES, body, parsed

SMALL = Limits(size=2000, series=12, line=120)
PIECES = [
    b"# HELP a_b some help\n", b"# TYPE a_b gauge\n", b"# TYPE h histogram\n", b"# TYPE a_b x\n", b"# a comment\n",
    b'a_b{UUID="GPU-1",pod=""} 1.5\n', b'a_b{pod="",UUID="GPU-1"} 2\n', b"plain 3 1700000000000\n", b"\n", b" \t\n",
    b'h_bucket{le="+Inf"} 4\n', b"h_sum NaN\n", b"h_count -Inf\n", b'x{a="\\"{}\\\\\\n",} 5\n', b"x{} 6\n",
    b"x{a=} 1\n", b"#\n",
    b'x{a="1"', b',b="2"} 1', b"}", b"{", b'"', b"\\", b"\r\n", b"\xff", "é".encode(), b"1e9", b" ", b"=", b",",
]  # fmt: skip
ANYTHING = st.lists(st.sampled_from(PIECES) | st.binary(max_size=30), max_size=20).map(b"".join)
Outcome = list[tuple[bytes, bytes, list[tuple[bytes, bytes | None, bytes]]]] | tuple[str, str]


def outcome(pieces: list[bytes], limits: Limits = SMALL) -> Outcome:
    """What comes of it; anything but an UpstreamError ends the test."""
    parser = Parser(limits)
    try:
        for piece in pieces:
            parser.feed(piece)
        return [(family.name, family.head, family.series) for family in parser.end()]
    except UpstreamError as error:
        return error.kind, str(error)


@given(ANYTHING, st.lists(st.integers(0, 400), max_size=8))
@example(b"a 1\n" * 3 + b"x" * 200, [11])
@example(b"# c\n" * 501 + b"bad\n", [100])
@example(b"bad\n" + b"a 1\n" * 600, [3])
def test_any_bytes_cut_anywhere(data: bytes, cuts: list[int]) -> None:
    """Families or one UpstreamError, and the same however the bytes arrive."""
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    cut = [data[start:stop] for start, stop in pairwise(places)]

    whole = outcome([data])

    assert outcome(cut) == whole
    assert outcome([bytes([byte]) for byte in data]) == whole


@given(ANYTHING)
def test_what_is_taken_is_what_prometheus_client_reads(data: bytes) -> None:
    """Whatever we accept and write out again is text that another parser accepts, with the same number of samples."""
    families = outcome([data], Limits())
    if isinstance(families, tuple):
        return
    written = [
        head + b"".join(name + (b"" if block is None else b"{%b}" % block) + b" " + value + b"\n"
                        for name, block, value in series)
        for _, head, series in families
    ]  # fmt: skip

    read = list(text_string_to_metric_families(b"".join(written).decode()))

    assert sum(len(family.samples) for family in read) == sum(len(series) for _, _, series in families)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_of_dcgm_exporter(name: str) -> None:
    """Every line that is no comment is a series, values untouched."""
    data = body(name)
    values = [line.rpartition(b" ")[2] for line in data.splitlines() if not line.startswith(b"#")]

    found = [value for family in parsed(data) for _, _, value in family.series]

    assert sorted(found) == sorted(values)


def test_families_in_two_places_come_together() -> None:
    """A family has its lines once and its series in one place, or Prometheus's own parser refuses it."""
    one, two, three = parsed(
        b'# HELP a A.\n# TYPE a gauge\na 1\nb 2\n# HELP a Again.\n# TYPE a counter\na{x="1"} 3\nc 4\n'
    )

    assert (one.head, one.series) == (b"# HELP a A.\n# TYPE a gauge\n", [(b"a", None, b"1"), (b"a", b'x="1"', b"3")])
    assert (two.name, three.name) == (b"b", b"c")


def test_histograms_stay_one_family() -> None:
    """Their samples have other names than they."""
    (family,) = parsed(b'# TYPE h histogram\nh_bucket{le="1"} 1\nh_bucket{le="+Inf"} 2\nh_sum 3\nh_count 2\n')

    assert (family.name, len(family.series)) == (b"h", 4)


def test_time_stamps_pass() -> None:
    """With the value they belong to."""
    assert parsed(b"a 1.5e3 1700000000000\n") == [ScrapedFamily(b"a", series=[(b"a", None, b"1.5e3 1700000000000")])]


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        (b"", "empty", "has no series"),
        (b"# HELP a A.\n", "empty", "has no series"),
        (b"a 1\nb 2", "half", "ends in the middle of line 2"),
        (b'a 1\nb{x="1",', "half", "ends in the middle of line 2"),
        (b"<!doctype html>\n", "format", "line 1 is not a sample"),
        (b"a 1\na{x=1} 1\n", "format", "line 2 has malformed labels"),
        (b'a{x="1" y="2"} 1\n', "format", "malformed labels"),
        (b'a{x="1",x="2"} 1\n', "format", "line 1 has a duplicate label"),
        (b'a{x="\xff"} 1\n', "format", "line 1 is not UTF-8"),
        (b"# HELP a \xff\n", "format", "line 1 is not UTF-8"),
        (b"# TYPE a speed\n", "format", "has an unknown type"),
        (b"a 1_000\n", "format", "is not a sample"),
        (b"a1\n", "format", "is not a sample"),
        (b"a 1\r\n", "format", "is not a sample"),
        (b'a{x="1"} 1 # {trace="7"} 1\n', "format", "malformed labels"),
        (b"x" * 121 + b"\n", "format", "line 1 has more than 120 bytes"),
        (b"a 1\n" + b"x" * 121, "format", "line 2 has more than 120 bytes"),
        (b"a 1\n" * 13, "size", "more than 12 series"),
        (b"".join(b"# HELP a%d x\n" % i for i in range(13)), "size", "more than 12 metrics"),
        (b"# c\n" * 501, "size", "more than"),
    ],
)
def test_errors_say_what_and_where(data: bytes, reason: str, words: str) -> None:
    """The kind for the metric, the words for the log."""
    found = outcome([data])

    assert found[0] == reason
    assert words in str(found[1])


LONG = 65_000


@pytest.mark.parametrize(
    "filling", [b"1", b" ", b"\t", b'"', b"\\", b",", b"}", b"}1", b"} ", b'x="",', b"a", b". ", b'\\"']
)
def test_long_lines_cost_no_more_than_their_length(filling: bytes) -> None:
    """Lines near the limit, good and bad, many of each: minutes for a pattern that tries everything in two ways."""
    long = filling * (LONG // len(filling))
    begun = [
        b"",
        b"a ",
        b"a 1.",
        b"a 1e",
        b"a 1 ",
        b"a{",
        b'a{x="',
        b'a{x="1"',
        b'a{x="1"} ',
        b"# HELP a b",
        b"# TYPE a",
    ]
    for before in begun:
        for after in (b"", b"x", b'"} 1', b"} 1", b" 1", b" 1 x"):
            line = before + long + after + b"\n"

            found = outcome([b"# HELP b B.\n" + line], Limits())

            assert isinstance(found, list) or found[0] in ("format", "empty")


def test_many_long_lines_of_help() -> None:
    """Spaces before the last word are kept, and looked at once."""
    lines = [b"# HELP a%d b%bx\n" % (i, b" " * LONG) for i in range(50)]

    found = outcome([*lines, b"a0 1\n"], Limits())

    assert found == [(b"a0", lines[0], [(b"a0", None, b"1")])]
