"""Names of dcgm-exporter in PromQL, rewritten so that the result keeps its unit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.catalog.dialects.dcgmnames import RENAMES
from gpuledger.tools.translate.promql import Result, renamed_labels, translate, translations


def to_new(text: str) -> Result:
    """A text with the names of 4.8."""
    return translate(text, translations("new"), renamed_labels("new"))


def to_old(text: str) -> Result:
    """A text with the names of 4.9."""
    return translate(text, translations("old"), renamed_labels("old"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("DCGM_FI_DEV_GPU_TEMP > 80", "DCGM_FI_DEV_GPU_TEMP_CELSIUS > 80"),
        ('avg(DCGM_FI_DEV_GPU_UTIL{pod!="}"}) > 80', 'avg((DCGM_FI_DEV_GPU_UTIL_RATIO{pod!="}"} * 100)) > 80'),
        ("rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m])", "(rate(DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL[5m]) * 1000)"),
        ("quantile_over_time(0.9, DCGM_FI_DEV_FB_USED[1h] offset 1d)",
         "(quantile_over_time(0.9, DCGM_FI_DEV_FB_USED_BYTES[1h] offset 1d) / 1048576)"),
        ("max_over_time(DCGM_FI_DEV_SM_CLOCK[1h:1m])", "max_over_time((DCGM_FI_DEV_SM_CLOCK_HERTZ / 1000000)[1h:1m])"),
        ("DCGM_FI_DEV_FB_FREE @ end() offset 5m", "(DCGM_FI_DEV_FB_FREE_BYTES @ end() offset 5m / 1048576)"),
        ('rate(DCGM_FI_DEV_POWER_VIOLATION{gpu=~"$gpu"}[$__rate_interval])',
         '(rate(DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL{gpu=~"$gpu"}[$__rate_interval]) * 1000000000)'),
        ("avg(DCGM_FI_DEV_GPU_UTIL / 100)", "avg((DCGM_FI_DEV_GPU_UTIL_RATIO * 100) / 100)"),
        ("sum(rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m]) / 1000)",
         "sum((rate(DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL[5m]) * 1000) / 1000)"),
        ("((sum(a) + sum(b) / 100) * 100) + (x / 100) * 100", "((sum(a) + sum(b) / 100) * 100) + (x / 100) * 100"),
        ("(DCGM_FI_DEV_GPU_UTIL / 100) > 0.8", "DCGM_FI_DEV_GPU_UTIL_RATIO > 0.8"),
        ("up and (DCGM_FI_DEV_GPU_UTIL / 100)", "up and DCGM_FI_DEV_GPU_UTIL_RATIO"),
        ("(DCGM_FI_DEV_GPU_UTIL / 100 # percent\n)", "((DCGM_FI_DEV_GPU_UTIL_RATIO * 100) / 100 # percent\n)"),
        ("count(DCGM_FI_DEV_GPU_UTIL > 80)", "count((DCGM_FI_DEV_GPU_UTIL_RATIO * 100) > 80)"),
        ("absent(80 < DCGM_FI_DEV_GPU_UTIL)", "absent(80 < (DCGM_FI_DEV_GPU_UTIL_RATIO * 100))"),
        ("count((DCGM_FI_DEV_GPU_UTIL) > 80)", "count(((DCGM_FI_DEV_GPU_UTIL_RATIO * 100)) > 80)"),
        ("changes((DCGM_FI_DEV_GPU_UTIL > 80)[1h:1m])", "changes(((DCGM_FI_DEV_GPU_UTIL_RATIO * 100) > 80)[1h:1m])"),
        ("count_over_time(DCGM_FI_DEV_GPU_UTIL[1h])", "count_over_time(DCGM_FI_DEV_GPU_UTIL_RATIO[1h])"),
        ("sum_over_time((DCGM_FI_DEV_GPU_UTIL[5m]))", "(sum_over_time((DCGM_FI_DEV_GPU_UTIL_RATIO[5m])) * 100)"),
        ("max_over_time(DCGM_FI_DEV_FB_USED[${range:raw}])",
         "(max_over_time(DCGM_FI_DEV_FB_USED_BYTES[${range:raw}]) / 1048576)"),
        ("count by (pod) (DCGM_FI_DEV_FB_USED)", "count by (pod) (DCGM_FI_DEV_FB_USED_BYTES)"),
        ("absent_over_time(DCGM_FI_DEV_FB_USED[1h])", "absent_over_time(DCGM_FI_DEV_FB_USED_BYTES[1h])"),
        ("label_values(DCGM_FI_DEV_FB_USED, gpu)", "label_values(DCGM_FI_DEV_FB_USED_BYTES, gpu)"),
        ('DCGM_FI_DEV_FB_USED{DCGM_FI_DRIVER_VERSION="1"}',
         '(DCGM_FI_DEV_FB_USED_BYTES{DCGM_FI_SYSTEM_DRIVER_VERSION="1"} / 1048576)'),
        ("up * on (node) group_left (DCGM_FI_DRIVER_VERSION) DCGM_FI_DEV_GPU_TEMP",
         "up * on (node) group_left (DCGM_FI_SYSTEM_DRIVER_VERSION) DCGM_FI_DEV_GPU_TEMP_CELSIUS"),
    ],
)  # fmt: skip
def test_there_and_back(old: str, new: str) -> None:
    """In functions, comparisons, subqueries, with modifiers and with variables of a dashboard."""
    assert to_new(old) == Result(new)
    assert to_old(new) == Result(old)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"DCGM_FI_DEV_GPU_UTIL", gpu="0"}', "the name is matched"),
        ('{__name__=~"DCGM.*"}', "the name is matched"),
        ("DCGM_FI_DEV_$metric", "no other name is known"),
        ("DCGM_FI_DEV_GPU_UTIL$suffix", "no other name is known"),
        ("DCGM_FI_DEV_UNKNOWN", "no other name is known"),
        ('label_replace(up, "v", "$1", "DCGM_FI_DRIVER_VERSION", "(.*)")', "is in a string"),
        ("stdvar_over_time(DCGM_FI_DEV_GPU_UTIL[5m])", "a range of values in stdvar_over_time cannot be multiplied"),
        ("DCGM_FI_DEV_GPU_UTIL[5m]", "a range of values in no function cannot be multiplied"),
        ('{__name__=~"DCGM_FI_DEV_.*"}', "the name is matched"),
    ],
)
def test_what_cannot_be_translated_stays(text: str, problem: str) -> None:
    """It is reported instead of changed into something with another result."""
    result = to_new(text)

    assert result.text == text
    assert [reason.partition(": ")[2] for reason in result.problems] == [problem]


@pytest.mark.parametrize(
    "text",
    [
        "x # DCGM_FI_DEV_GPU_UTIL", "MY_DCGM_FI_DEV_GPU_UTIL", "gpu:DCGM_FI_DEV_GPU_UTIL:avg",
        "DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_PROF_PCIE_TX_BYTES", "",
    ],
)  # fmt: skip
def test_other_text_is_unchanged(text: str) -> None:
    """Comments, longer names, recorded series, and names of 4.9."""
    assert to_new(text) == Result(text)


SELECTORS = st.sampled_from([rename.old for rename in RENAMES])
EXPRESSIONS = st.recursive(
    SELECTORS | SELECTORS.map(lambda name: f'{name}{{gpu="0", pod=~"a|b"}}') | SELECTORS.map("rate({}[5m])".format),
    lambda inner: (
        inner.map("sum by (gpu) ({})".format)
        | inner.map("max_over_time({}[5m:1m])".format)
        | inner.map("count({} > 80)".format)
        | inner.map("avg({} / 100)".format)
        | st.tuples(inner, inner).map(lambda pair: f"({pair[0]}) / on (gpu) ({pair[1]})")
    ),
    max_leaves=5,
)


@given(EXPRESSIONS)
def test_translated_back_is_the_same(text: str) -> None:
    """Any expression; no old name is left in between."""
    new = to_new(text)

    assert not new.problems
    assert not {rename.old for rename in RENAMES} & set(new.text.replace("(", " ").replace("{", " ").split())
    assert to_old(new.text) == Result(text)


@given(st.text(alphabet="DCGM_FI_DEV_GPU_UTIL(){}[]\"'`\\$, \n#offset@:1", max_size=60) | st.text(max_size=40))
def test_any_text_is_accepted(text: str) -> None:
    """Text without a name of the table is returned as it is."""
    result = to_new(text)
    if not any(rename.old in text for rename in RENAMES):
        assert result.text == text
