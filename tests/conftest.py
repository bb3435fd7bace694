"""For all tests: a busy machine is no failure, and neither is a missing component."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests import components

settings.register_profile(
    "patient", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("random", settings.get_profile("patient"), derandomize=False, max_examples=500)
settings.load_profile("patient")


def pytest_collection_finish() -> None:
    """Collect garbage less often, and not among the tests: that takes a tenth of their time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Workers send reports as UTF-8, which hostile names in logs may not be."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out a test whose components are missing."""
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            if not components.is_here(name):
                components.leave_out(name)
