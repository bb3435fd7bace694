"""The command line: `gpuledger COMMAND --flags`, and `serve` when no command is named."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn, Protocol

from gpuledger import config
from gpuledger.cli import out
from gpuledger.config import CONFIG_FILE, OPTIONS, Config, Option
from gpuledger.errors import ConfigError, UsageError

COMMANDS = {
    "serve": "serve this host's GPUs to Prometheus (the default)",
    "once": "read the GPUs once and print or write the metrics",
    "top": "show who uses the GPUs, in a terminal",
    "demo": "serve a recording of a real H200; needs no GPU",
    "doctor": "check what this host needs, and say how to fix what is missing",
    "explain": "tell how a process gets its owner, with the evidence",
    "record": "write what the driver says to a file, to be replayed",
    "fleet": "ask a Prometheus how busy the GPUs in use are, for autoscaling",
    "report": "ask a Prometheus who used how much over a time, and what it cost",
    "completion": "print a script that lets bash, zsh or fish complete commands and flags",
}
ABOUT = "gpuledger says who uses your NVIDIA GPUs."


class Command(Protocol):
    """What a module of this package offers.

    One with settings of its own also has OPTIONS, and Settings that hold them; else they are the exporter's.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's own arguments."""

    def run(self, arguments: argparse.Namespace, settings: Config) -> int:
        """Do it; the exit code."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with a suggestion, instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        """Called by argparse for anything it cannot make sense of."""
        raise ConfigError(f"{message}; see {self.prog} --help")

    def print_help(self, file: Any = None) -> None:
        """Called by argparse, whose own way hides that a disk is full from a certain length on."""
        del file
        out.write(self.format_help().encode())


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Exit code 2 and one line for whatever the user got wrong; never a traceback."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv), os.environ)
    except UsageError as error:
        print(f"gpuledger: {out.printable(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `gpuledger once | head`
        return 1
    except KeyboardInterrupt:
        return 130


def _run(words: list[str], environment: Mapping[str, str]) -> int:
    if words[:1] == ["--version"]:
        from gpuledger.cli import version

        out.write(version.text().encode())
        return 0
    if words[:1] in (["--help"], ["-h"], ["help"]):
        out.write(_help().encode())
        return 0
    name = "serve" if not words or words[0].startswith("-") else words.pop(0)
    if name not in COMMANDS:
        raise ConfigError(f"there is no command {name!r}{config.suggest(name, COMMANDS)}; see gpuledger --help")
    command, options, parser = prepare(name)
    try:
        arguments, unknown = parser.parse_known_args(words)
    except SystemExit:  # it has printed the help
        return 0
    if unknown:
        raise ConfigError(_unknown(unknown[0], parser))
    _check(environment)
    settings = config.load_as(getattr(command, "Settings", Config), options, _flags(arguments), environment)
    if arguments.print_config:
        out.write(config.dump(settings, options).encode())
        return 0
    return command.run(arguments, settings)


def prepare(name: str) -> tuple[Command, Sequence[Option], Parser]:
    """A command with its settings, and the parser that knows all its flags."""
    command: Command = import_module(f"gpuledger.cli.{name}")
    options: Sequence[Option] = getattr(command, "OPTIONS", OPTIONS)
    parser = _parser(name, options)
    command.add_arguments(parser)
    words = [str(action.metavar or action.dest.upper()) for action in parser._get_positional_actions()]  # noqa: SLF001
    parser.usage = " ".join([parser.prog, *words, "[FLAGS]"])  # argparse would list every setting there
    return command, options, parser


def _check(environment: Mapping[str, str]) -> None:
    """A variable of another command is no mistake; its settings are loaded only where there is such a one."""
    try:
        config.check_environment(environment)
    except ConfigError:
        from gpuledger.fleet.settings import OPTIONS as FLEET_OPTIONS
        from gpuledger.report.settings import OPTIONS as REPORT_OPTIONS
        from gpuledger.top.settings import OWN as TOP_OPTIONS

        config.check_environment(environment, (*FLEET_OPTIONS, *REPORT_OPTIONS, *TOP_OPTIONS))


def _parser(name: str, options: Sequence[Option]) -> Parser:
    parser = Parser(prog=f"gpuledger {name}", description=f"{COMMANDS[name]}.", allow_abbrev=False)
    parser.add_argument("--print-config", action="store_true", help="print the settings as YAML and exit")
    _add(parser, CONFIG_FILE)
    settings = parser.add_argument_group("settings, each also a variable and a key of the YAML file")
    for option in options:
        _add(settings, option)
    return parser


def _add(parser: Parser | argparse._ArgumentGroup, option: Option) -> None:
    names = [f"--{name}" for name in (option.key, *option.aliases)]
    common: dict[str, Any] = {"dest": f"option {option.key}", "action": "append"}
    default = f" [{option.default_text}]" if option.default_text else ""
    text = f"{option.help}{default}".replace("%", "%%")
    if option.is_switch:
        parser.add_argument(*names, **common, nargs="?", const="true", metavar="BOOL", help=text)
        negated = {"dest": common["dest"], "action": "append_const", "const": "false"}
        parser.add_argument(f"--no-{option.key}", **negated, help=argparse.SUPPRESS)
    else:
        parser.add_argument(*names, **common, metavar="VALUE", help=text)


def _flags(arguments: argparse.Namespace) -> dict[str, list[str]]:
    given = vars(arguments).items()
    return {name.removeprefix("option "): texts for name, texts in given if name.startswith("option ") and texts}


def _unknown(word: str, parser: Parser) -> str:
    flag = word.partition("=")[0]
    if word in COMMANDS:
        return f"{word!r} comes too late; write the command first, as in gpuledger {word} --tick.interval 5s"
    if not flag.startswith("-"):
        return f"{word!r} is one word too many; see {parser.prog} --help"
    return f"{flag}: there is no such flag{config.suggest(flag, parser._option_string_actions)}"  # noqa: SLF001


def _help() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:{width}}{text}" for name, text in COMMANDS.items()]
    return "\n".join([
        ABOUT, "", "usage: gpuledger [COMMAND] [FLAGS]", "       gpuledger --version", "", *lines, "",
        "`gpuledger COMMAND --help` lists a command's flags. Every flag is also an environment variable",
        "(--tick.interval is GPULEDGER_TICK_INTERVAL) and a key of the YAML file named by --config.file.", "",
    ])  # fmt: skip
