"""Addresses as users write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.net.address import Address, has_credentials, parse_address, parse_url, redacted


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("unix:///run/d.sock", Address(path="/run/d.sock")),
        ("/run/d.sock", Address(path="/run/d.sock")),
        ("tcp://host:2375", Address(host="host", port=2375)),
        ("tcp://host:2376/", Address(host="host", port=2376, tls=True)),
        ("https://host:1", Address(host="host", port=1, tls=True)),
        ("tcp://[::1]:2375", Address(host="::1", port=2375)),
    ],
)
def test_addresses(url: str, expected: Address) -> None:
    """As DOCKER_HOST has them."""
    assert parse_address(url) == expected


@given(st.text() | st.builds("{}://{}:{}".format, st.sampled_from(["tcp", "unix", "ssh"]), st.text(), st.text()))
def test_any_text_as_an_address(url: str) -> None:
    """An address that can be tried, or a ValueError."""
    try:
        address = parse_address(url)
    except ValueError:
        return
    assert address.path or (address.host and 0 < address.port < 65536)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://a", (Address(host="a", port=80), "")),
        ("https://a/b?c", (Address(host="a", port=443, tls=True), "/b?c")),
        ("http://[::1]:9090/", (Address(host="::1", port=9090), "/")),
        ("http://a:0", None),
        ("http://a:65536", None),
        ("ftp://a", None),
        ("http://a b", None),
    ],
)
def test_urls(text: str, expected: tuple[Address, str] | None) -> None:
    """Address and path of a URL, or None."""
    assert parse_url(text) == expected


def test_parts() -> None:
    """A default port, brackets of IPv6, and credentials."""
    address, _ = parse_url("http://a", 9400) or (Address(), "")
    assert address.port == 9400
    assert str(Address(host="::1", port=1)) == "[::1]:1"
    assert Address(path="/d.sock").authority == "localhost"
    assert has_credentials("http://me:secret@a/")
    assert not has_credentials("http://a/@")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("/run/docker.sock", "/run/docker.sock"),
        ("unix:///run/docker.sock", "unix:///run/docker.sock"),
        ("http://[::1]:9400/metrics", "http://[::1]:9400/metrics"),
        ("http://a:9400/metrics?", "http://a:9400/metrics?***"),
        ("http://a/m?token=x&y&z==&=", "http://a/m?token=***&***&z=***&=***"),
        ("http://user:pa/ss?w@rd@a/m?t=x", "http://***@a/m?t=***"),
        ("http://user@a", "http://***@a"),
        ("user:password@a:9400", "***@a:9400"),
        ("up == 1 and x @ 5", "up == 1 and x @ 5"),
        ("a?b=c", "a?b=***"),
        ("/a?b", "/a?b"),
        ("https://h/v1/metrics;token=x;y", "https://h/v1/metrics;token=***&***"),
        ("h/v1;token=x", "h/v1;token=***"),
    ],
)
def test_redacted(text: str, shown: str) -> None:
    """A message shows no user, no password and no value of a query."""
    assert redacted(text) == shown
