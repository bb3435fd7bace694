"""Imports go one way: read, resolve, book, show."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "gpuledger"

# What each part may know of the others; all of them may know the model and the small modules at the top.
ALLOWED = {
    "net": {"net"},
    "sources": {"sources", "net"},
    "owners": {"owners", "net"},
    "books": {"books"},
    "catalog": {"catalog", "books"},
    "view": {"view"},
    "export": {"export", "catalog", "view", "net"},
    "upstream": {"upstream", "export", "net"},
    "tokens": {"tokens", "books", "upstream", "net"},
    "doctor": {"doctor", "sources", "owners", "export", "upstream", "config", "options", "view", "net"},
    "otlp": {"otlp", "catalog", "export", "config", "options", "net"},
    "fleet": {"fleet", "catalog", "export", "config", "options", "net"},
    "idle": {"idle", "view", "fleet", "report", "top", "config", "options", "net"},
    "job": {"job", "books", "idle", "view", "fleet", "report", "top", "config", "options", "net"},
    "report": {"report", "fleet", "config", "options", "tokens"},
    "top": {"top", "view", "fleet", "config", "options", "net"},
    "cli": {
        "cli",
        "doctor",
        "sources",
        "owners",
        "books",
        "catalog",
        "export",
        "upstream",
        "tokens",
        "fleet",
        "report",
        "otlp",
        "idle",
        "job",
        "top",
        "loop",
        "config",
        "options",
        "view",
        "net",
    },
}


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpuledger."):
            found.add((node.module or "").split(".")[1])
    return found


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_go_one_way(part: str) -> None:
    """Export never sees a source, a book never sees a file, and so on."""
    parts = set(ALLOWED) | {"loop", "config", "options"}
    for path in (SOURCE / part).rglob("*.py"):
        forbidden = (_imports(path) & parts) - ALLOWED[part]
        assert not forbidden, f"{path.name} imports {forbidden}"


def test_modules_are_small() -> None:
    """Past 400 lines it is two modules."""
    sizes = {path.name: len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}

    assert {name: size for name, size in sizes.items() if size > 400} == {}


def test_replaying_needs_no_driver_binding() -> None:
    """The demo must run where nothing of NVIDIA is installed, and without the memory of what it does not use."""
    code = (
        "import sys; import gpuledger.cli.demo, gpuledger.cli.serve, gpuledger.sources.replay;"
        "unwanted = ('pynvml', 'yaml', 'http.server', 'http.client', 'ssl', 'asyncio', 'email', 'urllib.request',"
        "'textual', 'rich');"
        "print([name for name in unwanted if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_only_the_live_view_needs_textual() -> None:
    """It is an optional extra: no other module may need it, nor what `top --once` is made of."""
    code = (
        "import sys; import gpuledger.cli.top, gpuledger.cli.serve, gpuledger.cli.fleet, gpuledger.cli.doctor;"
        "print([name for name in ('textual', 'rich', 'asyncio') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_no_test_imports_another_test() -> None:
    """Helpers are in modules of their own, so that a test can be read, moved and deleted alone."""
    imports = re.compile(r"^(?:from|import) tests[\w.]*(?:\.| import )test_", re.MULTILINE)
    importing = [path.name for path in Path(__file__).parent.rglob("*.py") if imports.search(path.read_text())]

    assert importing == ["test_mutations.py"]  # it runs the tests of the books against changed rules
