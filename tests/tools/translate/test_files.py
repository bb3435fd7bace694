"""PromQL in the files of Prometheus, Grafana, KEDA, HPA and prometheus-adapter."""

from __future__ import annotations

import json

import pytest
import yaml

from gpuledger.tools.translate.files import translate_file

RULES = """\
# DCGM_FI_DEV_GPU_UTIL is in percent
groups:
  - name: gpus
    rules:
      - alert: Busy   # a comment
        expr: |
          avg by (pod) (DCGM_FI_DEV_GPU_UTIL{pod!=""}) > 80
            and DCGM_FI_DEV_GPU_TEMP > 70
        annotations:
          summary: 'DCGM_FI_DEV_GPU_UTIL is high'
      - record: energy
        expr: 'rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{a="''"}[5m])'
"""


def test_rules() -> None:
    """Expressions change; comments, indentation and quotes do not; a name in prose is reported."""
    translated = translate_file(RULES, "new")

    changed = RULES.replace('DCGM_FI_DEV_GPU_UTIL{pod!=""}', '(DCGM_FI_DEV_GPU_UTIL_RATIO{pod!=""} * 100)')
    changed = changed.replace("GPU_TEMP > 70", "GPU_TEMP_CELSIUS > 70")
    old = "rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{a=\"''\"}[5m])"
    changed = changed.replace(old, "(rate(DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL{a=\"''\"}[5m]) * 1000)")
    assert translated.text == changed
    assert translated.problems == [(10, "DCGM_FI_DEV_GPU_UTIL: `summary` is no PromQL")]
    assert translate_file(changed, "old").text == RULES


def test_a_dashboard() -> None:
    """Queries and variables of a dashboard in JSON, in which quotes are escaped; the rest is the same to the byte."""
    dashboard = json.dumps({
        "panels": [{"targets": [{"expr": 'sum(DCGM_FI_DEV_FB_USED{gpu=~"$gpu"})', "legendFormat": "{{gpu}}"}]}],
        "templating": {"list": [{"definition": "label_values(DCGM_FI_DEV_FB_USED, gpu)",
                                 "query": {"query": "label_values(DCGM_FI_DEV_FB_USED, gpu)"}}]},
    }, indent=2)  # fmt: skip
    translated = translate_file(dashboard, "new")

    target = json.loads(translated.text)["panels"][0]["targets"][0]
    assert target["expr"] == 'sum((DCGM_FI_DEV_FB_USED_BYTES{gpu=~"$gpu"} / 1048576))'
    assert translated.text.count("label_values(DCGM_FI_DEV_FB_USED_BYTES, gpu)") == 2
    assert translated.problems == []
    assert translate_file(translated.text, "old").text == dashboard


def test_prometheus_adapter() -> None:
    """The series is renamed, and the factor comes into the template of its query."""
    adapter = """\
rules:
- seriesQuery: 'DCGM_FI_DEV_GPU_UTIL{pod!=""}'
  name: {matches: "DCGM_FI_DEV_GPU_UTIL", as: gpu_util}
  metricsQuery: avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
- seriesQuery: DCGM_FI_DEV_GPU_TEMP
  name: {as: temperature}
  metricsQuery: avg_over_time(<<.Series>>{<<.LabelMatchers>>}[1m])
"""
    translated = translate_file(adapter, "new")

    first, second = yaml.safe_load(translated.text)["rules"]
    assert first["seriesQuery"] == 'DCGM_FI_DEV_GPU_UTIL_RATIO{pod!=""}'
    assert first["name"] == {"matches": "DCGM_FI_DEV_GPU_UTIL_RATIO", "as": "gpu_util"}
    assert first["metricsQuery"] == "avg((<<.Series>>{<<.LabelMatchers>>} * 100)) by (<<.GroupBy>>)"
    assert second["seriesQuery"] == "DCGM_FI_DEV_GPU_TEMP_CELSIUS"
    assert second["metricsQuery"] == "avg_over_time(<<.Series>>{<<.LabelMatchers>>}[1m])"
    assert translated.problems == []


