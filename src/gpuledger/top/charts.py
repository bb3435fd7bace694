"""What the GPUs did lately, as charts."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger.top.amounts import gib, percent, span
from gpuledger.top.bars import chart
from gpuledger.top.cards import Screen, power_of
from gpuledger.top.history import History
from gpuledger.top.line import OWNERS, Line, Piece, cropped, fitted
from gpuledger.top.seen import Gpu

HIGHEST = 8


def charts(gpus: Sequence[Gpu], history: History, screen: Screen, rows: int) -> list[Line]:
    """Load, memory and power of each GPU beside each other, as high as there is room."""
    glyphs = screen.glyphs
    each = max(1, (screen.columns - 4) // 3)
    high = min(HIGHEST, max(1, rows // max(1, len(gpus)) - 3))
    lines: list[Line] = []
    for gpu in gpus:
        points = list(history.of(gpu))
        titles = (
            f"busy {percent(gpu.busy, glyphs)} %",
            f"memory {gib(gpu.used_bytes, glyphs)} / {gib(gpu.total_bytes, glyphs)} GiB",
            f"power {power_of(gpu, glyphs)}",
        )
        drawn = (
            chart([point.busy for point in points], each, high, glyphs),
            chart([point.memory for point in points], each, high, glyphs),
            chart([point.power for point in points], each, high, glyphs),
        )
        age = Piece(f"  last {span(history.seconds, glyphs)}", "dim")
        lines.append((Piece(f"GPU {gpu.label}", "strong"), Piece(f"  {gpu.name}"), age))
        lines.append(tuple(Piece(fitted(text, each, glyphs.cut) + "  ") for text in titles))
        for level in zip(*drawn, strict=True):
            beside = zip(level, OWNERS[: len(level)], strict=True)
            lines += [tuple(Piece(text + "  ", style) for text, style in beside)]
        lines.append(())
    return [cropped(line, screen.columns) for line in lines] or [(Piece("no GPU", "warn"),)]
