"""All that is known of one row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gpuledger.top.amounts import amount, gib, percent
from gpuledger.top.line import Glyphs, Line, Piece, clean
from gpuledger.top.rows import Row
from gpuledger.top.seen import MEASURED, Use

WIDE = 26
MOST_USES = 200
LONGEST = 2000


def details(row: Row, glyphs: Glyphs) -> list[Line]:
    """Sums first, then everybody behind them, field by field."""
    inferred = [_field("", f"{gib(row.inferred_bytes, glyphs)} GiB inferred")] if row.inferred_bytes else []
    lines: list[Line] = [
        (Piece(row.owner, "strong"), Piece("" if row.active else "  has exited", "warn")),
        (),
        _field("memory", f"{gib(row.known_bytes, glyphs)} GiB listed by the driver"),
        *inferred,
        _field("compute engine", f"{percent(row.sm, glyphs)} %"),
        _field("power", f"{amount(row.watts, glyphs)} W"),
        _field("energy", f"{amount(row.joules, glyphs, 1000)} kJ"),
    ]
    for method, joules in row.methods:
        sure = "measured" if method in MEASURED else "estimated"
        lines.append(_field("", f"{amount(joules, glyphs, 1000)} kJ {sure}: {method}"))
    if row.share_error is not None:
        lines.append(_field("", f"its share is right to {glyphs.error}{percent(row.share_error, glyphs)} %"))
    for use in row.uses[:MOST_USES]:
        lines += [(), *_everything(use)]
    if len(row.uses) > MOST_USES:
        lines += [(), (Piece(f"and {len(row.uses) - MOST_USES} more", "dim"),)]
    return lines


def _everything(use: Use) -> Iterator[Line]:
    name = f"process {use.pid}" if use.pid is not None else f"container {use.container or use.container_id[:12]}"
    yield (Piece(f"{name} on GPU {use.gpu}", "strong"),)
    for key, value in use.fields.items():
        if value not in ("", None, {}, []):
            yield _field(clean(str(key))[:LONGEST], _value(value))


def _field(name: str, text: str) -> Line:
    return Piece(f"  {name:{WIDE}} ", "dim"), Piece(text)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return clean(text[:LONGEST])
