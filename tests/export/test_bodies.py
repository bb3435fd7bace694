"""Kept bodies: rendered once a tick, compressed, and streamed when they are too large to keep."""

from __future__ import annotations

import gzip
from dataclasses import replace

import pytest

from gpuledger.export import bodies
from gpuledger.export.bodies import Bodies
from gpuledger.export.negotiate import Format
from gpuledger.export.text import Renderer
from tests.export.test_text import tick_with, use


class Counting(Renderer):
    """Counts how often it renders."""

    calls = 0

    def chunks(self, *arguments):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN201 - as in Renderer
        """As the real one."""
        self.calls += 1
        return super().chunks(*arguments)


def test_one_rendering_a_tick_format_and_encoding() -> None:
    """Two Prometheis cost one rendering; a new tick, another format or encoding costs another."""
    renderer = Counting()
    kept = Bodies(renderer)
    tick = tick_with(use(7))

    plain = {kept.get(tick, Format.TEXT, "identity") for _ in range(3)}
    packed = kept.get(tick, Format.TEXT, "gzip")
    kept.get(tick, Format.OPENMETRICS, "gzip")
    kept.get(replace(tick, time_ns=5), Format.TEXT, "identity")

    assert renderer.calls == 4
    assert isinstance(packed, bytes)
    assert {gzip.decompress(packed)} == plain


def test_large_bodies_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the limit a plain body is handed on in chunks and not kept, and is the same text."""
    tick = tick_with(*(use(pid) for pid in range(200)))
    whole = Bodies(Renderer()).get(tick, Format.TEXT, "identity")
    monkeypatch.setattr(bodies, "LARGEST_KEPT_BYTES", 10_000)
    kept = Bodies(Renderer())

    streamed = kept.get(tick, Format.TEXT, "identity")

    assert not isinstance(streamed, bytes)
    assert b"".join(streamed) == whole
    assert kept._kept == {}
