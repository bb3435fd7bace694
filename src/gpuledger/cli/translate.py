"""`gpuledger translate`: rewrite PromQL in files to the metric names of dcgm-exporter 4.9, or back."""

from __future__ import annotations

import argparse
import sys
from difflib import unified_diff
from pathlib import Path

from gpuledger.cli import terminal
from gpuledger.config.exporter import Config
from gpuledger.errors import ConfigError
from gpuledger.model.plaintext import escaped
from gpuledger.tools.translate.files import Translated, translate_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that are not settings."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="rules, dashboards or manifests, in YAML or JSON")
    parser.add_argument("--to", choices=("new", "old"), default="new", help="names of 4.9 or of 4.8 [new]")
    parser.add_argument("--write", action="store_true", help="change the files instead of only printing the difference")


def run(arguments: argparse.Namespace, _: Config) -> int:
    """Print a diff, and what could not be translated; exit code 1 if there is any."""
    is_complete = True
    for name in arguments.files:
        path = Path(name)
        text = _read(path)
        translated = _translate(path, text, arguments.to)
        lines = unified_diff(text.splitlines(keepends=True), translated.text.splitlines(keepends=True), name, name, n=1)
        terminal.write("".join(lines).encode())
        for line, problem in sorted(translated.problems):
            is_complete = False
            print(f"{name}:{line}: not translated: {escaped(problem)}", file=sys.stderr)
        if arguments.write and translated.text != text:
            path.write_bytes(translated.text.encode())
    return 0 if is_complete else 1


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file in UTF-8") from None


def _translate(path: Path, text: str, to: str) -> Translated:
    import yaml

    try:
        return translate_file(text, to)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = str(getattr(error, "problem", None) or "it is nested too deeply")
        raise ConfigError(
            f"{path} is neither YAML nor JSON: {reason}", "render templates first, as with helm template"
        ) from None
