"""Translates the metrics of a PromQL expression; its result keeps its unit.

No PromQL parser accepts the variables of a dashboard or the templates of an adapter, so the expression is split into
tokens. A selector with another unit is multiplied where it stands, a range vector behind the function that takes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuledger.catalog.dialects.dcgmnames import KEPT, LABELS, PREFIX, RENAMES, SAME, Unit

STRING = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`"""
TOKEN = re.compile(
    rf"""(?P<space>\s+|\#[^\n]*) | (?P<string>{STRING}) | (?P<variable>\$\{{[^}}]*\}}|\$\w+)
    | (?P<braces>\{{(?:{STRING}|\$\{{[^}}]*\}}|[^{{}}"'`])*\}}) | (?P<range>\[[^\]]*\])
    | (?P<name><<\.Series>>|[a-zA-Z_:][\w:]*) | (?P<other>\d[\w.]*|.)""",
    re.VERBOSE | re.DOTALL,
)
GROUPINGS = ("by", "without", "on", "ignoring", "group_left", "group_right")
OPERATORS = ("and", "or", "unless", "atan2", "bool", "offset")
UNSCALED = frozenset({
    "count", "group", "absent", "timestamp", "label_values", "count_over_time", "present_over_time",
    "absent_over_time", "changes", "resets",
})  # fmt: skip
"""Functions whose result does not depend on the unit of a selector that is their argument."""
LINEAR = frozenset({
    "rate", "irate", "increase", "delta", "idelta", "deriv", "predict_linear", "holt_winters",
    "double_exponential_smoothing", "avg_over_time", "min_over_time", "max_over_time", "sum_over_time",
    "last_over_time", "first_over_time", "quantile_over_time", "stddev_over_time", "mad_over_time",
})  # fmt: skip
"""Functions of range vectors whose result has the unit of its samples."""
LABEL = re.compile(r"\w+(?=\s*(?:=~|!~|!=|=))")


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
    """Empty for parentheses alone."""
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


def translate(text: str, names: Mapping[str, Translation], labels: Mapping[str, str], plain: str = "") -> Result:
    """Translate an expression as it is written in a file; `plain` is the same text, as long, without escapes."""
    return _Expression(text, plain or text, names, labels).translated()


def untranslated(
    text: str, names: Mapping[str, Translation], labels: Mapping[str, str], prefix: str = PREFIX
) -> list[str]:
    """The names of dcgm-exporter in a text that the other version does not have, or may not have."""
    known = {*(name for name, _ in names.values()), *labels.values(), *KEPT}
    found = re.findall(rf"(?<![\w:]){prefix}\w*(?![\w:])", text)
    return [name for name in dict.fromkeys(found) if name not in known]


