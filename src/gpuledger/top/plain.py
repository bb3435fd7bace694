"""One picture as text, for scripts, mails and small screens."""

from __future__ import annotations

from gpuledger.top.cards import Screen, gpu_lines, problems, title
from gpuledger.top.columns import Layout
from gpuledger.top.line import ASCII, UNICODE, Line, ansi, cropped, plain_ascii, text_of
from gpuledger.top.seen import Seen
from gpuledger.top.table import View, row_line, summary, table

MOST_CARDS = 4
"""More GPUs than this are a line each."""


def lines(seen: Seen, view: View, screen: Screen) -> list[Line]:
    """All of it."""
    columns, glyphs = screen.columns, screen.glyphs
    gpus = [gpu for gpu in seen.gpus if view.choice.gpu in (None, gpu.index)]
    found = table(seen, view)
    layout = Layout.fit(view.choice.grouping, columns, seen.time)
    return [
        title(seen, screen),
        *problems(seen, screen, fixes=True),
        *gpu_lines(seen, gpus, screen, 3 * MOST_CARDS if len(gpus) <= MOST_CARDS else len(gpus)),
        cropped(summary(found, view, columns, glyphs), columns),
        cropped(layout.heading(view.sort, glyphs, falling=view.falling), columns),
        *(cropped(row_line(row, layout, glyphs), columns) for row in found),
    ]


def write(seen: Seen, view: View, *, columns: int, colour: bool, utf8: bool) -> str:
    """The text, in colours or not, in ASCII alone or not."""
    screen = Screen(columns, UNICODE if utf8 else ASCII)
    form = ansi if colour else text_of
    text = "".join(f"{form(line).rstrip()}\n" for line in lines(seen, view, screen))
    return text if utf8 else plain_ascii(text)
