"""Names of metrics come from the catalog: no other module has one in a text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from gpuledger.catalog import CATALOG, metrics
from gpuledger.catalog.others import DYNAMO_REQUESTS, ENGINES

SOURCE = Path(__file__).parents[1] / "src" / "gpuledger"
MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if SOURCE / "catalog" not in path.parents]
NAMES = {
    *(family.name for family in CATALOG),
    *(name for engine in ENGINES for name in (engine.prompt, engine.output)),
    DYNAMO_REQUESTS,
}
MENTION = re.compile(rf"(?<![\w:])(?:{'|'.join(map(re.escape, sorted(NAMES, key=len, reverse=True)))})(?!\w)|DCGM_FI_")
ALLOWED = {"cli/demo.py": "the greeting of the demo shows a query to try"}
"""Modules with a text that may name a metric, and why."""


def texts(tree: ast.AST) -> Iterator[str]:
    """All texts in the code, without docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_no_metric_is_named_outside_of_the_catalog() -> None:
    """A renamed metric is renamed in one place."""
    found = {
        path.relative_to(SOURCE).as_posix(): mentions
        for path in MODULES
        if (mentions := [text for text in texts(ast.parse(path.read_text())) if MENTION.search(text)])
    }

    assert {path: mentions for path, mentions in found.items() if path not in ALLOWED} == {}
    assert set(ALLOWED) <= set(found)


def test_every_name_in_the_code_is_one_of_the_catalog() -> None:
    """`metrics.NAME` is looked up when the code runs; here all of them are."""
    trees = [
        ast.parse(text)
        for text in map(Path.read_text, MODULES)
        if re.search(r"gpuledger\.catalog import .*\bmetrics\b", text)
    ]
    named = [
        node.attr
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "metrics"
    ]

    assert len(named) > 30
    assert [name for name in named if getattr(metrics, name, "") != name] == []
