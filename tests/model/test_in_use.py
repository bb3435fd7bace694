"""The rules of GPUs in use, and the providers of allocations."""

from __future__ import annotations

import re

import pytest

from gpuledger.model import ProviderHealth
from gpuledger.model.in_use import ALLOCATION_PROVIDERS, RULES, in_use
from gpuledger.model.owners import PROVIDERS


@pytest.mark.parametrize(
    ("utilization", "resident", "allocated", "shares"),
    [
        (0.0, 0.0, False, (0.0, 0.0, 0.0)),
        (35.0, 0.0, False, (1.0, 0.0, 0.0)),
        (0.0, 0.25, True, (0.0, 1.0, 0.25)),
    ],
)
def test_each_rule_counts_its_own_evidence(
    utilization: float, resident: float, allocated: bool, shares: tuple[float, ...]
) -> None:
    """Busy needs utilization, allocated an allocation; resident is the share of time with a process."""
    assert tuple(in_use(rule, utilization, resident, allocated=allocated) for rule in RULES) == shares


@pytest.mark.parametrize(
    ("name", "kind"), [("docker", "docker"), ("docker-2", "docker"), ("podresources", "podresources")]
)
def test_numbered_providers_have_the_kind_of_the_first(name: str, kind: str) -> None:
    """A second Docker daemon reports what the first one does; the pattern for PromQL agrees."""
    health = ProviderHealth(name, up=True, problem=None, since_ns=1, last_success_ns=1, fetches=1, failures=0)
    assert health.kind == PROVIDERS[kind]
    assert re.fullmatch(ALLOCATION_PROVIDERS, name)


@pytest.mark.parametrize("name", ["cri", "kubernetes", "dockerfile", "docker-a"])
def test_other_providers_do_not_match_the_pattern(name: str) -> None:
    """PromQL anchors the pattern at both ends."""
    assert not re.fullmatch(ALLOCATION_PROVIDERS, name)
