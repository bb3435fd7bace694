"""The catalog: every metric declared once, named as Prometheus wants it, and documented."""

from __future__ import annotations

import re

import pytest

from gpuledger.catalog import CATALOG, Family, Type, kinds
from gpuledger.model import Tick

BASE_UNITS = {"", "bytes", "seconds", "joules", "watts", "hertz", "celsius", "ratio"}
TAKEN = {"job", "instance", "type", "cluster", "service", "env", "region", "zone"}


@pytest.mark.parametrize("family", CATALOG, ids=lambda family: family.name)
def test_family_is_well_declared(family: Family) -> None:
    """Name, type, unit, labels and help follow the conventions, and the value comes from one place."""
    suffix = {Type.COUNTER: "_total", Type.INFO: "_info", Type.GAUGE: ""}[family.type]
    assert re.fullmatch(r"(gpu|gpuledger|container_gpu|process)_[a-z0-9_]+", family.name)
    assert family.name.endswith(suffix)
    assert family.type is not Type.GAUGE or not family.name.endswith(("_total", "_info"))
    assert family.unit in BASE_UNITS
    assert family.name.removesuffix(suffix).endswith(family.unit)
    assert family.help.endswith(".")
    assert family.origin
    assert (family.value is None) != (family.series is None)
    assert bool(family.labels) == (family.series is not None)
    labels = (*family.of.labels, *family.labels)
    assert len(set(labels)) == len(labels)
    assert not TAKEN & set(labels)
    assert not family.needs or family.needs in Tick.__dataclass_fields__


def test_names_are_unique_in_both_formats() -> None:
    """No two families have the same name, also without the suffix OpenMetrics takes away."""
    names = [family.name for family in CATALOG]
    bare = [re.sub(r"_(total|info)$", "", name) for name in names]

    assert len(set(names)) == len(names)
    assert len(set(bare)) == len(bare)


def test_process_labels_are_those_of_the_design() -> None:
    """Dashboards rely on these labels and their order."""
    assert kinds.PROCESS.labels == (
        "pid", "gpu", "uuid", "process_name", "namespace", "pod", "container", "pod_uid", "container_id",
    )  # fmt: skip
