"""`gpuledger completion`: what a shell offers."""

from __future__ import annotations

import subprocess

import pytest

from gpuledger.cli import COMMANDS, completion, main
from gpuledger.config.options import OPTIONS
from tests.components import program

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
        ("gpuledger completion z", ["zsh"]),
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


@pytest.mark.parametrize("shell", completion.SCRIPTS)
def test_every_script_has_every_setting(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each flag, for each shell, as that shell writes it."""
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out

    for option in OPTIONS:
        assert (f"-l {option.key}" if shell == "fish" else f"--{option.key}") in text
    assert all(name in text for name in COMMANDS)


def test_a_shell_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """In one line."""
    assert main(["completion", "csh"]) == 2
    assert "invalid choice: 'csh'" in capsys.readouterr().err
