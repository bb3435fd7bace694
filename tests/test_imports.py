"""Imports go one way: read, resolve, book, show."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "gpuledger"


@dataclass(frozen=True)
class Room:
    """A part of the package: how many lines it should have, and which other rooms it may import."""

    guide: int
    imports: frozenset[str] = frozenset()


def _room(guide: int, imports: str = "") -> Room:
    return Room(guide, frozenset(imports.split()))


ROOMS = {
    "errors.py": _room(110, "model"),
    "model": _room(1250),
    "runtime": _room(450, "model"),
    "net": _room(990, "errors.py model runtime"),
    "config": _room(770, "errors.py net"),
    "driver": _room(2300, "errors.py model runtime"),
    "recording": _room(470, "errors.py model storage"),
    "owners/kernel": _room(1300, "model runtime"),
    "owners/providers": _room(1570, "errors.py model net runtime owners owners/kernel"),
    "owners": _room(850, "model runtime owners/kernel"),
    "ledger": _room(2150, "model shares"),
    "shares": _room(1620, "model ledger"),
    "allocations": _room(530, "model ledger"),
    "books.py": _room(175, "model ledger shares allocations"),
    "storage": _room(1150, "errors.py model runtime ledger shares books.py"),
    "catalog": _room(2100, "model ledger shares"),
    "web": _room(3990, "errors.py model net runtime config storage catalog"),
    "integrations": _room(2200, "errors.py model net runtime config catalog web"),
    "loop.py": _room(150, "model runtime owners books.py"),
    "tools": _room(
        9000, "errors.py model net runtime config ledger storage catalog web integrations driver owners/kernel"
    ),
    "cli": _room(
        2450,
        "errors.py model net runtime config storage catalog web integrations driver recording owners owners/kernel "
        "owners/providers ledger shares books.py loop.py tools",
    ),
    "__init__.py": _room(5),
    "__main__.py": _room(10, "cli"),
}
"""Every module belongs to a room: its folder, or itself at the top level."""
MODULES = sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    """The room of a module: the longest name in ROOMS that its path begins with."""
    name = path.relative_to(SOURCE).as_posix()
    return max((room for room in ROOMS if name == room or name.startswith(f"{room}/")), key=len)


def imports(path: Path) -> set[Path]:
    """The modules of the package that a module imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {_file(alias.name) for alias in node.names if alias.name.startswith("gpuledger")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpuledger"):
            found |= {_file(f"{node.module}.{alias.name}") for alias in node.names}
    return found


def _file(name: str) -> Path:
    """The file of a module, or of the module that a name is imported from."""
    path = SOURCE.joinpath(*name.split(".")[1:])
    if path.is_dir():
        return path / "__init__.py"
    return path.with_suffix(".py") if path.with_suffix(".py").exists() else _file(name.rpartition(".")[0])


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_one_way(room: str) -> None:
    """A module imports only rooms that its own room may know: no exporter imports a tool, no book opens a file."""
    for path in MODULES:
        if room_of(path) == room:
            forbidden = {room_of(imported) for imported in imports(path)} - {room, "__init__.py"} - ROOMS[room].imports
            assert not forbidden, f"{path.relative_to(SOURCE)} imports {forbidden}"


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_stay_within_their_guides(room: str) -> None:
    """A room that exceeds its guide by a fifth fails, until the room or the guide changes with a reason."""
    lines = sum(len(path.read_text().splitlines()) for path in MODULES if room_of(path) == room)

    assert lines <= ROOMS[room].guide * 1.2


def test_no_module_imports_itself_through_others() -> None:
    """Imports have no cycle. A parent package counts only if it is imported by name."""
    graph = {path: imports(path) - {path} for path in MODULES}
    while leaves := {path for path, imported in graph.items() if not imported & set(graph)}:
        graph = {path: imported for path, imported in graph.items() if path not in leaves}

    assert sorted(path.relative_to(SOURCE).as_posix() for path in graph) == []


def test_the_exporter_loads_no_tool() -> None:
    """What runs on every node never loads what runs beside Prometheus or in a terminal."""
    assert _loaded("gpuledger.cli.serve", "gpuledger.cli.build", prefix="gpuledger.tools.") == []


def test_the_report_loads_nothing_of_the_exporter() -> None:
    """The report needs a Prometheus: no driver, no owners, no ledger, no server."""
    rooms = ("driver", "owners", "ledger", "web")

    assert [_loaded("gpuledger.cli.report", prefix=f"gpuledger.{room}.") for room in rooms] == [[], [], [], []]


def _loaded(*modules: str, prefix: str) -> list[str]:
    """The loaded modules that begin with `prefix`, after importing `modules`."""
    code = (
        f"import sys, {', '.join(modules)};"
        f"print(*(name for name in sys.modules if (name + '.').startswith({prefix!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_modules_are_small() -> None:
    """Past 400 lines it is two modules."""
    sizes = {path.name: len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}

    assert {name: size for name, size in sizes.items() if size > 400} == {}


def test_replaying_loads_no_driver() -> None:
    """The demo must run where nothing of NVIDIA is installed, and without the memory of what it does not use."""
    code = (
        "import sys; import gpuledger.cli.demo, gpuledger.cli.serve, gpuledger.recording.replay;"
        "unwanted = ('gpuledger.driver.nvml', 'yaml', 'http.server', 'http.client', 'ssl', 'asyncio', 'email',"
        "'urllib.request', 'textual', 'rich');"
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
    importing = re.compile(r"^(?:from|import) tests[\w.]*(?:\.| import )test_", re.MULTILINE)
    found = [path.name for path in Path(__file__).parent.rglob("*.py") if importing.search(path.read_text())]

    assert found == ["test_mutations.py"]  # it runs the tests of the books against changed rules
