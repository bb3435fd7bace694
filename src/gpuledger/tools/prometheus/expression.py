"""PromQL expressions, built from their parts. The text of an expression is sent, and never parsed again. Pure.

Parentheses follow from the precedence of the operators.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from gpuledger.catalog.metrics import NAMES

OWN = 'job="gpuledger"'
"""Selects the series of exporters; the client replaces it with --prometheus.selector. A tenant whose target is scraped,
too, may expose the same names, but without `honor_labels` it cannot choose its `job`."""

LEVELS = (("or",), ("and", "unless"), ("==", "<", ">=", ">= bool"), ("+", "-"), ("*", "/"), ("^",))
"""Operators by precedence, lowest first. All are left-associative, except `^`, whose right operand is a number here."""
PRECEDENCE = {operator: level for level, operators in enumerate(LEVELS) for operator in operators}
SET_OPERATORS = ("and", "or", "unless")
ATOM = len(LEVELS)
"""Precedence of an expression that needs no parentheses."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A query, or a part of one."""

    text: str
    metric: str = ""
    """The first metric in it, for messages."""
    precedence: int = ATOM

    def __str__(self) -> str:
        return self.text

    def op(
        self, operator: str, other: Expression | float, on: tuple[str, ...] = (), copy: tuple[str, ...] = ()
    ) -> Expression:
        """A binary operation; with `on`, arithmetic is many-to-one and copies labels of the other side."""
        level = PRECEDENCE[operator]
        matching = f" on ({', '.join(on)})" if on else ""
        if on and operator not in SET_OPERATORS:
            matching += f" group_left ({', '.join(copy)})"
        right = other.nested(level + 1) if isinstance(other, Expression) else str(other)
        metric = self.metric or (other.metric if isinstance(other, Expression) else "")
        return Expression(f"{self.nested(level)} {operator}{matching} {right}", metric, level)

    def nested(self, level: int) -> str:
        """The text as an operand, in parentheses if its precedence is below `level`."""
        return self.text if self.precedence >= level else f"({self.text})"

    def call(self, function: str, *arguments: float | str) -> Expression:
        """A function of this expression and of numbers."""
        return Expression(f"{function}({', '.join(map(str, (self.text, *arguments)))})", self.metric)

    def aggregate(self, operator: str, by: Iterable[str] | None = None, *, without: tuple[str, ...] = ()) -> Expression:
        """An aggregation into one series, into one for each value of `by`, or over the labels `without`."""
        labels = f" by ({', '.join(dict.fromkeys(by))}) " if by is not None else ""
        labels = f" without ({', '.join(without)}) " if without else labels
        return Expression(f"{operator}{labels}({self.text})", self.metric)

    def max_by(self, *labels: str) -> Expression:
        """The maximum for each value of the labels."""
        return self.aggregate("max", labels)

    def sum_by(self, *labels: str) -> Expression:
        """The sum for each value of the labels."""
        return self.aggregate("sum", labels)

    def largest_by(self, *labels: str) -> Expression:
        """The series with the largest value for each value of the labels, with all its labels."""
        return Expression(f"topk by ({', '.join(labels)}) (1, {self.text})", self.metric)

    def relabelled(self, label: str, value: str, source: str = "", pattern: str = "") -> Expression:
        """The vector with a label set to a text, or to what `pattern` finds in the label `source`."""
        return Expression(f'label_replace({self.text}, "{label}", "{value}", "{source}", "{pattern}")', self.metric)

    def sampled(self, function: str, window: str, step: str, *parameters: float) -> Expression:
        """A function of the values at each step of a window: a subquery."""
        before = "".join(f"{parameter}, " for parameter in parameters)
        return Expression(f"{function}({before}({self.text})[{window}:{step}])", self.metric)


@dataclass(frozen=True, slots=True)
class Selector(Expression):
    """All series of one or several metrics whose labels match."""

    name: str = ""
    """Empty if there are several."""
    matchers: tuple[str, ...] = ()

    def where(self, label: str, comparison: str, value: str) -> Selector:
        """Only series with such a label: `=`, `!=` or `=~` a value."""
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        return _selector(self.metric, self.name, (*self.matchers, f'{label}{comparison}"{quoted}"'))

    def over(self, function: str, window: str, offset: str = "") -> Expression:
        """A function of all samples in a window, which ends now or `offset` ago."""
        ago = f" offset {offset}" if offset else ""
        return Expression(f"{function}({self.text}[{window}]{ago})", self.metric)

    def ago(self, offset: str) -> Expression:
        """The values at an earlier time."""
        return Expression(f"{self.text} offset {offset}", self.metric)


def series(*names: str) -> Selector:
    """All series of these metrics; of metrics of the catalog, only those of exporters."""
    own = (OWN,) if NAMES.issuperset(names) else ()
    if len(names) == 1:
        return _selector(names[0], names[0], own)
    return _selector(names[0], "", (f'__name__=~"{"|".join(names)}"', *own))


def _selector(metric: str, name: str, matchers: tuple[str, ...]) -> Selector:
    labels = f"{{{', '.join(matchers)}}}" if matchers else ""
    return Selector(f"{name}{labels}", metric, name=name, matchers=matchers)


def either(expressions: Iterable[Expression], label: str) -> Expression:
    """All series of several expressions; a label keeps them apart, because `or` drops series with equal labels."""
    return union(part.relabelled(label, str(n)) for n, part in enumerate(expressions))


def union(expressions: Iterable[Expression]) -> Expression:
    """All series of several expressions; of those with equal labels, the first."""
    return reduce(lambda before, part: before.op("or", part), expressions)