class _Expression:
    """The tokens of an expression."""

    def __init__(self, text: str, plain: str, names: Mapping[str, Translation], labels: Mapping[str, str]) -> None:
        found = list(TOKEN.finditer(plain))
        self._kinds, self._words = [str(match.lastgroup) for match in found], [match[0] for match in found]
        self._names, self._labels = names, labels
        self._written = [text[match.start() : match.end()] for match in found]
        self._multiplied: list[tuple[int, int, str]] = []
        """First and last token, and the factor."""
        self._alone: set[int] = set()
        """Parentheses that belong to no function."""
        self._calls: list[Call] = []
        self._problems: list[str] = []

    def translated(self) -> Result:
        """The translated text."""
        for i, (kind, word) in enumerate(zip(self._kinds, self._words, strict=True)):
            if kind == "name":
                self._translate_name(i, word)
            elif kind == "braces":
                self._translate_braces(i, word)
            elif kind == "string":
                self._report(word, "is in a string")
            elif word == "(":
                self._calls.append(self._call(i))
            elif word == ")" and self._calls:
                call = self._calls.pop()
                self._multiplied += [(call.start, i, call.factor)] if call.factor else []
        for start, end, factor in self._multiplied:
            self._multiply(start, end, factor)
        return Result("".join(self._written), self._problems)

    def _translate_name(self, i: int, word: str) -> None:
        around = (*self._kinds[max(0, i - 1) : i], *self._kinds[i + 1 : i + 2])
        if self._calls and self._calls[-1].is_labels:
            self._written[i] = self._labels.get(word, word)
        elif word in self._names and "variable" not in around:
            self._translate_selector(i, word)
        else:
            self._report(word, "no other name is known")

    def _translate_selector(self, i: int, word: str) -> None:
        name, factor = self._names[word]
        end, has_range = self._selector_end(i)
        call = next((call for call in reversed(self._calls) if call.function), Call("", i))
        if factor and has_range and call.function not in LINEAR | UNSCALED:
            function = call.function or "no function"
            self._problems.append(f"{word}: a range of values in {function} cannot be multiplied")
            return
        self._written[i] = name
        is_scaled = call.function not in UNSCALED
        if has_range:
            call.factor = factor if is_scaled else ""
        elif factor and (is_scaled or call is not self._calls[-1] or not self._is_whole(i, end)):
            self._multiplied.append((i, end, factor))

    def _translate_braces(self, i: int, word: str) -> None:
        written = self._written[i]
        for match in reversed(list(LABEL.finditer(word))):
            written = written[: match.start()] + self._labels.get(match[0], match[0]) + written[match.end() :]
        self._written[i] = written
        self._report(LABEL.sub("", word), "the name is matched", "DCGM" if "__name__" in word else PREFIX)

    def _report(self, text: str, reason: str, prefix: str = PREFIX) -> None:
        names = untranslated(text, self._names, self._labels, prefix)
        self._problems += [f"{name}: {reason}" for name in names]

    def _multiply(self, start: int, end: int, factor: str) -> None:
        """Multiply these tokens, or remove the opposite of `factor` and the parentheses that hold only both."""
        first, operator = self._before(start), self._after(end)
        number = self._after(operator)
        last = self._after(number)
        inverse = factor.translate(str.maketrans("*/", "/*")).split()
        has_comment = any("#" in word for word in self._words[end + 1 : last])
        if first in self._alone and self._text(operator, number, last) == [*inverse, ")"] and not has_comment:
            for i in (*range(first, start), *range(end + 1, last + 1)):
                self._written[i] = ""
        else:
            self._written[start] = f"({self._written[start]}"
            self._written[end] += f"{factor})"

    def _call(self, i: int) -> Call:
        """The call that begins with the parenthesis `i`."""
        before = self._before(i)
        if before >= 0 and self._words[before].lower() in GROUPINGS:
            return Call("", i, is_labels=True)
        if before >= 0 and self._words[before] == ")":  # sum by (pod) (...)
            while before > 0 and self._words[before] != "(":
                before -= 1
            before = self._before(self._before(before))
        if before < 0 or self._kinds[before] != "name" or self._words[before].lower() in OPERATORS:
            self._alone.add(i)
            return Call("", i)
        return Call(self._words[before].lower(), before)

    def _is_whole(self, start: int, end: int) -> bool:
        """Whether these tokens are all between parentheses or commas."""
        before, after = self._text(self._before(start)), self._text(self._after(end))
        return before in (["("], [","]) and after in ([")"], [","])

    def _selector_end(self, i: int) -> tuple[int, bool]:
        """The last token of a selector with its modifiers, and whether it is a range vector."""
        end, has_range = i, False
        while True:
            j = self._after(end)
            kind, word = (self._kinds[j], self._words[j]) if j < len(self._words) else ("", "")
            if kind == "braces" and end == i:
                end = j
            elif kind == "range" and ":" not in re.sub(r"\$\{[^}]*\}", "", word):
                end, has_range = j, True
            elif word.lower() in ("offset", "@"):
                value = self._after(j)
                end = min(self._after(value) if self._text(value) == ["-"] else value, len(self._words) - 1)
                end += 2 if self._words[end + 1 : end + 3] == ["(", ")"] else 0  # @ end()
            else:
                return end, has_range

    def _text(self, *places: int) -> list[str]:
        return [self._words[i] for i in places if 0 <= i < len(self._words)]

    def _before(self, i: int) -> int:
        """Number of the token before `i` that is no space; -1 if there is none."""
        return next((j for j in range(i - 1, -1, -1) if self._kinds[j] != "space"), -1)

    def _after(self, i: int) -> int:
        """Number of the token after `i` that is no space; that of the end if there is none."""
        return next((j for j in range(i + 1, len(self._kinds)) if self._kinds[j] != "space"), len(self._kinds))
