"""PromQL in files: rules, dashboards, manifests of KEDA and HPA, and the configuration of prometheus-adapter.

A file is YAML or JSON. Only its expressions change; everything else stays as it is written, comments included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuledger.tools.translate.promql import Result, Translation, renamed_labels, translate, translations, untranslated

if TYPE_CHECKING:
    import yaml

EXPRESSIONS = ("expr", "query", "definition", "promql", "metricsQuery")
"""Keys whose values are PromQL."""
SELECTOR = "seriesQuery"
"""Key of prometheus-adapter with a selector of series; the factor belongs into `metricsQuery`."""
SERIES = "<<.Series>>"
PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")
"""Anchor and tag of a value in YAML."""
ESCAPE = re.compile(r"\\(?:x(..)|u(.{4})|U(.{8})|(.))", re.DOTALL)
ESCAPED = {"n": "\n", "r": "\n", "t": "\t", '"': '"', "/": "/", "\\": "\\"}


@dataclass(slots=True)
class Translated:
    """A translated file, and lines that could not be translated, each with its number."""

    text: str
    problems: list[tuple[int, str]] = field(default_factory=list)


def translate_file(text: str, to: str) -> Translated:
    """Translate all expressions of a file. Raises yaml.YAMLError or ValueError if it is neither YAML nor JSON."""
    import yaml

    names, labels = translations(to), renamed_labels(to)
    bare = {old: Translation(name) for old, (name, _) in names.items()}
    edits: dict[tuple[int, int], str] = {}
    problems: dict[tuple[int, str], None] = {}
    # YAML allows no tabs between the tokens of JSON.
    parsed = text.replace("\t", " ") if text.lstrip()[:1] in ("{", "[") else text
    for key, node, series, problem in _scalars(yaml.compose_all(parsed, yaml.SafeLoader), names):
        start, end = node.start_mark.index, node.end_mark.index
        properties = PROPERTIES.match(text[start:end])
        start += properties.end() if properties else 0
        if node.style in ('"', "'"):
            start, end = start + 1, end - 1
        raw = text[start:end]
        if key in EXPRESSIONS:
            result = translate(raw, {**names, **series}, labels, _unescaped(raw, node.style))
        elif key == SELECTOR or (key == "matches" and series):
            result = translate(raw, bare, labels, _unescaped(raw, node.style))
        else:
            found = untranslated(node.value, names, labels)
            result = Result("", [f"{name}: `{key}` is no PromQL" for name in found])
        if result.text and edits.setdefault((start, end), result.text) != result.text:
            result.problems.append("an alias repeats it where another factor is needed")
        reasons = [*result.problems, problem] if problem else result.problems
        problems |= dict.fromkeys((node.start_mark.line + 1, reason) for reason in reasons)
    for (start, end), new in sorted(edits.items(), reverse=True):
        text = text[:start] + new + text[end:]
    return Translated(text, list(problems))


def _unescaped(raw: str, style: str | None) -> str:
    """The text of a value as PromQL, each character at the place where its escape begins, so that places stay."""
    if style == "'":
        return raw.replace("''", "' ")
    return ESCAPE.sub(_character, raw) if style == '"' else raw


def _character(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    character = chr(int(code, 16)) if code else ESCAPED.get(match[4], " ")
    # A backslash stays beside the character that it escapes in PromQL.
    return character.rjust(len(match[0])) if character == "\\" else character.ljust(len(match[0]))


def _scalars(
    documents: Iterator[yaml.Node], names: Mapping[str, Translation]
) -> Iterator[tuple[str, yaml.ScalarNode, dict[str, Translation], str]]:
    """Each text with its key, what the template of prometheus-adapter beside it stands for, and a problem."""
    import yaml

    pending: list[tuple[str, yaml.Node | None, dict[str, Translation]]] = [("", node, {}) for node in documents]
    visited = set()
    while pending:
        key, node, series = pending.pop()
        if (place := (key, id(node), *series.values())) in visited:  # an alias, maybe inside what it repeats
            continue
        visited.add(place)
        if isinstance(node, yaml.ScalarNode):
            yield key, node, series, ""
        elif isinstance(node, yaml.SequenceNode):
            pending += [(key, item, series) for item in node.value]
        elif isinstance(node, yaml.MappingNode):
            values = {name.value: value for name, value in node.value if isinstance(name, yaml.ScalarNode)}
            selector = values.get(SELECTOR)
            if isinstance(selector, yaml.ScalarNode):
                series = _series(selector.value, names)
                if series and not _has_own_name(values.get("name")):
                    yield SELECTOR, selector, series, "the exported metric changes its name; add `name: {as: ...}`"
            pending += [("key", name, {}) for name, _ in node.value]
            pending += [(name, value, series) for name, value in values.items()]


def _series(selector: str, names: Mapping[str, Translation]) -> dict[str, Translation]:
    """What the template stands for, if the selector of its series is translated."""
    bare = {old: Translation(name) for old, (name, _) in names.items()}
    added = {*re.findall(r"\w+", translate(selector, bare, {}).text)} - {*re.findall(r"\w+", selector)}
    factors = [factor for name, factor in names.values() if name in added]
    return {SERIES: Translation(SERIES, factors[0])} if factors else {}


def _has_own_name(node: yaml.Node | None) -> bool:
    """Whether the adapter exports a metric under a name that does not depend on the series."""
    import yaml

    fields = node.value if isinstance(node, yaml.MappingNode) else ()
    return any(name.value == "as" and "$" not in str(value.value) for name, value in fields)
