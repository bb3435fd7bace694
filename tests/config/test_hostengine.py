"""The address of an nv-hostengine is checked before anything is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.config.parsers import hostengine


@pytest.mark.parametrize(
    "text", ["", "localhost", "10.0.0.1", "node-7.gpu:5555", "[::1]:5555", "unix:///tmp/nv-hostengine"]
)
def test_addresses(text: str) -> None:
    """A host, a host with a port, a socket, or nothing."""
    assert hostengine(text) == text


@pytest.mark.parametrize(
    "text", [":5555", "host:", "host:0", "host:65536", "tcp://host", "unix://x", "a b", "::1", "[x]:1"]
)
def test_no_addresses(text: str) -> None:
    """What DCGM would only fail to connect to."""
    with pytest.raises(ValueError, match="is not an address; write it as localhost, "):
        hostengine(text)


@given(st.text())
def test_any_text(text: str) -> None:
    """It is taken as it is, or refused."""
    try:
        assert hostengine(text) == text
    except ValueError as error:
        assert "is not an address" in str(error)  # noqa: PT017 - either outcome is right
