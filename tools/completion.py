"""Write the completion scripts in deploy/completion from the argument parsers of the commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuledger.cli import COMMANDS, prepare

FOLDER = Path(__file__).parents[1] / "deploy/completion"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of a command."""

    names: tuple[str, ...]
    about: str
    takes_value: bool
    values: tuple[str, ...]
    """The possible values, if they are known."""


def flags(command: str) -> list[Flag]:
    """All flags of a command, from its parser."""
    _, options, parser = prepare(command)
    choices = {f"option {option.key}": getattr(option.parse, "choices", ()) for option in options}
    return [
        Flag(
            tuple(action.option_strings),
            (action.help or "").replace("%%", "%").rstrip("."),
            action.nargs not in (0, "?"),  # a boolean flag takes an optional value
            choices.get(action.dest) or tuple(map(str, action.choices or ())),
        )
        for action in parser._actions  # noqa: SLF001 - argparse offers no other way
        if action.option_strings and action.help != argparse.SUPPRESS
    ]


def words(command: str) -> tuple[str, ...]:
    """The possible positional arguments of a command, if they are known."""
    _, _, parser = prepare(command)
    return tuple(str(word) for action in parser._get_positional_actions() for word in action.choices or ())  # noqa: SLF001


def takes_file(command: str) -> bool:
    """Whether a command has a positional argument whose values are not known."""
    _, _, parser = prepare(command)
    return any(not action.choices for action in parser._get_positional_actions())  # noqa: SLF001


def bash() -> str:
    """For share/bash-completion/completions."""
    lines = [
        "_gpuledger() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" command=serve words=',
        '  [[ $before == = ]] && before="${COMP_WORDS[COMP_CWORD-2]}"',
        '  [[ $word == = ]] && { before="${COMP_WORDS[COMP_CWORD-1]}"; word=; }',
        "  [[ $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} != -* ]] && command=${COMP_WORDS[1]}",
        "  if [[ $COMP_CWORD -eq 1 && $word != -* ]]; then",
        f'    words="{" ".join(COMMANDS)} help"',
        "  else case $command:$before in",
        *(
            f'    {"|".join(f"{command}:{name}" for name in flag.names)}) words="{" ".join(flag.values)}" ;;'
            for command in COMMANDS
            for flag in flags(command)
            if flag.values
        ),
        "    *) case $command in",
        *(f'      {name}) words="{" ".join([*words(name), *_names(name)])}" ;;' for name in COMMANDS),
        "    esac ;;",
        "  esac; fi",
        '  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")',
        "}",
        "complete -o default -F _gpuledger gpuledger",
    ]
    return "\n".join(lines) + "\n"


def _names(command: str) -> list[str]:
    return [name for flag in flags(command) for name in flag.names if name.startswith("--")]


def zsh() -> str:
    """For a directory in $fpath."""
    lines = ["#compdef gpuledger", "_gpuledger() {", "  local -a commands", "  commands=("]
    lines += [f"    {_quoted(f'{name}:{about}')}" for name, about in COMMANDS.items()]
    lines += [
        "  )",
        "  if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then _describe command commands; return; fi",
        "  local command=serve",
        "  if [[ $words[2] != -* ]]; then command=$words[2]; shift words; (( CURRENT-- )); fi",
        "  case $command in",
    ]
    for command in COMMANDS:
        positional = [f":word:({' '.join(words(command))})"] if words(command) else []
        if takes_file(command) or not positional:
            positional.append("*:file:_files")
        lines += [f"    {command}) _arguments \\"]
        lines += [f"      {_quoted(_argument(name, flag))} \\" for flag in flags(command) for name in flag.names]
        lines += [f"      {' '.join(map(_quoted, positional))} ;;"]
    lines += [
        "  esac",
        "}",
        'if [[ $funcstack[1] == _gpuledger ]]; then _gpuledger "$@"; else compdef _gpuledger gpuledger; fi',
    ]
    return "\n".join(lines) + "\n"


def _argument(name: str, flag: Flag) -> str:
    about = "".join(f"\\{c}" if c in "[]:\\" else c for c in flag.about)
    if not flag.takes_value:
        return f"{name}[{about}]"
    return f"*{name}=[{about}]:value:" + (f"({' '.join(flag.values)})" if flag.values else "_files")


def fish() -> str:
    """For share/fish/vendor_completions.d."""
    lines = [
        f"complete -c gpuledger -n __fish_use_subcommand -f -a {name} -d {_quoted(about)}"
        for name, about in COMMANDS.items()
    ]
    for command in COMMANDS:
        when = f"-n '__fish_seen_subcommand_from {command}'"
        if known := " ".join(words(command)):
            first = f"{when[:-1]}; and not __fish_seen_subcommand_from {known}'" if takes_file(command) else when
            lines.append(f"complete -c gpuledger {first} -f -a {_quoted(known)}")
        for flag in flags(command):
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in flag.names)
            value = " -r" if flag.takes_value else ""
            value += f" -f -a {_quoted(' '.join(flag.values))}" if flag.values else ""
            lines.append(f"complete -c gpuledger {when} {names}{value} -d {_quoted(flag.about)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


SCRIPTS: dict[str, Callable[[], str]] = {"gpuledger": bash, "_gpuledger": zsh, "gpuledger.fish": fish}
"""By file name, which each shell prescribes."""

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, script in SCRIPTS.items():
        (FOLDER / name).write_text(script(), encoding="utf-8")
        print(f"wrote deploy/completion/{name}")
