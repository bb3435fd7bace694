"""PromQL expressions as text: parentheses only where the precedence of operators needs them."""

from __future__ import annotations

import pytest

from gpuledger.tools.prometheus.expression import Expression, either, series

A, B = series("a"), series("b")

CASES = {
    'a{x="1", y=~"2|3"}': A.where("x", "=", "1").where("y", "=~", "2|3"),
    '{__name__=~"a|b", x!=""}': series("a", "b").where("x", "!=", ""),
    r'a{x=~"1\\.2\"3"}': A.where("x", "=~", r'1\.2"3'),
    "max_over_time(a[5m])": A.over("max_over_time", "5m"),
    "last_over_time(a[1h] offset 5m)": A.over("last_over_time", "1h", "5m"),
    "a offset 5m": A.ago("5m"),
    "clamp_min(a - b, 0)": A.op("-", B).call("clamp_min", 0),
    "max by (x, y) (a)": A.max_by("x", "y", "x"),
    "count(a)": A.aggregate("count"),
    "max without (job) (a)": A.aggregate("max", without=("job",)),
    "topk by (x) (1, a)": A.largest_by("x"),
    "a - on (x) group_left () b": A.op("-", B, ("x",)),
    "a * on (x) group_left (y) b": A.op("*", B, ("x",), copy=("y",)),
    "a unless on (x) b": A.op("unless", B, ("x",)),
    "(a - b) * 2": A.op("-", B).op("*", 2),
    "a * 2 - b": A.op("*", 2).op("-", B),
    "a - b - b": A.op("-", B).op("-", B),
    "a - (b - b)": A.op("-", B.op("-", B)),
    "(a or b) and b": A.op("or", B).op("and", B),
    "a and b or b": A.op("and", B).op("or", B),
    "a < b unless b": A.op("<", B).op("unless", B),
    "(a < b) + 0": A.op("<", B).op("+", 0),
    "max_over_time((a or b)[1h:5s])": A.op("or", B).sampled("max_over_time", "1h", "5s"),
    "quantile_over_time(0.95, (a)[1h:5s])": A.sampled("quantile_over_time", "1h", "5s", 0.95),
    'label_replace(a, "x", "$1", "y", "(.*)")': A.relabelled("x", "$1", "y", "(.*)"),
    'label_replace(a, "n", "0", "", "") or label_replace(b, "n", "1", "", "")': either([A, B], "n"),
}


@pytest.mark.parametrize("text", CASES)
def test_text(text: str) -> None:
    """Each way to build an expression."""
    assert str(CASES[text]) == text


def test_the_first_metric_names_an_expression() -> None:
    """For messages about its values."""
    expression = A.where("x", "=", "1").max_by("x").op("*", B, ("x",)).relabelled("y", "1").sum_by("y")

    assert expression.metric == "a"
    assert Expression("", "").op("+", B).metric == "b"
