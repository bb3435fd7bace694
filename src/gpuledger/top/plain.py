"""`top --once`: a snapshot as text, for scripts, mails and small screens. Needs neither textual nor rich."""

from __future__ import annotations

from gpuledger.top.cards import Screen, gpu_lines, problem_lines, title
from gpuledger.top.columns import Layout, View, summary
from gpuledger.top.text import ASCII, HEAD, UNICODE, Line, ansi, cropped, joined, plain, plain_ascii, styled
from gpuledger.view.schema import Snapshot

MAX_CARDS = 4
"""More GPUs get one line each."""


def lines(shown: Snapshot, view: View, screen: Screen) -> list[Line]:
    """All lines."""
    columns, glyphs = screen.columns, screen.glyphs
    gpus = [gpu for gpu in shown.gpus if view.choice.gpu in (None, gpu.gpu)]
    rows = view.rows(shown)
    layout = Layout.fit(view.choice.grouping, columns, shown.time or None)
    return [
        title(shown, screen),
        *problem_lines(shown, screen, fixes=True),
        *gpu_lines(shown, gpus, screen, 3 * MAX_CARDS if len(gpus) <= MAX_CARDS else len(gpus)),
        summary(rows, view, columns, glyphs),
        cropped(styled(" ".join(layout.headings(view, glyphs)), HEAD), columns),
        *(
            cropped(joined(((cell,) for cell in layout.cells(row, glyphs, "" if row.active else "dim")), " "), columns)
            for row in rows
        ),
    ]


def write(shown: Snapshot, view: View, *, columns: int, colour: bool, utf8: bool) -> str:
    """The text, with ANSI colours if `colour`, and in ASCII unless `utf8`."""
    screen = Screen(columns=columns, glyphs=UNICODE if utf8 else ASCII)
    form = ansi if colour else plain
    text = "".join(f"{form(line).rstrip()}\n" for line in lines(shown, view, screen))
    return text if utf8 else plain_ascii(text)
