"""PromQL for the tokens of language-model servers in one cell of a report, and for the model of each pod. Pure.

Servers are scraped without `honor_labels`, so that `namespace` and `pod` come from service discovery and no server can
claim to be another pod. Each counter is aggregated before it is combined with others: whatever labels a server writes,
no two series become equal, which would fail the query.

Tokens of a cell are the sum of these terms, as for energy (`promql.py`), except that a new series counts from its first
sample, because a server may have run for long before it was scraped:

    continued     the maximum minus the value at the start
    reset         the value is below that at the start: the whole value
    new           the maximum minus the minimum
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger.integrations.tokens.counters import ENGINES, LABELS, Engine

DEDUPLICATED = "max without (job, endpoint, service, container)"
"""A server that two jobs scrape counts once."""
POD = 'pod!=""'
ENERGY = f"container_gpu_energy_joules_total{{{POD}}}"
WORKERS = f'dynamo_component_requests_total{{{POD}, model!=""}}'
"""Workers of Dynamo, whose tokens only the frontend counts if their engine has no counters."""
SERVERS = tuple(engine for engine in ENGINES if not engine.is_frontend)
FRONTENDS = tuple(engine for engine in ENGINES if engine.is_frontend)
NAMES = "|".join(name for engine in SERVERS for name in (engine.prompt, engine.output))
OWN = {False: "gpu_server_prompt_tokens_total", True: "gpu_server_output_tokens_total"}
"""What the exporter reads itself, by whether they are output tokens."""


def models(window: str) -> str:
    """By namespace, pod and model: the tokens of the model so far, 0 for a worker without counters."""
    parts = [part for engine in SERVERS for part in _by_model(engine, f"max_over_time({{}}[{window}])")]
    parts.append(f"sum by (namespace, pod, model_name) (max_over_time({OWN[True]}{{{POD}}}[{window}]))")
    workers = f"0 * sum by (namespace, pod, model) (max_over_time({WORKERS}[{window}]))"
    parts.append(_renamed(workers))
    return f"sum by (namespace, pod, model_name) ({_either(parts)})"


def increases(*, output: bool, step: str, models_of_pods: str) -> Iterator[str]:
    """Tokens by model in the step that ends now: of pods whose energy is known, and of frontends.

    The model of a pod is not repeated for each server, because VictoriaMetrics limits the length of a query.
    """
    own = f"sum by (namespace, pod) ({DEDUPLICATED} ({{}}))"
    parts = [own.format(term) for engine in SERVERS for term in _terms(_metric(engine, output), step)]
    read = [f"sum by (namespace, pod) (max without (job, instance) ({term}))" for term in _terms(OWN[output], step)]
    parts += [f"({part} unless on (namespace, pod) {_has_counters(step)})" for part in read]
    with_energy = f"and on (namespace, pod) max by (namespace, pod) (max_over_time({ENERGY}[{step}]))"
    by_pod = f"(sum by (namespace, pod) ({_either(parts)}) {with_energy})"
    yield f"sum by (model_name) ({by_pod} * on (namespace, pod) group_left (model_name) {models_of_pods})"
    fronts = [
        f"sum by (namespace, model) ({DEDUPLICATED} ({term}))"
        for engine in FRONTENDS
        for term in _terms(_metric(engine, output), step)
    ]
    counted = f'max by (namespace, model_name) (last_over_time({{__name__=~"{NAMES}", {POD}}}[{step}]))'
    by_model = _renamed(f"sum by (namespace, model) ({_either(fronts)})")
    yield f"sum by (model_name) ({by_model} unless on (namespace, model_name) {counted})"


def _metric(engine: Engine, output: bool) -> str:
    return engine.output if output else engine.prompt


def _terms(metric: str, step: str) -> Iterator[str]:
    now, start = f"{metric}{{{POD}}}", f"{metric}{{{POD}}} offset {step}"
    highest = f"max_over_time({now}[{step}])"
    yield f"clamp_min({highest} - {start}, 0)"
    yield f"({now} < {start}) + 0"  # without the name of the metric, as the others
    yield f"({highest} - min_over_time({now}[{step}])) unless {start}"


def _by_model(engine: Engine, value: str) -> Iterator[str]:
    """Output tokens by pod and model; the vLLM in a Triton writes the label `model`."""

    def tokens(by: str, *matchers: str) -> str:
        series = value.format(f"{engine.output}{{{', '.join([POD, *matchers])}}}")
        return f"sum by (namespace, pod{by}) ({DEDUPLICATED} ({series}))"

    if not engine.model:
        yield f'label_replace({tokens("")}, "model_name", "{engine.name}", "", "")'
        return
    if engine.model == LABELS[0]:
        yield tokens(f", {LABELS[0]}", f'{LABELS[0]}!=""')
        if engine is not ENGINES[0]:
            return
    yield _renamed(tokens(f", {LABELS[1]}", f'{LABELS[0]}=""'))


def _renamed(vector: str) -> str:
    """The vector with the label `model` as `model_name`."""
    return f'label_replace({vector}, "model_name", "$1", "model", "(.*)")'


def _has_counters(step: str) -> str:
    """Pods with counters of a server; `last_over_time` keeps names, so that no two series are equal."""
    return f'max by (namespace, pod) (last_over_time({{__name__=~"{NAMES}", {POD}}}[{step}]))'


def _either(parts: list[str]) -> str:
    """All vectors together; a label keeps them apart, because `or` drops series that are equal to one on the left."""
    return " or ".join(f'label_replace({part}, "term", "{n}", "", "")' for n, part in enumerate(parts))
