"""`python tools/mutate.py [MODULE...]`: break the books in one small place at a time; name what no test notices.

Each mutant meets the tests of the books in a copy of the tree, the fast ones first. A survivor is a rule without a
test, or a change that makes no difference: the list is there to be read, not to be empty.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[1]
BOOKS = Path("src/gpuledger/ledger")
MODULES = ["interval", "split", "ledger", "rows", "retention", "time", "memory"]
FRESH = multiprocessing.get_context("forkserver")
TIMEOUT_S = 120
EXAMPLES = 20
"""Of each property test; the suite runs more."""
LARGE = 1000
"""A constant from here on is a choice, not an edge: it is doubled, not moved by 1."""

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Mod: ast.FloorDiv, ast.FloorDiv: ast.Div,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.And: ast.Or, ast.Or: ast.And,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Continue: ast.Break,
}  # fmt: skip
RENAMED = {"min": "max", "max": "min", "any": "all", "sorted": "list", "abs": "int"}
NOT_RUN = {"annotation", "returns", "decorator_list"}


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    module: str
    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        """As a compiler would point to it."""
        return f"{BOOKS / self.module}.py:{self.line}: {self.before}  ->  {self.after}"


def mutants(module: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a module."""
    tree = ast.parse(source)
    whole = ast.unparse(tree)
    for parent, name, place, node, line in list(_nodes(tree, 1)):
        for other in _others(node):
            _put(parent, name, place, other)
            mutated = ast.unparse(tree)
            _put(parent, name, place, node)
            pairs = zip(whole.splitlines(), mutated.splitlines(), strict=False)
            before, after = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
            yield Mutant(module, line, before.strip(), after.strip(), mutated)


def _nodes(node: ast.AST, line: int) -> Iterator[tuple[ast.AST, str, int | None, ast.AST, int]]:
    """All that is run, with where it hangs: no types, docstrings or error messages."""
    for name, value in ast.iter_fields(node):
        for place, child in enumerate(value if isinstance(value, list) else [value]):
            if name in NOT_RUN or not isinstance(child, ast.AST) or _only_said(node, child):
                continue
            at = getattr(child, "lineno", line)
            yield node, name, place if isinstance(value, list) else None, child, at
            yield from _nodes(child, at)


def _only_said(parent: ast.AST, node: ast.AST) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    is_type = (
        isinstance(parent, ast.Module)
        and isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Subscript | ast.Call)
    )
    return is_text or is_type or isinstance(node, ast.Raise | ast.Import | ast.ImportFrom)


def _put(parent: ast.AST, name: str, place: int | None, node: ast.AST) -> None:
    if place is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[place] = node


def _others(node: ast.AST) -> Iterator[ast.AST]:  # noqa: C901, PLR0912  # one case a kind of node
    if type(node) in SWAPPED:
        yield SWAPPED[type(node)]()
    match node:
        case ast.BinOp(left, ast.FloorDiv(), right):  # rounded up
            yield ast.UnaryOp(ast.USub(), ast.BinOp(ast.UnaryOp(ast.USub(), left), ast.FloorDiv(), right))
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() as value):
            yield from (ast.Constant(n) for n in ([value + 1, value - 1] if abs(value) < LARGE else [2 * value]))
        case ast.Constant(str() as value):
            yield ast.Constant(value + "?")
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.BoolOp(op, operands):
            yield from (ast.BoolOp(op, operands[:n] + operands[n + 1 :]) for n in range(len(operands)))
        case ast.Tuple(elements, ast.Load()) if len(elements) > 1:  # of a sort key, or of a dict's
            yield from (ast.Tuple(elements[:n] + elements[n + 1 :], ast.Load()) for n in range(len(elements)))
        case ast.Subscript(value, ast.Slice()):
            yield value
        case ast.Name(name, ast.Load()) if name in RENAMED:
            yield ast.Name(RENAMED[name], ast.Load())
        case ast.comprehension(target, iterable, [_, *_], is_async):
            yield ast.comprehension(target, iterable, [], is_async)
        case ast.If() | ast.IfExp():
            yield from (_with_test(node, ast.Constant(value)) for value in (True, False))
        case ast.AugAssign(target, _, value):
            yield ast.Assign([target], value, lineno=0)
            yield ast.Pass()
        case ast.Assign([ast.Attribute() | ast.Subscript()]) | ast.Expr(ast.Call()) | ast.Delete():
            yield ast.Pass()


def _with_test(node: ast.If | ast.IfExp, test: ast.expr) -> ast.AST:
    parts = dict(ast.iter_fields(node))
    return type(node)(**{**parts, "test": test})


def survives(mutant: Mutant, tree: Path) -> bool:
    """Whether the tests pass with it."""
    path = tree / BOOKS / f"{mutant.module}.py"
    source = path.read_text()
    path.write_text(mutant.source)
    try:
        return passes(tree)
    finally:
        path.write_text(source)


def passes(tree: Path, *, compiled: bool = False) -> bool:
    """Whether the tests of the books do, in a process that begins with pytest loaded; may leave them `compiled`."""
    child = FRESH.Process(target=_test, args=(tree, compiled))
    child.start()
    child.join(TIMEOUT_S)
    child.kill()
    child.join()
    return child.exitcode == 0


def _test(tree: Path, compiled: bool) -> None:  # the start of a process
    import pytest
    from hypothesis import HealthCheck, settings

    # A test that is only slow must not pass for one that has noticed something.
    settings.register_profile(
        "mutants", max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    settings.load_profile("mutants")
    sys.dont_write_bytecode = not compiled  # two mutants of one second and size would share theirs
    os.chdir(tree)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    tests = [test for test in (tree / "tests/ledger").glob("test_*.py") if test.name != "test_mutations.py"]
    tests.sort(key=lambda test: (test.name == "test_always_true.py", test))  # random sequences come last
    quiet = ["-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    os._exit(pytest.main(["-x", "--hypothesis-seed=0", *quiet, *map(str, tests)]))


def copied(folder: Path) -> Path:
    """A tree of our own, with short property tests."""
    for part in ("src", "tests", "docs", "bench"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for test in (folder / "tests/ledger").glob("*.py"):
        test.write_text(re.sub(r"max_examples=\d+", f"max_examples={EXAMPLES}", test.read_text()))
    if not passes(folder, compiled=True):
        raise SystemExit("the tests of the books fail as they are; there is nothing to learn from mutants")
    return folder


def main() -> int:
    """Print survivors as they are found, and how many there were of how many."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--every", type=int, default=1, help="try only every Nth mutant")
    given = parser.parse_args()
    found = [m for name in given.modules for m in mutants(name, (ROOT / BOOKS / f"{name}.py").read_text())]
    found = found[:: given.every]
    trees: SimpleQueue[Path] = SimpleQueue()
    FRESH.set_forkserver_preload(["pytest", "hypothesis", "hypothesis.strategies"])

    def tried(mutant: Mutant) -> bool:
        tree = trees.get()
        try:
            alive = survives(mutant, tree)
        finally:
            trees.put(tree)
        if alive:
            print(mutant, flush=True)
        return alive

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        for number in range(given.jobs):
            trees.put(copied(Path(folder) / str(number)))
        alive = sum(pool.map(tried, found))
    print(f"{alive} of {len(found)} survive")
    return 0


if __name__ == "__main__":
    sys.exit(main())
