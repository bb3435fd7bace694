"""Parser for the metric names in a PromQL query."""

from __future__ import annotations

import re

_TEXT = re.compile(r'"[^"]*"')
_MATCHERS = re.compile(r"\{[^}]*\}")
_LABEL_LIST = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_DURATION = re.compile(r"\[[^\]]*\]|\boffset\s+\S+")
_NAME = re.compile(r"(?<![\w.$])[a-zA-Z_:][\w:]*(?!\w)(?!\s*\()")
_WORDS = {"and", "or", "unless", "bool", "by", "on", "group_left"}


def metrics(query: str) -> set[str]:
    """Names of all metrics in the query."""
    for part in (_TEXT, _MATCHERS, _LABEL_LIST, _DURATION):
        query = part.sub(" ", query)
    return set(_NAME.findall(query)) - _WORDS
