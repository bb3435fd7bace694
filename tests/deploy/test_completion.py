"""The completion scripts: what a shell offers."""

from __future__ import annotations

import subprocess

import pytest

from gpuledger.cli import COMMANDS
from gpuledger.config.exporter import OPTIONS
from tests.components import program
from tools import completion

pytestmark = pytest.mark.needs("bash")


def offered(line: str) -> list[str]:
    """What a real bash offers at the end of a line."""
    words = line.split(" ")
    listed = " ".join(f"'{word}'" for word in words)
    script = (
        f"{completion.bash()}\nCOMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}\n"
        '_gpuledger; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run([program("bash"), "--norc", "-euc", script], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("gpuledger do", ["doctor"]),
        ("gpuledger --tick.", ["--tick.interval"]),
        ("gpuledger serve --tick.", ["--tick.interval"]),
        ("gpuledger serve --collector.dcgm --tick.", ["--tick.interval"]),
        ("gpuledger serve --log.level w", ["warn"]),
        ("gpuledger serve --log.level = w", ["warn"]),
        ("gpuledger once --format ", ["text", "openmetrics", "json"]),
        ("gpuledger fleet --in-use ", ["busy", "allocated", "resident"]),
        ("gpuledger fingerprints e", ["export"]),
        ("gpuledger fingerprints export some-file", []),
        ("gpuledger fleet --journal.", []),
        ("gpuledger record some-file", []),
    ],
)
def test_what_bash_offers(line: str, expected: list[str]) -> None:
    """Commands first, then the flags of this command and no other's, then the words a flag takes."""
    assert offered(line) == expected


def test_bash_offers_every_command() -> None:
    """And help."""
    assert offered("gpuledger ") == [*COMMANDS, "help"]


@pytest.mark.parametrize("name", completion.SCRIPTS)
def test_every_script_is_current_and_complete(name: str) -> None:
    """Each script is up to date and has every command and setting, as its shell writes them."""
    text = (completion.FOLDER / name).read_text()

    assert text == completion.SCRIPTS[name](), "run `make docs`"
    for option in OPTIONS:
        assert (f"-l {option.key}" if name.endswith(".fish") else f"--{option.key}") in text
    assert all(command in text for command in COMMANDS)
