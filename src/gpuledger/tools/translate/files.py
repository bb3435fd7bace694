"""PromQL in files: rules, dashboards, manifests of KEDA and HPA, and the configuration of prometheus-adapter.

A file is YAML or JSON. Only its expressions change; everything else stays as it is written, comments included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuledger.tools.translate.promql import Result, Translation, renamed_labels, translate, translations

if TYPE_CHECKING:
    import yaml

EXPRESSIONS = ("expr", "query", "definition", "promql", "metricsQuery")
"""Keys whose values are PromQL."""
NAMES = ("seriesQuery", "matches")
"""Keys of prometheus-adapter whose values select or match names; the factor belongs into `metricsQuery`."""
SERIES = "<<.Series>>"


@dataclass(slots=True)
class Translated:
    """A translated file, and lines that could not be translated, each with its number."""

    text: str
    problems: list[tuple[int, str]] = field(default_factory=list)


def translate_file(text: str, to: str) -> Translated:
    """Translate all expressions of a file. Raises yaml.YAMLError if it is neither YAML nor JSON."""
    import yaml

    names, labels = translations(to), renamed_labels(to)
    edits: list[tuple[int, int, str]] = []
    problems: list[tuple[int, str]] = []
    for key, node, alias in _scalars(yaml.compose_all(text, yaml.SafeLoader), names):
        start, end = node.start_mark.index, node.end_mark.index
        if node.style in ('"', "'"):
            start, end = start + 1, end - 1
        raw, line = text[start:end], node.start_mark.line + 1
        if key in EXPRESSIONS:
            result = translate(raw, {**names, **alias}, labels)
        elif key in NAMES:
            result = translate(raw, {old: Translation(name) for old, (name, _) in names.items()}, labels)
        else:
            found = sorted(set(re.findall(r"\w+", raw)) & {*names, *labels})
            result = Result(raw, [f"{name}: `{key}` is no PromQL" for name in found])
        problems += [(line, problem) for problem in result.problems]
        edits.append((start, end, result.text))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return Translated(text, problems)


def _scalars(
    documents: Iterator[yaml.Node], names: Mapping[str, Translation]
) -> Iterator[tuple[str, yaml.ScalarNode, dict[str, Translation]]]:
    """Each text with its key, and what the template of prometheus-adapter beside it stands for."""
    import yaml

    pending: list[tuple[str, yaml.Node | None, dict[str, Translation]]] = [("", node, {}) for node in documents]
    while pending:
        key, node, alias = pending.pop()
        if isinstance(node, yaml.ScalarNode):
            yield key, node, alias
        elif isinstance(node, yaml.SequenceNode):
            pending += [(key, item, alias) for item in node.value]
        elif isinstance(node, yaml.MappingNode):
            values = {name.value: value for name, value in node.value if isinstance(name, yaml.ScalarNode)}
            series = values.get("seriesQuery")
            selected = re.findall(r"\w+", series.value) if isinstance(series, yaml.ScalarNode) else []
            factors = [names[name].factor for name in selected if name in names]
            alias = {SERIES: Translation(SERIES, factors[0])} if factors else {}
            pending += [(name, value, alias) for name, value in values.items()]
