"""The command line: `gpuledger COMMAND --flags`. Flags without a command are those of `serve`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, Protocol

from gpuledger import __version__
from gpuledger.cli import terminal, usage
from gpuledger.config import load as config
from gpuledger.config.exporter import CONFIG_FILE, Config
from gpuledger.config.settings import GROUPS, Option, options_of
from gpuledger.errors import ConfigError, UsageError
from gpuledger.model.plaintext import escaped

COMMANDS = {
    "serve": "expose this host's GPUs to Prometheus",
    "once": "read the GPUs once and print or write the metrics",
    "top": "show GPU use by owner in a terminal",
    "demo": "expose a recording of a node with four H200s; needs no GPU",
    "doctor": "check this host and explain how to fix problems",
    "explain": "show step by step how a process gets its owner",
    "record": "write driver readings to a file for replay",
    "fingerprints": "share learned fingerprints between nodes: export FILE, import FILE",
    "fleet": "expose utilization of the GPUs in use, across a cluster, for autoscaling",
    "idle": "rank allocated GPUs that are not used, by cost",
    "job": "show what a batch job used: energy, GPU-hours, busy share, idle tail and cost",
    "mcp": "answer the questions of agents about an exporter, over the Model Context Protocol",
    "report": "report energy, GPU-hours and cost by owner, from Prometheus",
    "translate": "rewrite PromQL in files to the metric names of dcgm-exporter 4.9, or back",
}
TOOLS = ("fleet", "idle", "job", "mcp", "report", "top")
"""Commands with settings of their own."""
ABOUT = "gpuledger attributes the use of NVIDIA GPUs to processes, containers and pods."
BUILD = Path(__file__).parents[1] / "build.json"
"""Written when a wheel is built; a source tree has none."""
LIBRARIES = ("nvidia-ml-py", "h2", "PyYAML")


class Command(Protocol):
    """The interface of a command's module.

    A command with its own settings names their dataclass as SETTINGS; the others use the exporter's.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare arguments that are not settings."""

    def run(self, arguments: argparse.Namespace, settings: Config) -> int:
        """Run the command and return the exit code."""


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line, with a suggestion, instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        """Called by argparse for invalid arguments."""
        raise ConfigError(message, f"see {self.prog} --help")

    def print_help(self, file: Any = None) -> None:
        """Called by argparse, whose implementation hides write errors, such as a full disk."""
        del file
        terminal.write(self.format_help().encode())


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Invalid input is exit code 2 and one line on standard error, never a traceback."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv), os.environ)
    except UsageError as error:
        print(f"gpuledger: {escaped(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `gpuledger once | head`
        return 1
    except KeyboardInterrupt:
        return 130


def _run(words: list[str], environment: Mapping[str, str]) -> int:
    if words[:1] in (["--version"], ["version"]):
        terminal.write(version_text().encode())
        return 0
    if words[:1] in ([], ["--help"], ["-h"], ["help"]):
        terminal.write(_help().encode())
        return 0
    name = "serve" if words[0].startswith("-") else words.pop(0)
    if name not in COMMANDS:
        raise ConfigError(f"unknown command {name!r}", config.suggest(name, COMMANDS) or "see gpuledger --help")
    command, _, parser = prepare(name, is_complete="--help-all" in words)
    try:
        arguments, unknown = parser.parse_known_args(words)
    except SystemExit:  # --help
        return 0
    if unknown:
        raise _unknown(unknown, parser)
    _check(environment)
    settings = config.load_as(_settings(command), _flags(arguments), environment)
    if arguments.print_config:
        terminal.write(config.dump(settings).encode())
        return 0
    return command.run(arguments, settings)


def prepare(name: str, *, is_complete: bool = True) -> tuple[Command, Sequence[Option], Parser]:
    """A command, its settings, and the parser of its flags; its help is complete or shows only the usual settings."""
    command: Command = import_module(f"gpuledger.cli.{name}")
    options = options_of(_settings(command))
    parser = _parser(name, options, is_complete=is_complete)
    command.add_arguments(parser)
    words = [str(action.metavar or action.dest.upper()) for action in parser._get_positional_actions()]  # noqa: SLF001
    parser.usage = " ".join([parser.prog, *words, "[FLAGS]"])  # argparse would list every setting
    return command, options, parser


def _settings(command: Any) -> type[Any]:
    return getattr(command, "SETTINGS", Config)


def _check(environment: Mapping[str, str]) -> None:
    """Reject unknown variables. Other commands' settings are loaded only if a variable might be theirs."""
    try:
        config.check_environment(environment)
    except ConfigError:
        kinds = [_settings(import_module(f"gpuledger.cli.{name}")) for name in TOOLS]
        config.check_environment(environment, [option for kind in kinds for option in options_of(kind)])


def _parser(name: str, options: Sequence[Option], *, is_complete: bool) -> Parser:
    shown = [option for option in options if is_complete or usage.is_usual(name, option)]
    parser = Parser(
        prog=f"gpuledger {name}",
        description=f"{COMMANDS[name]}.",
        epilog=usage.examples(name, len(options) - len(shown)),
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--help-all", action="help", help="show this help with all settings and exit")
    parser.add_argument("--print-config", action="store_true", help="print the settings as YAML and exit")
    _add(parser, CONFIG_FILE)
    titles = {option.group for option in shown}
    groups = {title: parser.add_argument_group(title) for title in GROUPS if title in titles}
    for option in options:
        _add(groups.get(option.group, parser), option, is_shown=option in shown)
    return parser


def _add(parser: Parser | argparse._ArgumentGroup, option: Option, *, is_shown: bool = True) -> None:
    names = [f"--{name}" for name in (option.key, *option.aliases)]
    common: dict[str, Any] = {"dest": f"option {option.key}", "action": "append"}
    default = f" [{option.default_text}]" if option.default_text else ""
    text = f"{option.help}{default}".replace("%", "%%") if is_shown else argparse.SUPPRESS
    if option.is_switch:
        parser.add_argument(*names, **common, nargs="?", const="true", metavar="BOOL", help=text)
        negated = {"dest": common["dest"], "action": "append_const", "const": "false"}
        parser.add_argument(f"--no-{option.key}", **negated, help=argparse.SUPPRESS)
    else:
        parser.add_argument(*names, **common, metavar=option.metavar, help=text)


def _flags(arguments: argparse.Namespace) -> dict[str, list[str]]:
    values = vars(arguments).items()
    return {name.removeprefix("option "): texts for name, texts in values if name.startswith("option ") and texts}


def _unknown(words: Sequence[str], parser: Parser) -> ConfigError:
    word = words[0]
    flag, _, value = word.partition("=")
    if word in COMMANDS:
        return ConfigError(f"the command {word!r} must come first", f"write gpuledger {word} --tick.interval 5s")
    if not flag.startswith("-"):
        return ConfigError(f"unexpected argument {word!r}", f"see {parser.prog} --help")
    known = list(parser._option_string_actions)  # noqa: SLF001 - argparse offers no other way
    close = usage.guess(flag, value or "".join(words[1:2]), known) or config.suggest(flag, known)
    return ConfigError(f"unknown flag {flag}", close or f"see {parser.prog} --help-all")


def _help() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:{width}}{text}" for name, text in COMMANDS.items()]
    return "\n".join([
        ABOUT, "", "usage: gpuledger [COMMAND] [FLAGS]", "       gpuledger --version", "", *lines, "",
        "Run `gpuledger COMMAND --help` for the flags of a command. Every flag is also an environment variable",
        "(--tick.interval is GPULEDGER_TICK_INTERVAL) and a key in the YAML file given by --config.file.", "",
    ])  # fmt: skip


def version_text() -> str:
    """Version and commit of gpuledger, and the versions of what it runs on."""
    libraries = [f"Python {platform.python_version()}", *(f"{name} {_installed(name)}" for name in LIBRARIES)]
    return f"gpuledger {__version__} ({_build()})\n{', '.join(libraries)}, {platform.machine()}\n"


def _build() -> str:
    try:
        build = json.loads(BUILD.read_text(encoding="utf-8"))
        return ", ".join(filter(None, (f"commit {build['commit']}", build["date"])))
    except (OSError, ValueError, KeyError, TypeError):
        return "from a source tree"


def _installed(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
