"""Whole pages: help, details of a row, charts, and the text of `top --once`. Need neither textual nor rich."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from gpuledger.tools.text import amount, gib, percent, span
from gpuledger.tools.top.bars import History, chart
from gpuledger.tools.top.cards import Screen, gpu_lines, power_text, problem_lines, server_lines, title
from gpuledger.tools.top.columns import COLUMNS, View, asked, cells, fit_rows, headings, summary
from gpuledger.tools.top.keys import KEYS
from gpuledger.tools.top.rows import TableRow, Use
from gpuledger.tools.top.text import (
    ASCII,
    HEAD,
    KEY,
    OWNER_STYLES,
    UNICODE,
    WARN,
    Glyphs,
    Line,
    ansi,
    cropped,
    fitted,
    joined,
    local_time,
    plain,
    styled,
)
from gpuledger.web.snapshot.schema import MEASURED, Gpu, ProcessRow, Snapshot

NAME_WIDTH = 26
MAX_USES = 200
MAX_CHART_ROWS = 8
MAX_CARDS = 4
"""`top --once` shows more GPUs as one line each."""


OMITTED = (
    ("kill, renice", "top changes nothing, so that anyone may run it."),
    ("", "Stop the pod, job or service, which may restart processes."),
    ("command lines", "They often contain passwords and tokens."),
    ("", "PROCESS is the name that the kernel has for a process."),
)
"""What other tools have and this one does not, and why."""


def help_lines(glyphs: Glyphs) -> list[Line]:
    """All keys and columns, and how memory is drawn."""
    key_width = max(len(key.names) for key in KEYS) + 2
    memory = (
        f"{''.join(glyphs.owners)} owners, {glyphs.inferred} inferred, {glyphs.unknown} unknown, "
        f"{glyphs.driver} used by the driver, {glyphs.free} free"
    )
    return [
        styled("gpuledger top", "bold") + styled(" shows GPU usage by owner. It is read-only."),
        *(styled(f"{key.names:{key_width}}", KEY) + styled(key.about) for key in KEYS),
        (),
        *(styled(f"{column.title:10}", KEY) + styled(column.about) for column in COLUMNS),
        (),
        styled("memory    ", KEY) + styled(memory),
        (),
        styled("Omitted on purpose", "bold"),
        *(styled(f"{name:{key_width}}", KEY) + styled(text) for name, text in OMITTED),
    ]


def details(row: TableRow, glyphs: Glyphs, now: float = 0.0) -> list[Line]:
    """The sums of a row, then every field of the processes and containers in it. `now`: the time of the snapshot."""
    lines = [
        joined([styled(row.owner, "bold"), styled("" if row.active else "has exited", WARN)]),
        (),
        _field("memory", f"{gib(row.known_bytes, glyphs.none)} GiB listed by the driver"),
        *([_field("", f"{gib(row.inferred_bytes, glyphs.none)} GiB inferred")] if row.inferred_bytes else []),
        _field("SM share", f"{percent(row.sm, glyphs.none)} %"),
        _field("power", f"{amount(row.watts, glyphs.none)} W"),
        _field("energy", f"{amount(row.joules, glyphs.none, 1000)} kJ"),
    ]
    for method, joules in row.methods:
        quality = "measured" if method in MEASURED else "estimated"
        lines.append(_field("", f"{amount(joules, glyphs.none, 1000)} kJ {quality}: {method}"))
    if row.asked is not None:
        lines.append(_field("GPUs used / asked for", asked(row, glyphs.none)))
    if row.cpu is not None or row.host_bytes is not None:
        cpu, memory = percent(row.cpu, glyphs.none), gib(row.host_bytes, glyphs.none)
        lines.append(_field("host", f"{cpu} % CPU (100 is one core), {memory} GiB of memory"))
    if row.share_error is not None:
        lines.append(_field("", f"standard deviation of its share: {glyphs.error}{percent(row.share_error)} %"))
    for use in row.uses[:MAX_USES]:
        lines += [(), *_all_fields(use, glyphs, now)]
    if len(row.uses) > MAX_USES:
        lines += [(), styled(f"and {len(row.uses) - MAX_USES} more", "dim")]
    return lines


def _all_fields(use: Use, glyphs: Glyphs, now: float) -> Iterator[Line]:
    name = f"process {use.pid}" if isinstance(use, ProcessRow) else f"container {use.owner}"
    yield styled(f"{name} on GPU {use.gpu}", "bold")
    for field in fields(use):
        value = getattr(use, field.name)
        if value not in ("", None, {}, ()):
            yield _field(*_formatted(field.name, value, glyphs, now))


def _formatted(name: str, value: Any, glyphs: Glyphs, now: float) -> tuple[str, str]:
    """The name of a field without its unit, and the value with a unit for people."""
    if name == "start_time":
        age = f" ({span(max(0.0, now - value), glyphs.none)} ago)" if now else ""
        return "started", (local_time(value) or f"{value:g}") + age
    if isinstance(value, Mapping):
        return "energy", ", ".join(f"{amount(part, glyphs.none, 1000)} kJ {method}" for method, part in value.items())
    for unit, show in UNITS.items():
        if name.endswith(unit):
            return name.removesuffix(unit) or "power", show(value, glyphs)
    return name, str(value)


UNITS: dict[str, Callable[[float, Glyphs], str]] = {
    "_bytes": lambda value, glyphs: f"{gib(value, glyphs.none)} GiB",
    "_ratio": lambda value, glyphs: f"{percent(value, glyphs.none)} %",
    "_seconds": lambda value, _: span(value),
    "watts": lambda value, glyphs: f"{amount(value, glyphs.none)} W",
}
"""How values are shown, by the end of the field's name."""


