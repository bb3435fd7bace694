"""The token counters of servers of language models, and how to read them from a scrape. Pure.

The rules and the dashboard of the mixin and `gpuledger report --by model` use the same names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import isfinite

from gpuledger.catalog.others import ENGINES, MODEL_LABELS
from gpuledger.integrations.exposition import ScrapedFamily, pairs
from gpuledger.model import TokenCounts
from gpuledger.model.plaintext import plain

MOST_MODELS = 32
"""Models of one server, adapters included; the others are summed as one without a name."""
LONGEST_MODEL = 200
LARGEST = 1e15
"""Tokens, as in reports: a server with a million a second needs 30 years. A larger counter is no counter of tokens."""
ESCAPE = re.compile(r"\\(.)")


BY_METRIC = {metric.encode(): (engine, metric == engine.output) for engine in ENGINES
             for metric in (engine.prompt, engine.output)}  # fmt: skip


def read_counts(families: Iterable[ScrapedFamily]) -> tuple[TokenCounts, ...]:
    """Tokens by engine and model. Series of the same model, such as those of several ranks, are summed.

    A worker behind Dynamo exposes the counters of its engine; those of a frontend count only if there are no others.
    """
    totals: dict[tuple[str, str], list[float]] = {}
    for family in families:
        for name, block, text in family.series:
            found, value = BY_METRIC.get(name), _value(text)
            if found is None or value is None:
                continue
            engine, is_output = found
            key = engine.name, _model(block)
            if key not in totals and len(totals) >= MOST_MODELS:
                key = engine.name, ""
            totals.setdefault(key, [0.0, 0.0])[is_output] += value
    frontends = {engine.name for engine in ENGINES if engine.is_frontend}
    own = {key: tokens for key, tokens in totals.items() if key[0] not in frontends} or totals
    return tuple(TokenCounts(engine, model, round(tokens[0]), round(tokens[1]))
                 for (engine, model), tokens in sorted(own.items()))  # fmt: skip


def _value(text: bytes) -> float | None:
    value = float(text.split()[0])
    return value if isfinite(value) and 0 <= value <= LARGEST else None


def _model(block: bytes | None) -> str:
    """The name of the model without control characters; a tenant may choose it."""
    labels = dict(pairs(block or b""))
    value = next((labels[name.encode()] for name in MODEL_LABELS if labels.get(name.encode())), b"")
    text = ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], value.decode("utf-8", "replace"))
    return plain(text)[:LONGEST_MODEL]
