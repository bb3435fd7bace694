"""dcgm-exporter's list of counters: what it chooses, and what is wrong with it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.catalog import Type
from gpuledger.catalog.dialects import Choices, families_of
from gpuledger.catalog.dialects.counters import Counter, duplicates, parse
from gpuledger.catalog.dialects.dcgm import unknown_fields

LIST = """\
# Format
# DCGM FIELD, Prometheus metric type, help message

DCGM_FI_DEV_GPU_TEMP,    gauge, Heat, in C.
  DCGM_FI_DEV_DEC_UTIL , counter, "Of the ""decoder"", in %"
# DCGM_FI_DEV_SM_CLOCK, gauge, Not this one.
DCGM_FI_DEV_RETIRED_SBE, counter, Pages.
DCGM_FI_DEV_SERIAL, label, Serial
DCGM_FI_DEV_BRAND, label, Brand
"""


def test_it_selects_and_orders() -> None:
    """Families in its order, with its types and words; labels instead of the usual one; what we lack is named."""
    chosen = parse(LIST)

    families = families_of(["dcgm"], Choices(counters=chosen))

    assert [(f.name, f.type, f.help) for f in families] == [
        ("DCGM_FI_DEV_GPU_TEMP", Type.GAUGE, "Heat, in C."),
        ("DCGM_FI_DEV_DEC_UTIL", Type.COUNTER, 'Of the "decoder", in %'),
        ("gpu_sharing_info", Type.GAUGE, "1 for each container that shares this device with others."),
    ]
    assert "DCGM_FI_DEV_SERIAL" in families[0].of.labels
    assert "DCGM_FI_DRIVER_VERSION" not in families[0].of.labels
    assert unknown_fields(chosen) == ["DCGM_FI_DEV_RETIRED_SBE", "DCGM_FI_DEV_BRAND"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("both", ["DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED_BYTES", "DCGM_FI_DEV_GPU_UTIL_RATIO"]),
        ("old", ["DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_UTIL"]),
        ("new", ["DCGM_FI_DEV_FB_USED_BYTES", "DCGM_FI_DEV_GPU_UTIL_RATIO"]),
    ],
)
def test_a_list_of_either_version_is_accepted(names: str, expected: list[str]) -> None:
    """As it is spelled, or under the names that are asked for, each once and then with a help of the right unit."""
    chosen = parse(
        "DCGM_FI_DEV_FB_USED, gauge, Memory in MiB.\nDCGM_FI_DEV_FB_USED_BYTES, gauge, Memory in bytes.\n"
        "DCGM_FI_DEV_GPU_UTIL_RATIO, gauge, Busy.\nDCGM_FI_SYSTEM_DRIVER_VERSION, label, Driver\n"
    )
    families = families_of(["dcgm"], Choices(counters=chosen, names=names))[:-1]

    assert [family.name for family in families] == expected
    assert all(("MiB" in family.help) == (family.name == "DCGM_FI_DEV_FB_USED") for family in families)
    label = "DCGM_FI_DRIVER_VERSION" if names == "old" else "DCGM_FI_SYSTEM_DRIVER_VERSION"
    assert label in families[0].of.labels
    assert unknown_fields(chosen) == []


def test_of_a_field_that_is_there_twice_the_first_counts() -> None:
    """dcgm-exporter's own list with the names of 1.x has two of them twice."""
    text = "a, gauge, x\nb, gauge, x\na, counter, y\n"

    assert parse(text) == (Counter("a", "gauge", "x"), Counter("b", "gauge", "x"))
    assert duplicates(text) == ["a"]


def test_names_of_1x_are_answered() -> None:
    """Also between newer ones, with the labels they had then."""
    chosen = parse(
        "dcgm_gpu_temp, gauge, Heat.\nDCGM_FI_DEV_GPU_TEMP, gauge, Heat.\ndcgm_xid_errors, gauge, X.\n"
        "dcgm_fi_prof_pcie_tx_bytes, counter, Sent.\ndcgm_retired_pages_sbe, counter, Pages.\n"
    )

    families = families_of(["dcgm"], Choices(counters=chosen, shared="divide"))

    assert [(family.name, "pod_name" in family.of.labels, family.help) for family in families] == [
        ("dcgm_gpu_temp", True, "Heat."),
        ("DCGM_FI_DEV_GPU_TEMP", False, "Heat."),
        ("dcgm_xid_errors", True, "X."),
        ("dcgm_fi_prof_pcie_tx_bytes", True, "Sent."),
    ]
    assert unknown_fields(chosen) == ["dcgm_retired_pages_sbe"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no metric is selected; write lines such as `DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature.`"),
        ("#\nDCGM_FI_DEV_GPU_TEMP, gauge",
         "line 2: 'DCGM_FI_DEV_GPU_TEMP, gauge' does not have three columns; write `FIELD, type, help`"),
        ("\n\na b, gauge, x", "line 3: 'a b' is not a field name; write it as DCGM_FI_DEV_GPU_TEMP"),
        ("a, histogram, x", "line 1: 'histogram' is not a type; use one of gauge, counter, label"),
    ],
)  # fmt: skip
def test_errors_name_their_line(text: str, why: str) -> None:
    """One sentence, and what would be right."""
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        parse(text)


@given(st.text(alphabet=st.sampled_from('ab_1, #"\n\r\x00é'), max_size=60) | st.text(max_size=60))
def test_any_text_is_a_list_or_an_error(text: str) -> None:
    """Never anything but a ValueError, and what is chosen can be the name of a metric."""
    try:
        chosen = parse(text)
    except ValueError:
        return
    assert all(counter.field.isidentifier() and counter.field.isascii() for counter in chosen)


@given(
    st.lists(
        st.builds(
            Counter,
            st.from_regex("DCGM_FI_[A-Z_]{1,9}", fullmatch=True),
            st.sampled_from(["gauge", "counter", "label"]),
            st.from_regex("[a-z][a-z ,.%()]{0,20}[a-z.]", fullmatch=True),
        ),
        min_size=1,
        unique_by=lambda counter: counter.field,
    )
)
def test_what_is_written_is_read(counters: list[Counter]) -> None:
    """A list as people write them gives what they meant."""
    text = "\n".join(f"{c.field}, {c.type}, {c.help}" for c in counters)

    assert parse(text) == tuple(counters)
