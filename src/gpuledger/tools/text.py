"""Tables, numbers, units and times for people: the text of idle, job, report and top. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from math import floor, isclose, log10

from gpuledger.model.plaintext import plain

GIB = 1 << 30
JOULES_PER_KWH = 3.6e6
UNKNOWN = "-"
BOLD, FAINT, END = "\x1b[1m", "\x1b[2m", "\x1b[0m"
LONGEST_NAME = 60
DIGITS = 4
"""Significant digits of a total."""
MOST_DECIMALS = 6
NOISE = 1e-9
"""Rounding error of a sum of floats, relative to the sum."""


def aligned(lines: Sequence[Sequence[str]], right: Collection[str], styles: Sequence[str] = ()) -> Iterator[str]:
    """Lines in columns; those whose heading is in `right` are right-aligned. Each line may have an ANSI style."""
    texts = [[plain(text) for text in line] for line in lines]
    widths = [max(len(line[n]) for line in texts) for n in range(len(texts[0]))]
    for number, line in enumerate(texts):
        columns = zip(line, widths, texts[0], strict=True)
        text = "  ".join(cell.rjust(width) if head in right else cell.ljust(width) for cell, width, head in columns)
        yield styled(text.rstrip(), styles[number] if number < len(styles) else "")


def styled(text: str, style: str) -> str:
    """The text in an ANSI style."""
    return f"{style}{text}{END}" if style else text


def short_name(text: str) -> str:
    """A name without control characters, and without its end if it is long."""
    text = plain(text)
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"


def moment(unix_s: float) -> str:
    """A Unix time in UTC; unknown if the calendar does not have it."""
    try:
        return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%d %H:%MZ")
    except (OverflowError, ValueError, OSError):
        return UNKNOWN


# Numbers. `none` is the text of an unknown one.


def fixed(value: float | None, decimals: int) -> str:
    """A number with so many decimals."""
    return UNKNOWN if value is None else f"{value:.{decimals}f}"


def grouped(value: float | None, decimals: int) -> str:
    """A number with commas between thousands, and with two digits if it is too small for the decimals."""
    if value is None:
        return UNKNOWN
    return f"{value:.2g}" if 0 < value < 10 ** (1 - decimals) else f"{value:,.{decimals}f}"


def amount(value: float | None, none: str = UNKNOWN, unit: float = 1) -> str:
    """A value in `unit` with three significant digits."""
    if value is None:
        return none
    scaled = value / unit
    if scaled >= 1e6:
        return f"{scaled:.2g}"
    return f"{scaled:.2f}" if scaled < 9.995 else f"{scaled:.1f}" if scaled < 999.95 else f"{scaled:.0f}"


def gib(value: float | None, none: str = UNKNOWN) -> str:
    """Bytes in GiB."""
    return amount(value, none, GIB)


def percent(ratio: float | None, none: str = UNKNOWN) -> str:
    """A ratio in percent, without the sign."""
    return none if ratio is None else f"{ratio * 100:.0f}" if ratio < 1e4 else ">999999"


def whole(value: float | None, none: str = UNKNOWN) -> str:
    """A whole number."""
    return none if value is None else f"{value:.0f}" if value < 1e6 else f"{value:.1g}"


def span(seconds: float | None, none: str = UNKNOWN) -> str:
    """A duration."""
    if seconds is None:
        return none
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days >= 10_000:
        return ">9999d"
    if days >= 1:
        return f"{days:.0f}d{hours % 24:02.0f}h"
    return f"{hours:.0f}h{minutes % 60:02.0f}m" if hours else f"{minutes:.0f}m{seconds % 60:02.0f}s"


# Rounded columns whose rows still add up to the rounded total


def adds_up(values: Sequence[float | None], total: float | None) -> bool:
    """Whether the known values add up to the total."""
    return total is not None and isclose(sum([value or 0.0 for value in values]), total, rel_tol=NOISE, abs_tol=NOISE)


def decimals_of(total: float) -> int:
    """The decimals that show a total with four significant digits."""
    return min(MOST_DECIMALS, max(0, DIGITS - 1 - floor(log10(total)))) if total > 0 else DIGITS - 1


def rounded(values: Sequence[float | None], total: float | None, decimals: int) -> list[str]:
    """The values as text, then the total; `-` if unknown.

    If the values add up to the total, so do the rounded ones (largest remainder): values are rounded down, and those
    with the largest remainders get one unit of the last decimal more, until the rounded total is reached.
    """
    scale = 10**decimals
    units = [None if value is None else round(value * scale) for value in (*values, total)]
    if total is not None and adds_up(values, total):
        exact = {n: value * scale for n, value in enumerate(values) if value is not None}
        down = {n: floor(amount + NOISE) for n, amount in exact.items()}
        missing = max(0, round(total * scale) - sum(down.values()))
        by_remainder = sorted(exact, key=lambda n: down[n] - exact[n])
        for place, n in enumerate(by_remainder):
            units[n] = down[n] + (place < missing)
    return [UNKNOWN if unit is None else f"{unit / scale:,.{decimals}f}" for unit in units]


def sum_of_texts(texts: Sequence[str]) -> str:
    """The sum of rounded numbers, so that readers can check it."""
    known = [Decimal(text.replace(",", "")) for text in texts if text != UNKNOWN]
    return f"{sum(known):,}" if known else UNKNOWN
