"""What stands above the table: the host, what is wrong, and each GPU as a card or as one line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.top.amounts import gib, percent, whole
from gpuledger.top.bars import bar, chart, memory_bar
from gpuledger.top.history import History, ratio
from gpuledger.top.line import Glyphs, Line, Piece, cropped, fitted, joined, width
from gpuledger.top.seen import Gpu, Seen

WIDE = 120
"""Columns from which on a card has room for a chart."""
HARMLESS = frozenset({"gpu_idle", "applications_clocks_setting", "sync_boost", "display_clock_setting"})
"""Reasons for a low clock that cost nobody anything, or that somebody wanted."""


@dataclass(frozen=True, slots=True)
class Screen:
    """What is drawn on."""

    columns: int
    glyphs: Glyphs
    compact: bool = False


def title(seen: Seen, screen: Screen, *, where: str = "", every: str = "") -> Line:
    """Host, driver, time."""
    driver = f"driver {seen.driver_version}" if seen.driver_version else ""
    cuda = f"CUDA {seen.cuda_version}" if seen.cuda_version else ""
    parts: list[Line] = [(Piece(f"gpuledger {seen.version}".rstrip(), "strong"),)]
    parts += [(Piece("RECORDING", "warn"),)] if seen.recording else []
    parts += [(Piece(text),) for text in (seen.node, _clock(seen.time), every, where, driver, cuda) if text]
    return cropped(joined(parts), screen.columns)


def _clock(seconds: float | None) -> str:
    try:
        return time.strftime("%H:%M:%S", time.localtime(seconds)) if seconds is not None else ""
    except (OverflowError, ValueError, OSError):  # a time that no calendar has
        return ""


def problems(seen: Seen, screen: Screen, lost: str = "", *, fixes: bool = False) -> list[Line]:
    """What is wrong, a line each; none when all is well. With `fixes`, what to do about it is in a line below."""
    found: list[Line] = []
    if lost:
        found.append((Piece(f"{lost}; what was last known is shown", "bad"),))
    for problem in seen.problems:
        found.append((Piece(f"{problem.about}: {problem.what}", "bad" if problem.is_bad else "warn"),))
        if problem.fix:
            fix = Piece(f"fix: {problem.fix}", "dim")
            found[-1:] = [found[-1], (Piece("  "), fix)] if fixes else [(*found[-1], Piece("  "), fix)]
    if seen.hidden:
        text = f"{seen.hidden} process{'es are' if seen.hidden != 1 else ' is'} not shown one by one"
        found.append((Piece(text, "warn"),))
    return [cropped(line, screen.columns) for line in found]


def gpu_lines(seen: Seen, gpus: Sequence[Gpu], screen: Screen, rows: int, history: History | None = None) -> list[Line]:
    """All of these GPUs in that many rows at most: as cards where they fit, else a line each."""
    if not gpus:
        return [(Piece("no GPU", "warn"),)] if seen.driver_up else []
    lines: list[Line] = []
    if len(gpus) * 3 <= rows and not screen.compact and screen.columns >= 60:
        for gpu in gpus:
            lines += card(seen, gpu, screen, history)
        return lines
    shown = gpus if len(gpus) <= rows else gpus[: max(1, rows - 1)]
    lines += [row(seen, gpu, screen) for gpu in shown]
    if len(shown) < len(gpus):
        text = f"{len(gpus) - len(shown)} more GPUs and instances; [ and ] choose one"
        lines.append(cropped((Piece(text, "dim"),), screen.columns))
    return lines


def card(seen: Seen, gpu: Gpu, screen: Screen, history: History | None = None) -> list[Line]:
    """Three lines."""
    glyphs, columns = screen.glyphs, screen.columns
    heat = f"  {whole(gpu.celsius, glyphs)}{glyphs.degree}" if gpu.celsius is not None else ""
    name = joined([(Piece(f"GPU {gpu.label}", "strong"), Piece(f"  {gpu.name}{heat}")), *_wrong(gpu)])
    if not gpu.up:
        return [cropped(line, columns) for line in (name, (Piece(f"  {gpu.reason or 'does not answer'}", "bad"),), ())]
    numbers = joined([(Piece(f"{gib(gpu.used_bytes, glyphs)} / {gib(gpu.total_bytes, glyphs)} GiB"),),
                      *_apart(gpu, glyphs)])  # fmt: skip
    memory = (Piece("  mem   "), *memory_bar(seen, gpu, max(0, columns - 10 - width(numbers)), glyphs), Piece("  "))
    busy_room = columns // 2 - 16
    spark = ""
    if history is not None and columns >= WIDE:
        spark = "  " + chart([point.busy for point in history.of(gpu)], columns // 4, 1, glyphs)[0]
    load = fitted(f"{percent(gpu.busy, glyphs)} %", 6, glyphs.cut, right=True)
    busy = (
        Piece("  busy  "), *bar(gpu.busy, busy_room - len(spark), glyphs, "good"), Piece(spark, "good"),
        Piece(load + "   power "),
    )  # fmt: skip
    used, watts = ratio(gpu.power_watts, gpu.limit_watts), "  " + power_of(gpu, glyphs)
    power = bar(used, max(0, columns - width(busy) - len(watts)), glyphs, _near(used))
    return [cropped(line, columns) for line in (name, memory + numbers, (*busy, *power, Piece(watts)))]


def row(seen: Seen, gpu: Gpu, screen: Screen) -> Line:
    """One line: number, name, memory, load, power, heat; then what is wrong. Numbers are below each other."""
    glyphs, columns = screen.glyphs, screen.columns
    head = Piece(fitted(gpu.label, 10 if gpu.profile else 3, glyphs.cut), "strong")
    name = fitted(gpu.name.removeprefix("NVIDIA "), 12, glyphs.cut) + " " if columns >= 90 else ""
    if not gpu.up:
        return cropped((head, Piece(name), Piece(gpu.reason or "does not answer", "bad")), columns)
    size = fitted(f"{gib(gpu.used_bytes, glyphs)}/{gib(gpu.total_bytes, glyphs)}G", 13, glyphs.cut, right=True)
    load = fitted(f"{percent(gpu.busy, glyphs)}%", 5, glyphs.cut, right=True)
    power = fitted(power_of(gpu, glyphs), 10, glyphs.cut, right=True)
    heat = fitted(f"{whole(gpu.celsius, glyphs)}{glyphs.degree}", 5, glyphs.cut, right=True)
    numbers = (Piece(size), Piece(load), Piece(power), Piece(heat + " "))
    room = (columns - width((head, Piece(name), *numbers))) * 3 // 5
    notes = joined([*_wrong(gpu), *_apart(gpu, glyphs)], " ")
    return cropped((head, Piece(name), *memory_bar(seen, gpu, max(4, room), glyphs), *numbers, *notes), columns)


def power_of(gpu: Gpu, glyphs: Glyphs) -> str:
    """Power against its limit."""
    limit = "" if gpu.limit_watts is None else f"/{whole(gpu.limit_watts, glyphs)}"
    return f"{whole(gpu.power_watts, glyphs)}{limit} W"


def _wrong(gpu: Gpu) -> list[Line]:
    """Errors, and what slows it down."""
    slowed = [name.replace("_", " ") for name in gpu.slowed_by if name not in HARMLESS]
    parts: list[Line] = [(Piece(f"XID {', '.join(gpu.xids)}", "bad"),)] if gpu.xids else []
    return [*parts, (Piece(f"slowed: {', '.join(slowed)}", "warn"),)] if slowed else parts


def _apart(gpu: Gpu, glyphs: Glyphs) -> list[Line]:
    """Memory that nobody is listed with."""
    unknown = max(0.0, (gpu.unknown_bytes or 0) - (gpu.inferred_bytes or 0))
    parts: list[Line] = []
    if gpu.inferred_bytes:
        parts.append((Piece(f"~{gib(gpu.inferred_bytes, glyphs)} inferred", "guess"),))
    if unknown:
        parts.append((Piece(f"{gib(unknown, glyphs)} unknown", "bad"),))
    return parts


def _near(ratio: float | None) -> str:
    """The style of power, which at its limit slows a GPU down."""
    return "good" if ratio is None or ratio < 0.95 else "warn"
