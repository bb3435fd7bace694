"""The lines above the table: title, problems, and each GPU as a card or as one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from gpuledger.tools.text import gib, percent, span, whole
from gpuledger.tools.top.bars import History, bar, chart, memory_bar, ratio
from gpuledger.tools.top.rows import owner_styles
from gpuledger.tools.top.text import (
    BAD,
    GOOD,
    GUESS,
    WARN,
    Glyphs,
    Line,
    cropped,
    fitted,
    joined,
    local_time,
    styled,
    width,
    wrapped,
)
from gpuledger.web.snapshot.schema import Gpu, ServerRow, Snapshot

CHART_WIDTH = 120
"""Columns of the screen from which on a card contains a chart."""
CARD_WIDTH = 60
"""Columns of the screen from which on there are cards."""
NEAR_LIMIT = 0.95
"""Power above this fraction of the limit is highlighted: at the limit the GPU slows down."""
HARMLESS = frozenset({"gpu_idle", "applications_clocks_setting", "sync_boost", "display_clock_setting"})
"""Reasons for low clocks that are intended or cost no performance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Where the lines are drawn."""

    columns: int
    glyphs: Glyphs
    compact: bool = False
    """One line per GPU, whatever fits."""
    wrap: bool = False
    """Continue long lines instead of cropping them: on paper, where nothing scrolls."""

    def lines(self, line: Line, indent: int) -> list[Line]:
        """The line cropped, or all of it with the rest indented."""
        return wrapped(line, self.columns, indent) if self.wrap else [cropped(line, self.columns)]


def title(snapshot: Snapshot, *, source: str = "", interval: str = "") -> Line:
    """Version, host, time and driver."""
    driver, cuda = snapshot.driver.driver_version, snapshot.driver.cuda_version
    parts = (
        snapshot.node,
        snapshot.viewer and f"own view of {snapshot.viewer}",
        local_time(snapshot.time, "%H:%M:%S"),
        interval,
        source,
        driver and f"driver {driver}",
        cuda and f"CUDA {cuda}",
    )
    return joined([
        styled(f"gpuledger {snapshot.gpuledger}".rstrip(), "bold"),
        styled("RECORDING" if snapshot.recording else "", WARN),
        *(styled(part) for part in parts),
    ])  # fmt: skip


def problem_lines(snapshot: Snapshot, screen: Screen, lost: str = "", rows: int | None = None) -> list[Line]:
    """Each problem with its fix. If they need more than `rows` lines, only the first ones, and how many are left."""
    problems = [[styled(f"{lost}; showing the last snapshot", BAD)]] if lost else []
    for problem in snapshot.problems:
        if problem.level == "note":
            continue
        line = styled(f"{problem.about}: {problem.what}", BAD if problem.level == "problem" else WARN)
        fix = styled(f"fix: {problem.fix}" if problem.fix else "", "dim")
        if width(both := joined([line, fix])) <= screen.columns:
            problems.append([both])
        else:
            below = wrapped(joined([styled(" "), fix], " "), screen.columns, 7) if fix else []
            problems.append(wrapped(line, screen.columns, 2) + below)
    if snapshot.hidden_processes:
        count = snapshot.hidden_processes
        problems.append([styled(f"{count} process{'es have' if count != 1 else ' has'} no row", WARN)])
    shown = list(problems)
    while rows is not None and len(shown) > 1 and sum(map(len, shown)) + (shown != problems) > rows:
        shown.pop()
    more = [styled(f"and {len(problems) - len(shown)} more", WARN)] if shown != problems else []
    return [cropped(line, screen.columns) for line in (*chain.from_iterable(shown), *more)]


def gpu_lines(
    snapshot: Snapshot, gpus: Sequence[Gpu], screen: Screen, rows: int, history: History | None = None
) -> list[Line]:
    """The GPUs in at most `rows` lines: as cards if they fit, otherwise one line each."""
    if not gpus:
        return [styled("no GPU", WARN)] if snapshot.driver.up else []
    styles = owner_styles(snapshot)
    if len(gpus) * 3 <= rows and not screen.compact and screen.columns >= CARD_WIDTH:
        return [line for gpu in gpus for line in _card(snapshot, gpu, styles, screen, history)]
    fitting = gpus if len(gpus) <= rows else gpus[: max(1, rows - 1)]
    lines = [line for gpu in fitting for line in screen.lines(_one_line(snapshot, gpu, styles, screen), 4)]
    if len(fitting) < len(gpus):
        text = f"{len(gpus) - len(fitting)} more; choose a GPU with [ and ]"
        lines.append(cropped(styled(text, "dim"), screen.columns))
    return lines


def server_lines(snapshot: Snapshot, screen: Screen, rows: int) -> list[Line]:
    """The servers of language models, one line each, the busiest first; at most `rows` lines."""
    busiest = sorted(snapshot.servers, key=lambda server: (-(server.output_tokens_per_second or 0.0), server.server))
    lines = [cropped(_server_line(server, screen.glyphs), screen.columns) for server in busiest[:rows]]
    if len(busiest) > rows > 0:
        lines[-1] = styled(f"{len(busiest) - rows + 1} more servers of language models", "dim")
    return lines


def _server_line(server: ServerRow, glyphs: Glyphs) -> Line:
    name = styled(server.owner or server.server, "bold") + styled(f"  {', '.join(server.models)}")
    if not server.up:
        return joined([name, styled(server.reason or "is down", BAD)])
    if not server.owner:
        return joined([name, styled("is on no GPU", "dim")])
    output, prompt = (
        whole(rate, glyphs.none) for rate in (server.output_tokens_per_second, server.prompt_tokens_per_second)
    )
    parts = [
        f"{output} + {prompt} tokens/s",
        f"{_significant(server.joules_per_output_token, glyphs)} J/output token",
        f"{_significant(server.joules_per_token, glyphs)} J/token",
        f"parked {whole(server.parked_watts, glyphs.none)} W",
    ]
    if server.prefill_joules is not None and server.decode_joules is not None:
        phases = (("prefill", server.prefill_joules, server.prefill_error_joules),
                  ("decode", server.decode_joules, server.decode_error_joules))  # fmt: skip
        parts += [f"{phase} {_significant(joules, glyphs)}{glyphs.error}{_significant(error, glyphs)} J" for
                  phase, joules, error in phases]  # fmt: skip
    return joined([name, *(styled(part) for part in parts)])


def _significant(value: float | None, glyphs: Glyphs) -> str:
    return glyphs.none if value is None else f"{value:.3g}"


def _card(
    snapshot: Snapshot, gpu: Gpu, styles: dict[str, str], screen: Screen, history: History | None
) -> Iterable[Line]:
    """Three lines: name with alerts, memory, utilization with power."""
    glyphs, columns = screen.glyphs, screen.columns
    celsius = gpu.temperatures_celsius.get("gpu")
    heat = f"  {whole(celsius, glyphs.none)}{glyphs.degree}" if celsius is not None else ""
    name = joined([styled(f"GPU {gpu.label}", "bold") + styled(f"  {gpu.name}{heat}"), *_alerts(snapshot, gpu, glyphs)])
    if not gpu.up:
        return [*screen.lines(name, 2), *screen.lines(styled(f"  {gpu.reason or 'is down'}", BAD), 2), ()]
    used, size = gib(gpu.memory.used_bytes, glyphs.none), gib(gpu.memory.total_bytes, glyphs.none)
    of_system = " of the system" if gpu.memory.system_bytes is not None else ""
    numbers = joined([styled(f"{used} / {size} GiB{of_system}"), *_unlisted(gpu, glyphs)])
    memory = memory_bar(snapshot, gpu, styles, max(0, columns - 10 - width(numbers)), glyphs)
    spark = ""
    if history is not None and columns >= CHART_WIDTH:
        spark = "  " + chart([point.busy for point in history.points(gpu)], columns // 4, 1, glyphs)[0]
    load = fitted(f"{percent(gpu.utilization_ratio, glyphs.none)} %", 6, glyphs.cut, right=True)
    busy = (
        styled("  busy  ")
        + bar(gpu.utilization_ratio, columns // 2 - 16 - len(spark), glyphs, GOOD)
        + styled(spark, GOOD)
        + styled(f"{load}   power ")
    )
    share, watts = ratio(gpu.power_watts, gpu.power_limit_watts), "  " + power_text(gpu, glyphs)
    style = WARN if share is not None and share >= NEAR_LIMIT else GOOD
    power = bar(share, max(0, columns - width(busy) - len(watts)), glyphs, style)
    bars = (styled("  mem   ") + memory + styled("  ") + numbers, busy + power + styled(watts))
    return [*screen.lines(name, 2), *(cropped(line, columns) for line in bars)]


def _one_line(snapshot: Snapshot, gpu: Gpu, styles: dict[str, str], screen: Screen) -> Line:
    """Index, name, memory, utilization, power, temperature and alerts, with the numbers aligned."""
    glyphs, columns = screen.glyphs, screen.columns
    start = styled(fitted(gpu.label, 10 if gpu.mig_profile else 3, glyphs.cut), "bold")
    start += styled(fitted(gpu.name.removeprefix("NVIDIA "), 12, glyphs.cut) + " " if columns >= 90 else "")
    if not gpu.up:
        return start + styled(gpu.reason or "is down", BAD)
    used, size = gib(gpu.memory.used_bytes, glyphs.none), gib(gpu.memory.total_bytes, glyphs.none)
    numbers = "".join((
        fitted(f"{used}/{size}G", 13, glyphs.cut, right=True),
        fitted(f"{percent(gpu.utilization_ratio, glyphs.none)}%", 5, glyphs.cut, right=True),
        fitted(power_text(gpu, glyphs), 10, glyphs.cut, right=True),
        fitted(f"{whole(gpu.temperatures_celsius.get('gpu'), glyphs.none)}{glyphs.degree}", 5, glyphs.cut, right=True),
        " ",
    ))  # fmt: skip
    room = (columns - width(start) - len(numbers)) * 3 // 5
    memory = memory_bar(snapshot, gpu, styles, max(4, room), glyphs)
    alerts = joined([*_alerts(snapshot, gpu, glyphs, short=not screen.wrap), *_unlisted(gpu, glyphs)], " ")
    return start + memory + styled(numbers) + alerts


def power_text(gpu: Gpu, glyphs: Glyphs) -> str:
    """Power and its limit."""
    limit = "" if gpu.power_limit_watts is None else f"/{whole(gpu.power_limit_watts, glyphs.none)}"
    return f"{whole(gpu.power_watts, glyphs.none)}{limit} W"


def _alerts(snapshot: Snapshot, gpu: Gpu, glyphs: Glyphs, *, short: bool = False) -> list[Line]:
    """Errors, an allocation that is not used (its owner has a row), and what limits the clocks."""
    slowed = [name.replace("_", " ") for name in gpu.slowed_by if name not in HARMLESS]
    alerts = [styled(f"XID {', '.join(gpu.xids)}", BAD)] if gpu.xids else []
    if gpu.up and gpu.in_use is False and gpu.allocated_to:
        here = [row for row in snapshot.allocations if gpu.uuid in (row.uuid, row.gpu_uuid)]
        since = [row.idle_since for row in here if row.idle_since is not None]
        period = span(max(0.0, snapshot.time - min(since)), glyphs.none) if since else ""
        unused = f"allocated to {', '.join(gpu.allocated_to)}, not used" + (f" for {period}" if period else "")
        alerts.append(styled(f"unused {period}".rstrip() if short else unused, WARN))
    return [*alerts, styled(f"slowed: {', '.join(slowed)}", WARN)] if slowed else alerts


def _unlisted(gpu: Gpu, glyphs: Glyphs) -> list[Line]:
    """Memory held by no listed process."""
    inferred = gpu.memory.inferred_bytes or 0
    unknown = max(0, (gpu.memory.unknown_bytes or 0) - inferred)
    return [
        styled(f"~{gib(inferred, glyphs.none)} inferred" if inferred else "", GUESS),
        styled(f"{gib(unknown, glyphs.none)} unknown" if unknown else "", BAD),
    ]