def _field(name: str, text: str) -> Line:
    return styled(f"  {name:{NAME_WIDTH}} ", "dim") + styled(text)


def charts(gpus: Sequence[Gpu], history: History, screen: Screen, rows: int) -> list[Line]:
    """Utilization, memory and power of each GPU side by side, as high as there is room."""
    glyphs = screen.glyphs
    columns = max(1, (screen.columns - 4) // 3)
    height = min(MAX_CHART_ROWS, max(1, rows // max(1, len(gpus)) - 3))
    lines: list[Line] = []
    for gpu in gpus:
        points = list(history.points(gpu))
        used, size = gib(gpu.memory.used_bytes, glyphs.none), gib(gpu.memory.total_bytes, glyphs.none)
        titles = (f"busy {percent(gpu.utilization_ratio, glyphs.none)} %", f"memory {used} / {size} GiB",
                  f"power {power_text(gpu, glyphs)}")  # fmt: skip
        drawn = (
            chart([point.busy for point in points], columns, height, glyphs),
            chart([point.memory for point in points], columns, height, glyphs),
            chart([point.power for point in points], columns, height, glyphs),
        )
        age = styled(f"  last {span(history.seconds, glyphs.none)}", "dim")
        lines.append(styled(f"GPU {gpu.label}", "bold") + styled(f"  {gpu.name}") + age)
        lines.append(styled("  ".join(fitted(text, columns, glyphs.cut) for text in titles)))
        for level in zip(*drawn, strict=True):
            parts = zip(level, OWNER_STYLES[: len(level)], strict=True)
            lines.append(tuple((f"{text}  ", style) for text, style in parts))
        lines.append(())
    return [cropped(line, screen.columns) for line in lines] or [styled("no GPU", WARN)]


def once(snapshot: Snapshot, view: View, *, columns: int, colour: bool, utf8: bool) -> str:
    """The text of `top --once`, with ANSI colours if `colour`, and in ASCII unless `utf8`."""
    screen = Screen(columns=columns, glyphs=UNICODE if utf8 else ASCII, wrap=True)
    form = ansi if colour else plain
    text = "".join(f"{form(line).rstrip()}\n" for line in _once_lines(snapshot, view, screen))
    return text if utf8 else text.encode("ascii", "replace").decode()


def _once_lines(snapshot: Snapshot, view: View, screen: Screen) -> list[Line]:
    columns, glyphs = screen.columns, screen.glyphs
    gpus = [gpu for gpu in snapshot.gpus if view.choice.gpu in (None, gpu.gpu)]
    rows = view.rows(snapshot)
    fitting = fit_rows(rows, view, columns)
    texts = [
        joined(((cell,) for cell in cells(fitting, row, glyphs, "" if row.active else "dim")), " ") for row in rows
    ]
    return [
        *screen.lines(title(snapshot), 2),
        *problem_lines(snapshot, screen),
        *gpu_lines(snapshot, gpus, screen, 3 * MAX_CARDS if len(gpus) <= MAX_CARDS else len(gpus)),
        *server_lines(snapshot, screen, len(snapshot.servers)),
        *screen.lines(summary(rows, view, glyphs), 2),
        cropped(styled(" ".join(headings(fitting, view, glyphs)), HEAD), columns),
        *(cropped(text, columns) for text in texts),
    ]
