"""Reading YAML strictly: a field that nobody knows, or a value of the wrong kind, is an error that names its line.

Works on nodes, not on values: they know their lines, and aliases stay small however often they are used. The errors are
worded as those of the YAML library that Prometheus and its exporters use, because people search for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any, TypeVar

import yaml

T = TypeVar("T")

_NULL, _BOOL, _INT = (f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int"))
_TRUE = ("true", "yes", "on")
_PREFIX = "yaml: unmarshal errors: "


def compose(text: str) -> Any:
    """The root node; None when there is nothing in the text."""
    try:
        return yaml.compose(text, yaml.SafeLoader)
    except RecursionError:
        raise ValueError("yaml: nested too deep") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        words = [getattr(error, name, None) for name in ("context", "problem", "reason")]
        raise ValueError(f"yaml: {line}{', '.join(word for word in words if word)}") from None


def line_of(node: Any) -> str:
    """Where a node is, to begin a message with."""
    return f"line {node.start_mark.line + 1}"


class Fields:
    """The fields of a mapping. Each is asked for once by name; `done` says whether others are left."""

    def __init__(self, node: Any, kind: str) -> None:
        self._kind = kind
        self._left = dict(_pairs(node, kind, f"field {{}} already set in type {kind}"))
        self._asked: list[str] = []

    def node(self, name: str) -> Any:
        """The node of a field; None when it is not there or null."""
        self._asked.append(name)
        value = self._left.pop(name, (None, None))[1]
        return None if _is_null(value) else value

    def string(self, name: str) -> str:
        """A text; whatever is no list and no mapping is one."""
        node = self.node(name)
        return "" if node is None else string(node)

    def choice(self, name: str, wrong: str, known: dict[str, T], default: T) -> T:
        """One of the words of a table, or the default."""
        node = self.node(name)
        return default if node is None else _choice(node, wrong, known)

    def choices(self, name: str, wrong: str, known: dict[str, T], kind: str) -> list[T]:
        """A list of words of a table."""
        node = self.node(name)
        return [] if node is None else [_choice(item, wrong, known) for item in _items(node, kind)]

    def strings(self, name: str) -> tuple[str, ...] | None:
        """A list of texts; None when it is not there."""
        node = self.node(name)
        return None if node is None else tuple(string(item) for item in _items(node, "[]string"))

    def boolean(self, name: str) -> bool | None:
        """True, false, or not there."""
        node = self.node(name)
        if node is not None and node.tag != _BOOL:
            raise _wrong(node, "bool")
        return None if node is None else node.value.lower() in _TRUE

    def integer(self, name: str) -> int:
        """A whole number; 0 when it is not there."""
        node = self.node(name)
        if node is None:
            return 0
        try:
            return int(node.value if node.tag == _INT else "", 10)
        except ValueError:  # a text, or one of the other ways to write a number, such as 1:30
            raise _wrong(node, "int") from None

    def done(self) -> None:
        """Raise ValueError for a field that nobody has asked for."""
        for name, (key, _) in self._left.items():
            hint = _hint(name, self._asked)
            raise ValueError(f"{_PREFIX}{line_of(key)}: field {name} not found in type {self._kind}; {hint}")


def texts(node: Any, kind: str) -> dict[str, str]:
    """A mapping of texts to texts."""
    return {
        name: "" if _is_null(value) else string(value)
        for name, (_, value) in _pairs(node, kind, 'key "{}" already set in map')
    }


def string(node: Any) -> str:
    """The text of a scalar."""
    if node.id != "scalar":
        raise _wrong(node, "string")
    return str(node.value)


def duration_ns(node: Any, parse: Callable[[str], int | None]) -> int:
    """A duration as a text that `parse` knows, or 0."""
    if node is None:
        return 0
    found = parse(node.value) if node.id == "scalar" else None
    if found is None:
        raise _wrong(node, "time.Duration")
    return found


def _pairs(node: Any, kind: str, twice: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    if _is_null(node):
        return
    if node.id != "mapping":
        raise _wrong(node, kind)
    seen = set()
    for key, value in node.value:
        name = string(key)
        if name in seen:
            raise ValueError(f"{_PREFIX}{line_of(key)}: {twice.format(name)}")
        seen.add(name)
        yield name, (key, value)


def _items(node: Any, kind: str) -> list[Any]:
    if node.id != "sequence":
        raise _wrong(node, kind)
    return list(node.value)


def _choice(node: Any, wrong: str, known: dict[str, T]) -> T:
    word = string(node)
    if word not in known:
        raise ValueError(f"{line_of(node)}: {wrong}: {word}; {_hint(word, list(known))}")
    return known[word]


def _hint(word: str, known: list[str]) -> str:
    close = get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"


def _is_null(node: Any) -> bool:
    return node is None or (node.id == "scalar" and node.tag == _NULL)


def _wrong(node: Any, kind: str) -> ValueError:
    """Shows the first characters of a scalar. No field that may hold a secret takes anything but a scalar."""
    tag = node.tag.replace("tag:yaml.org,2002:", "!!")
    value = ""
    if node.id == "scalar":
        value = f" `{node.value}`" if len(node.value) <= 10 else f" `{node.value[:7]}...`"
    return ValueError(f"{_PREFIX}{line_of(node)}: cannot unmarshal {tag}{value} into {kind}")
