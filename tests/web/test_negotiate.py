"""Which format and encoding real and odd clients get."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.web.negotiate import Format, choose_encoding, choose_format

TEXT, OPENMETRICS = Format.TEXT, Format.OPENMETRICS

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROTOBUF = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7,"
FIREFOX = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, TEXT),
        ("", TEXT),
        ("*/*", TEXT),
        (FIREFOX, TEXT),
        (PROMETHEUS_2, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS),
        (PROTOBUF + PROMETHEUS_3, OPENMETRICS),
        (PROTOBUF + "text/plain;version=0.0.4;q=0.3", TEXT),
        (PROTOBUF, TEXT),
        ("application/json", TEXT),
        ("text/plain", TEXT),
        ("text/plain;version=0.0.4", TEXT),
        ("text/plain;version=1.0.0", TEXT),
        ("text/plain;version=1.0.0;q=0.9,application/openmetrics-text;q=0.5", TEXT),
        ("application/openmetrics-text", OPENMETRICS),
        ("Application/OpenMetrics-Text ; Version=1.0.0 ; Q=1", OPENMETRICS),
        ('application/openmetrics-text;version="1.0.0"', OPENMETRICS),
        ("application/*", OPENMETRICS),
        ("text/*", TEXT),
        # The highest quality wins, wherever it stands.
        ("text/plain;q=0.4,application/openmetrics-text;q=0.5", OPENMETRICS),
        ("application/openmetrics-text;q=0.5,*/*", TEXT),
        ("application/openmetrics-text;q=0.9, text/plain;q=0.91", TEXT),
        # A tie goes to the more specific range, then to the one that came first.
        ("*/*,application/openmetrics-text", OPENMETRICS),
        ("text/*,application/openmetrics-text", OPENMETRICS),
        ("text/plain,application/openmetrics-text;version=1.0.0", OPENMETRICS),
        ("text/plain,application/openmetrics-text", TEXT),
        ("application/openmetrics-text,text/plain", OPENMETRICS),
        # Zero excludes, and the most specific range speaks for a format.
        ("application/openmetrics-text;q=0,*/*", TEXT),
        ("text/plain;q=0,*/*", OPENMETRICS),
        ("text/plain;q=0.000,application/openmetrics-text;q=0", TEXT),
        ("text/plain;version=1.0.0;q=0,text/*", TEXT),
        # A version of OpenMetrics that we do not write is the last resort.
        ("application/openmetrics-text;version=0.0.1", OPENMETRICS),
        ("application/openmetrics-text;version=0.0.1,text/plain;q=0.1", TEXT),
        ("application/openmetrics-text;version=0.0.1,*/*;q=0.1", TEXT),
        ("application/openmetrics-text;version=0.0.1,application/openmetrics-text;q=0", TEXT),
        ("application/openmetrics-text;version=0.0.1;q=0", TEXT),
        # A broken quality costs its own range only; quotes hide separators.
        ("application/openmetrics-text;q=high,text/plain;q=0.1", TEXT),
        ("application/openmetrics-text;q=2", TEXT),
        ('application/openmetrics-text;note="a,b;q=0"', OPENMETRICS),
        (",,;;, application/openmetrics-text,;", OPENMETRICS),
    ],
)
def test_format(accept: str | None, expected: Format) -> None:
    """Each header gets the format that RFC 9110 gives it, and never an error."""
    assert choose_format(accept) is expected


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, "identity"),
        ("", "identity"),
        ("gzip", "gzip"),
        ("x-gzip", "gzip"),
        ("GZIP, deflate, br", "gzip"),
        ("deflate, br", "identity"),
        ("gzip;q=0", "identity"),
        ("gzip; q=0.5", "gzip"),
        ("*", "gzip"),
        ("*;q=0", "identity"),
        ("gzip;q=0,*", "identity"),
        ("gzip;q=0.5,identity", "identity"),
        ("identity;q=0.5,gzip;q=0.5", "gzip"),
        ("identity;q=0", "identity"),
        ("identity", "identity"),
        ("gzip;q=x", "identity"),
    ],
)
def test_encoding(accept: str | None, expected: str) -> None:
    """Gzip is used when it is welcome, and only then."""
    assert choose_encoding(accept) == expected


def test_content_types() -> None:
    """The content types are the registered ones, version and charset included."""
    assert TEXT.content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert OPENMETRICS.content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"


@given(st.text() | st.text(alphabet='text/plain*;q=01.,"\\ gzip\n'))
def test_garbage(header: str) -> None:
    """Any string at all gets some answer."""
    assert choose_format(header) in Format
    assert choose_encoding(header) in ("gzip", "identity")
