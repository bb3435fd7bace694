"""Bars and charts of characters, always exactly as wide as asked for."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger.top.line import Glyphs, Line, Piece
from gpuledger.top.seen import Gpu, Seen, Use


def bar(ratio: float | None, columns: int, glyphs: Glyphs, style: str) -> Line:
    """How much of something there is; empty where it is not known."""
    full = min(columns, max(0, round((ratio or 0) * columns)))
    return tuple(p for p in (Piece(glyphs.full * full, style), Piece(glyphs.free * (columns - full), "dim")) if p.text)


def parts_of(seen: Seen, gpu: Gpu) -> list[tuple[str, str, float]]:
    """Whose the memory of a device is: kind, name and bytes, one after the other as in the bar."""
    here = [use for use in (*seen.processes, *seen.containers) if gpu.uuid in (use.uuid, use.gpu_uuid)]
    known: dict[str, float] = {}
    inferred: dict[str, float] = {}
    for use in here:
        _add(known, use, use.memory_bytes if use.pid is not None else None)
        _add(inferred, use, use.inferred_bytes)
    if not seen.processes:  # an exporter that does not show them one by one
        for use in here:
            _add(known, use, use.memory_bytes)
    unknown = max(0.0, (gpu.unknown_bytes or 0) - sum(inferred.values()))
    others = max(0.0, (gpu.known_bytes or 0) - sum(known.values()))
    return [
        *(("known", name, size) for name, size in _largest_first(known)),
        *([("others", "not shown one by one", others)] if others else []),
        *(("inferred", name, size) for name, size in _largest_first(inferred)),
        ("unknown", "unknown", unknown),
        ("kept", "driver", (gpu.reserved_bytes or 0) + (gpu.overhead_bytes or 0)),
    ]


def _add(sizes: dict[str, float], use: Use, size: float | None) -> None:
    if size:
        sizes[use.owner] = sizes.get(use.owner, 0) + size


def _largest_first(sizes: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(sizes.items(), key=lambda item: (-item[1], item[0]))


def memory_bar(seen: Seen, gpu: Gpu, columns: int, glyphs: Glyphs) -> Line:
    """Split by owner, with what is known, inferred, unknown and the driver's apart.

    Each part ends where the sum up to it ends, so that rounding does not add up.
    """
    if not gpu.total_bytes:
        return bar(None, columns, glyphs, "")
    pieces: list[Piece] = []
    taken, end, owners = 0, 0.0, 0
    for kind, name, size in parts_of(seen, gpu):
        end += size
        until = min(columns, round(end / gpu.total_bytes * columns))
        if kind in ("known", "inferred", "others"):
            glyph = glyphs.inferred if kind == "inferred" else glyphs.owners[owners % len(glyphs.owners)]
            style = "guess" if kind == "inferred" else seen.colours.get(name, "") if kind == "known" else ""
            owners += 1
        else:
            glyph, style = (glyphs.unknown, "bad") if kind == "unknown" else (glyphs.kept, "dim")
        pieces.append(Piece(glyph * (until - taken), style))
        taken = max(taken, until)
    pieces.append(Piece(glyphs.free * (columns - taken), "dim"))
    return tuple(piece for piece in pieces if piece.text)


def chart(values: Sequence[float | None], columns: int, rows: int, glyphs: Glyphs) -> list[str]:
    """All values, from 0 to 1, as columns of that height, the newest at the right; a gap where one is not known."""
    shown = means(values, columns)
    steps = len(glyphs.steps) - 1
    lines = []
    for row in range(rows - 1, -1, -1):
        cells = []
        for value in shown:
            level = 0 if value is None else max(1, round(min(1.0, max(0.0, value)) * rows * steps))
            cells.append(glyphs.steps[min(steps, max(0, level - row * steps))])
        lines.append("".join(cells))
    return lines


def means(values: Sequence[float | None], columns: int) -> list[float | None]:
    """As many values as there are columns: where there are more, means of neighbours; where fewer, none at first."""
    if columns < 1:
        return []
    each = max(1, -(-len(values) // columns))
    parts = [values[max(0, end - each) : end] for end in range(len(values), 0, -each)][::-1]
    known = [[value for value in part if value is not None] for part in parts]
    found = [sum(part) / len(part) if part else None for part in known]
    return [None] * (columns - len(found)) + found
