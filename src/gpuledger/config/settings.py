"""The declaration of a setting: one field of a dataclass, with its flag, variable, YAML key, parser and help.

`--help`, the man page, the completion, docs/configuration.md and the sample file are generated from these fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from gpuledger.config import durations, parsers

GROUPS = (
    "period and groups", "GPUs in use", "idle allocations", "prices and carbon", "output", "another exporter",
    "Prometheus", "web", "readings", "series", "owners", "energy", "dcgm-exporter and DCGM", "language-model servers",
    "OpenTelemetry", "log",
)  # fmt: skip
"""Titles in the help, in their order: what a command is for comes before how it connects."""


@dataclass(frozen=True, slots=True)
class Option:
    """One setting. `parse` converts its text, or raises ValueError with the mistake and its correction."""

    group: str
    """One of GROUPS."""
    key: str
    default: Any
    help: str
    parse: Callable[[str], Any] = str
    metavar: str = "VALUE"
    """The placeholder of the value in `--help`."""
    aliases: tuple[str, ...] = ()
    """Other flags for the same setting, most of them from older exporters."""
    variables: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    """Environment variables of older exporters, each with its own parser."""
    many: bool = False
    """Whether the setting is a list; its flag can be repeated."""
    name: str = ""
    """The field of the dataclass."""

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "GPULEDGER_" + self.key.upper().replace(".", "_").replace("-", "_")

    @property
    def default_text(self) -> str:
        """The default as a user would write it; empty if there is none."""
        if self.default is None:
            return ""
        if isinstance(self.default, tuple):
            return ", ".join(self.default)
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return durations.show(self.default) if isinstance(self.default, float) else str(self.default)

    @property
    def is_switch(self) -> bool:
        """Whether the setting is a boolean."""
        return self.parse is parsers.switch


def setting(group: str, key: str, default: Any, *declaration: Any, **more: Any) -> Any:
    """A field that is a setting; the arguments are those of `Option`."""
    return _field(Option(group, key, default, *declaration, **more))


def in_group(title: str) -> Callable[..., Any]:
    """`setting` for the settings of one group."""
    return partial(setting, title)


def redeclared(kind: type, name: str, **changes: Any) -> Any:
    """The setting `name` of another dataclass with changes, such as another default."""
    return _field(replace(next(option for option in options_of(kind) if option.name == name), **changes))


def _field(option: Option) -> Any:
    return field(default=option.default, metadata={"option": option})


def options_of(kind: type[Any]) -> tuple[Option, ...]:
    """The settings that a dataclass declares."""
    return tuple(replace(item.metadata["option"], name=item.name) for item in fields(kind))
