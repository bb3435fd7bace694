"""Where a dcgm-exporter is, as users write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.net.address import Address
from gpuledger.upstream.source import Place, parse_place


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://localhost:9400/metrics", Place(Address(host="localhost", port=9400), "/metrics")),
        ("http://10.0.0.7:9400", Place(Address(host="10.0.0.7", port=9400), "/metrics")),
        ("http://dcgm.gpu-operator.svc:9400/", Place(Address(host="dcgm.gpu-operator.svc", port=9400), "/metrics")),
        ("http://h/x?y=1#z", Place(Address(host="h", port=80), "/x?y=1")),
        ("http://h:2376/metrics", Place(Address(host="h", port=2376), "/metrics")),
        ("https://[::1]/metrics", Place(Address(host="::1", port=443, tls=True), "/metrics")),
        ("/run/prometheus/dcgm.prom", Place(path="/run/prometheus/dcgm.prom")),
        ("file:///run/prometheus/dcgm.prom", Place(path="/run/prometheus/dcgm.prom")),
    ],
)
def test_places(text: str, expected: Place) -> None:
    """Pages and files."""
    assert parse_place(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("localhost:9400", "is no page and no file"),
        ("dcgm.prom", "is no page and no file"),
        ("ftp://h/metrics", "is no page and no file"),
        ("http://", "is no page and no file"),
        ("http://h:0/", "is no page and no file"),
        ("http://h:65536/", "is no page and no file"),
        ("http://h:9400/a b", "is no page and no file"),
        ("http://h:9400/a\r\nHost: x", "is no page and no file"),
        ("http://user:secret@h:9400/metrics", "holds a user name or password"),
    ],
)
def test_what_is_no_place(text: str, words: str) -> None:
    """Says what would be right, and repeats no password."""
    with pytest.raises(ValueError, match=words) as caught:
        parse_place(text)
    assert "secret" not in str(caught.value)


@given(st.text() | st.builds("http://{}:{}/{}".format, st.text(), st.integers(), st.text()))
def test_any_text(text: str) -> None:
    """A place that can be tried, or a ValueError; nothing that would break a request."""
    try:
        place = parse_place(text)
    except ValueError:
        return
    assert str(place)
    assert not {"\r", "\n", " "} & set(place.target)
