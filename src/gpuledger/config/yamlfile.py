"""Strict YAML for configuration files: every mistake is a ConfigError that names the file and the line.

It works on YAML nodes rather than on values: nodes have lines, `010` and `no` keep their text, and an alias takes no
memory however often it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gpuledger.errors import ConfigError

T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a file."""

    path: str
    yaml: Any

    @property
    def line(self) -> int:
        """The line the node starts on, from 1."""
        return int(self.yaml.start_mark.line) + 1

    @property
    def is_mapping(self) -> bool:
        """Whether the node has keys and values."""
        return bool(self.yaml.id == "mapping")

    @property
    def is_list(self) -> bool:
        """Whether the node is a sequence."""
        return bool(self.yaml.id == "sequence")

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written: `key:`, `null` or `~`."""
        return self.yaml.id == "scalar" and self.yaml.style is None and self.yaml.value in ("", "~", "null")

    def error(self, what: str, fix: str = "") -> ConfigError:
        """The error to raise for a mistake in this node."""
        return ConfigError(f"{self.path}, line {self.line}: {what}", fix)

    def entries(self, name: str) -> Iterator[tuple[str, Node, Node]]:
        """The keys of a mapping, each as text and as a node, with their values. Duplicate keys are errors."""
        if self.is_empty:
            return
        if not self.is_mapping:
            raise self.error(f"{name} is not a mapping", "write lines such as `key: value`")
        lines: dict[str, int] = {}
        for key_node, value_node in self.yaml.value:
            key = Node(self.path, key_node)
            text = key.text("a key")
            if text in lines:
                raise key.error(f"duplicate key {text}", f"remove it here or on line {lines[text]}")
            lines[text] = key.line
            yield text, key, Node(self.path, value_node)

    def fields(self, name: str, known: Iterable[str], required: Iterable[str] = ()) -> dict[str, Node]:
        """The values of a mapping by key, without empty ones; an unknown key and a missing one are errors."""
        names = tuple(known)
        fields = {}
        for text, key, value in self.entries(name):
            if text not in names:
                raise key.error(f"unknown field {text} in {name}", suggest(text, names) or f"use {', '.join(names)}")
            if not value.is_empty:
                fields[text] = value
        if missing := [field for field in required if field not in fields]:
            raise self.error(f"{missing[0]} is missing", f"add {missing[0]}: to {name}")
        return fields

    def text(self, name: str) -> str:
        """The text of a scalar."""
        if self.yaml.id != "scalar":
            raise self.error(f"{name} takes one value")
        return str(self.yaml.value)

    def parsed(self, parse: Callable[[str], T]) -> T:
        """The value that `parse` makes of the text, or raises ValueError with the mistake."""
        text = self.text("a setting")
        try:
            return parse(text)
        except ValueError as error:
            raise self.error(f"{text} {error}") from None

    def items(self, name: str) -> list[Node]:
        """The items of a list."""
        if not self.is_list:
            raise self.error(f"{name} takes a list of values")
        return [Node(self.path, item) for item in self.yaml.value]

    def texts(self, name: str) -> list[str]:
        """The texts of a list of scalars."""
        return [item.text(name) for item in self.items(name)]

    def boolean(self, name: str) -> bool:
        """A YAML boolean."""
        word = self.text(name).lower()
        if word not in BOOLEANS:
            raise self.error(f"{name} is neither true nor false", "write true or false")
        return BOOLEANS[word]


BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def load(path: str, largest: int) -> Node | None:
    """The root node of a file of at most `largest` characters; None if the file is empty. Raises ConfigError."""
    return parse(read_text(path, largest), path)


def optional(fields: Mapping[str, Node], name: str, parse: Callable[[str], T], default: D) -> T | D:
    """The parsed value of a field; the default if it is not set."""
    return fields[name].parsed(parse) if name in fields else default


def parse(text: str, path: str) -> Node | None:
    """The root node of a text, with this path in errors; None if the text is empty. Raises ConfigError."""
    import yaml  # only if there is a file: 2.6 MB

    try:
        root = yaml.compose(text, yaml.BaseLoader)
    except RecursionError:
        raise ConfigError(f"{path} is not valid YAML: nested too deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        parts = [getattr(error, name, None) for name in ("context", "problem", "reason")]
        raise ConfigError(f"{path}{line} is not valid YAML: {', '.join(part for part in parts if part)}") from None
    return None if root is None or Node(path, root).is_empty else Node(path, root)


def read_text(path: str, largest: int) -> str:
    """A file of at most `largest` characters. Raises ConfigError."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - the path as it was written
            text = file.read(largest + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise ConfigError(f"{path} is not a text file in UTF-8") from None
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"cannot read {path}: {reason}") from None
    if len(text) > largest:
        raise ConfigError(f"{path} has more than {largest} characters")
    return text


def suggest(word: str, known: Iterable[str]) -> str:
    """`did you mean X?` if a known word is close, else nothing."""
    from difflib import get_close_matches  # only after a mistake

    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""