def test_prometheus_adapter_without_a_name() -> None:
    """A factor needs the new series; a metric that is exported under the name of its series is reported."""
    adapter = """\
rules:
- seriesQuery: '{__name__="DCGM_FI_DEV_GPU_UTIL"}'
  name: {matches: "^DCGM_FI_DEV_GPU_UTIL$", as: gpu_util}
  metricsQuery: avg(<<.Series>>{<<.LabelMatchers>>})
- seriesQuery: DCGM_FI_DEV_GPU_UTIL
  metricsQuery: avg(<<.Series>>{<<.LabelMatchers>>})
- seriesQuery: DCGM_FI_DEV_FB_USED
  name: {matches: "DCGM_FI_DEV_(.*)", as: "$1"}
  metricsQuery: avg(<<.Series>>{<<.LabelMatchers>>})
"""
    translated = translate_file(adapter, "new")

    first, second, third = yaml.safe_load(translated.text)["rules"]
    assert first == yaml.safe_load(adapter)["rules"][0]
    assert (second["seriesQuery"], second["metricsQuery"][:27]) == (
        "DCGM_FI_DEV_GPU_UTIL_RATIO",
        "avg((<<.Series>>{<<.LabelMa",
    )
    assert third["metricsQuery"] == "avg((<<.Series>>{<<.LabelMatchers>>} / 1048576))"
    renamed = "the exported metric changes its name; add `name: {as: ...}`"
    assert sorted(translated.problems) == [
        (2, "DCGM_FI_DEV_GPU_UTIL: the name is matched"),
        (3, "DCGM_FI_DEV_GPU_UTIL: `matches` is no PromQL"),
        (5, renamed),
        (7, renamed),
        (8, "DCGM_FI_DEV_: no other name is known"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        r'{"expr": "sum(\nTEMP)"}',
        r'{"expr": "a # b\n\t+ TEMP"}',
        r'{"expr": "1 \u003c\u000aTEMP"}',
        r'{"expr": "TEMP{a=\"\\\"}\", \nb=\"c\"}"}',
        '{\n\t"expr":\t"TEMP"\n}',
        "expr: 'TEMP{a=''b''}'",
        "a: {expr: &x TEMP}\nb: {expr: *x}",
        'a: {expr: &x "TEMP"}\nb: {expr: *x}',
        "&x {expr: TEMP, again: *x}",
        "a:\r\n  expr: TEMP\r\n",
    ],
)
def test_how_files_are_written(text: str) -> None:
    """With escapes, lines, comments, tabs, quotes, aliases and other line ends; each name is translated once."""
    old = text.replace("TEMP", "DCGM_FI_DEV_GPU_TEMP")

    assert translate_file(old, "new").text == text.replace("TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS")


def test_an_alias_in_two_rules() -> None:
    """A template that needs a factor in one rule only is reported."""
    adapter = """\
- {seriesQuery: DCGM_FI_DEV_GPU_UTIL, name: {as: a}, metricsQuery: &q avg(<<.Series>>)}
- {seriesQuery: DCGM_FI_DEV_GPU_TEMP, name: {as: b}, metricsQuery: *q}
"""
    assert translate_file(adapter, "new").problems == [(1, "an alias repeats it where another factor is needed")]


def test_keys() -> None:
    """Names that a dashboard renames are keys."""
    translated = translate_file('{"renameByName": {"DCGM_FI_DEV_GPU_UTIL": "use"}}', "new")

    assert translated.problems == [(1, "DCGM_FI_DEV_GPU_UTIL: `key` is no PromQL")]


def test_keda_and_hpa() -> None:
    """KEDA's query is PromQL. The metric of an HPA is a name with a threshold in the old unit, and is reported."""
    manifests = """\
kind: ScaledObject
spec: {triggers: [{type: prometheus, metadata: {query: avg(DCGM_FI_DEV_GPU_UTIL), threshold: "70"}}]}
---
kind: HorizontalPodAutoscaler
spec: {metrics: [{pods: {metric: {name: DCGM_FI_DEV_GPU_UTIL}, target: {averageValue: "70"}}}]}
"""
    translated = translate_file(manifests, "new")

    assert "{query: avg((DCGM_FI_DEV_GPU_UTIL_RATIO * 100)), threshold" in translated.text
    assert "{name: DCGM_FI_DEV_GPU_UTIL}" in translated.text
    assert translated.problems == [(5, "DCGM_FI_DEV_GPU_UTIL: `name` is no PromQL")]


def test_a_template_is_no_yaml() -> None:
    """A chart has to be rendered first."""
    with pytest.raises(yaml.YAMLError):
        translate_file("a: {{ .Values.b }}\n{{- end }}", "new")
