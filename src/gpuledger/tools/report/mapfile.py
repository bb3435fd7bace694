"""The file of `--map`: which department each user, account or namespace belongs to."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuledger.errors import ConfigError
from gpuledger.tools.report.report import COLUMNS

LARGEST_FILE = 10_000_000
"""Bytes."""
LONGEST_NAME = 256
RESERVED = frozenset(("from", "to", "kind", "note", *(column.key for column in COLUMNS)))
"""Names of the other columns in CSV and JSON."""
FIX = "write one group and its department per line, such as ada,physics"


@dataclass(frozen=True, slots=True)
class Departments:
    """The department of each group, and the heading of the column with departments."""

    head: str
    by_group: dict[str, str]


def read(path: str, grouping: str) -> Departments:
    """Read the file; its first line names the grouping of the report and a heading. Raises ConfigError."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"--map: cannot read {path}: {error.strerror}", "check the path") from None
    if len(data) > LARGEST_FILE:
        raise ConfigError(f"--map: {path} is larger than {LARGEST_FILE // 1_000_000} MB", FIX)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"--map: {path}, line {line}: is not UTF-8", "save the file as UTF-8") from None
    return parse(text.splitlines(), path, grouping)


def file_names(departments: Iterable[str], suffix: str) -> dict[str, str]:
    """The name of the file of each department. Raises ConfigError if two are the same."""
    names = {name: re.sub(r"[^\w .()+-]", "_", name).lstrip(".") + suffix for name in departments}
    by_file = {file.casefold(): name for name, file in names.items()}
    for name, file in names.items():
        if by_file[file.casefold()] != name or len(file.encode()) > LONGEST_NAME - 1:
            raise ConfigError(f"--map: {name!r} has no file name of its own: {file!r}", "rename the department")
    return names


def parse(lines: Iterable[str], path: str, grouping: str) -> Departments:
    """The departments in these lines. Raises ConfigError with the number of the line."""
    records = _records(lines, path)
    first, header = next(records, (1, ("", "")))
    if header[0].lower() != grouping:
        what = f"--map: {path}, line {first}: the first column is {header[0]!r}, but the report is by {grouping}"
        raise ConfigError(what, f"start the file with a line such as {grouping},department")
    if header[1] in RESERVED:
        fix = f"write it as {grouping},department"
        raise ConfigError(f"--map: {path}, line {first}: {header[1]!r} is the name of another column", fix)
    by_group: dict[str, str] = {}
    for line, (group, department) in records:
        if group in by_group:
            raise ConfigError(f"--map: {path}, line {line}: {group!r} is there twice", "remove one of the lines")
        by_group[group] = department
    return Departments(header[1], by_group)


def _records(lines: Iterable[str], path: str) -> Iterator[tuple[int, tuple[str, str]]]:
    """Each line with its number, without empty lines and comments."""
    reader = csv.reader(lines, strict=True)
    try:
        for record in reader:
            cells = [cell.strip() for cell in record]
            if not any(cells) or cells[0].startswith("#"):
                continue
            if len(cells) != 2 or not all(cell and cell.isprintable() and len(cell) <= LONGEST_NAME for cell in cells):
                what = f"--map: {path}, line {reader.line_num}: needs two columns with printable names"
                raise ConfigError(what, FIX)
            yield reader.line_num, (cells[0], cells[1])
    except csv.Error as error:
        raise ConfigError(f"--map: {path}, line {reader.line_num}: {error}", FIX) from None
