"""Translates the metrics of a PromQL expression; its result keeps its unit.

No PromQL parser accepts the variables of a dashboard or the templates of an adapter, so the expression is split into
tokens. A selector with another unit is multiplied where it stands, a range vector behind the function that takes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuledger.catalog.dialects.dcgmnames import LABELS, PREFIX, RENAMES, SAME, Unit

STRING = r"""\\"(?:(?!\\").)*\\"|"(?:[^"\\]|\\.)*"|''(?:(?!'').)*''|'(?:[^'\\]|\\.)*'|`[^`]*`"""
"""Also as escaped in JSON, and in a quoted text of YAML."""
TOKEN = re.compile(
    rf"""(?P<space>\s+|\#[^\n]*) | (?P<string>{STRING}) | (?P<variable>\$\{{[^}}]*\}}|\$\w+)
    | (?P<braces>\{{(?:{STRING}|\$\{{[^}}]*\}}|[^{{}}"'`])*\}}) | (?P<range>\[[^\]]*\])
    | (?P<name><<\.Series>>|[a-zA-Z_:][\w:]*) | (?P<other>\d[\w.]*|.)""",
    re.VERBOSE | re.DOTALL,
)
GROUPINGS = ("by", "without", "on", "ignoring", "group_left", "group_right")
UNSCALED = frozenset({
    "count", "group", "absent", "timestamp", "label_values", "query_result", "count_over_time", "present_over_time",
    "absent_over_time", "changes", "resets",
})  # fmt: skip
"""Functions whose result does not depend on the unit."""
LINEAR = frozenset({
    "rate", "irate", "increase", "delta", "idelta", "deriv", "predict_linear", "holt_winters",
    "double_exponential_smoothing", "avg_over_time", "min_over_time", "max_over_time", "sum_over_time",
    "last_over_time", "first_over_time", "quantile_over_time", "stddev_over_time", "mad_over_time",
})  # fmt: skip
"""Functions of range vectors whose result has the unit of its samples."""
BACK = re.compile(r"\(\(((?:[^()]|\([^()]*\))+) (?:/ (\d+)\) \*|\* (\d+)\) /) (?:\2|\3)\)")
"""A selector or call that was divided and is multiplied by the same number, or the other way round."""
MATCHED_NAME = re.compile(rf"__name__\s*(?:=~|!~|!=|=)[^,}}]*{PREFIX}[^,}}]*")


class Translation(NamedTuple):
    """A name, and how to get the value in the unit of the name that it replaces."""

    name: str
    factor: str = ""
    """Such as ` * 100`; empty if the unit is the same."""


def translations(to: str) -> dict[str, Translation]:
    """The translation of each name: to `new` names, or back to `old` ones."""
    if to == "new":
        return {rename.old: Translation(rename.new, _factor(rename.unit)) for rename in RENAMES}
    return {rename.new: Translation(rename.old, _factor(_inverse(rename.unit))) for rename in RENAMES}


def renamed_labels(to: str) -> dict[str, str]:
    """The new name of each label, or the old one."""
    return LABELS if to == "new" else {new: old for old, new in LABELS.items()}


def _factor(unit: Unit) -> str:
    return f" * {unit.per}" if unit.per > 1 else f" / {unit.times}" if unit.times > 1 else ""


def _inverse(unit: Unit) -> Unit:
    return SAME if unit is SAME else Unit("", "", times=unit.per, per=unit.times)


@dataclass(slots=True)
class Call:
    """An open parenthesis, with the function in front of it."""

    function: str
    start: int
    """Number of the token at which the function begins."""
    is_labels: bool = False
    """Whether labels are inside, as in `by (pod)`."""
    factor: str = ""
    """Of the range vector that it takes."""


@dataclass(slots=True)
class Result:
    """The translated text, and what could not be translated in it."""

    text: str
    problems: list[str] = field(default_factory=list)


def translate(text: str, names: Mapping[str, Translation], labels: Mapping[str, str]) -> Result:
    """Translate an expression, as it is written in a file of any kind."""
    found = [(str(match.lastgroup), match[0]) for match in TOKEN.finditer(text)]
    kinds, words = [kind for kind, _ in found], [word for _, word in found]
    written, problems = list(words), []
    multiplied: list[tuple[int, int, str]] = []
    """First and last token, and the factor."""
    calls: list[Call] = []
    for i, (kind, word) in enumerate(found):
        if kind == "braces":
            problems += [f"{match[0]}: the name is matched" for match in MATCHED_NAME.finditer(word)]
            written[i] = re.sub(r"\w+(?=\s*(?:=~|!~|!=|=))", lambda match: labels.get(match[0], match[0]), word)
        elif word == "(":
            calls.append(_call(kinds, words, i, calls))
        elif word == ")" and calls:
            call = calls.pop()
            multiplied += [(call.start, i, call.factor)] if call.factor else []
        elif kind == "name" and calls and calls[-1].is_labels:
            written[i] = labels.get(word, word)
        elif kind == "name" and word in names:
            call = calls[-1] if calls else Call("", i)
            end, has_range = _selector_end(kinds, words, i)
            name, factor = names[word]
            if factor and has_range and call.function not in LINEAR | UNSCALED:
                problems.append(f"{word}: a range of values in {call.function or 'no function'} cannot be multiplied")
                continue
            written[i] = name
            if factor and call.function not in UNSCALED:
                call.factor = factor if has_range else call.factor
                multiplied += [] if has_range else [(i, end, factor)]
    for start, end, factor in multiplied:
        written[start] = f"({written[start]}"
        written[end] += f"{factor})"
    return Result(BACK.sub(r"\1", "".join(written)), problems)


def _call(kinds: Sequence[str], words: Sequence[str], i: int, calls: Sequence[Call]) -> Call:
    """The call that begins with the parenthesis `i`."""
    before = _before(kinds, i)
    if before >= 0 and words[before] in GROUPINGS:
        return Call("", i, is_labels=True)
    if before >= 0 and words[before] == ")":  # sum by (pod) (...)
        while before > 0 and words[before] != "(":
            before -= 1
        before = _before(kinds, _before(kinds, before))
    if before < 0 or kinds[before] != "name":
        return Call(calls[-1].function if calls and not calls[-1].factor else "", i)  # parentheses alone
    return Call(words[before].lower(), before)


def _before(kinds: Sequence[str], i: int) -> int:
    """Number of the token before `i` that is no space; -1 if there is none."""
    return next((j for j in range(i - 1, -1, -1) if kinds[j] != "space"), -1)


def _selector_end(kinds: Sequence[str], words: Sequence[str], i: int) -> tuple[int, bool]:
    """The last token of a selector with its modifiers, and whether it is a range vector."""
    end, has_range = i, False
    while True:
        j = next((j for j in range(end + 1, len(words)) if kinds[j] != "space"), len(words))
        if j == len(words):
            return end, has_range
        if kinds[j] == "braces" and end == i:
            end = j
        elif kinds[j] == "range" and ":" not in words[j]:
            end, has_range = j, True
        elif words[j] in ("offset", "@"):
            end = next((k for k in range(j + 1, len(words)) if kinds[k] != "space" and words[k] != "-"), j)
            end += 2 if list(words[end + 1 : end + 3]) == ["(", ")"] else 0  # @ end()
        else:
            return end, has_range
