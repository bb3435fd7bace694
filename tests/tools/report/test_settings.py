"""The settings of a report, and values that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.config import load as config
from gpuledger.errors import ConfigError
from gpuledger.tools.report.rates import Rates
from gpuledger.tools.report.settings import ReportSettings
from gpuledger.tools.report.span import parse_moment

NOW_MS = parse_moment("2026-11-15T12:00:00.250")


def settings(**flags: str) -> ReportSettings:
    """From flags."""
    given = {name.strip("_").replace("_", "-"): [text] for name, text in flags.items()}
    return config.load_as(ReportSettings, given, {})


@pytest.mark.parametrize(
    ("flags", "begin", "end", "step_s"),
    [
        ({}, "2026-11-14T12:00:00", "2026-11-15T12:00:00", 300),
        ({"since": "7d"}, "2026-11-08T12:00:00", "2026-11-15T12:00:00", 300),
        ({"from_": "2026-11-01", "to": "2026-11-02"}, "2026-11-01", "2026-11-02", 300),
        ({"since": "1h", "to": "2026-11-02"}, "2026-11-01T23:00", "2026-11-02", 60),
        ({"since": "10s"}, "2026-11-15T11:59:50", "2026-11-15T12:00:00", 10),
        ({"month": "2026-10"}, "2026-10-01", "2026-11-01", 900),
        ({"month": "2026-10", "time_zone": "Europe/Berlin"}, "2026-09-30T22:00", "2026-10-31T23:00", 900),
        ({"month": "2025-12", "time_zone": "America/New_York"}, "2025-12-01T05:00", "2026-01-01T05:00", 900),
        ({"month": "2026-11"}, "2026-11-01", "2026-11-15T12:00:00", 600),
        (
            {"from_": "2026-11-01", "to": "2026-11-02T01:00Z", "time_zone": "Europe/Berlin"},
            "2026-10-31T23:00",
            "2026-11-02T01:00",
            300,
        ),
        ({"since": "30d", "step": "1d"}, "2026-10-16T12:00:00", "2026-11-15T12:00:00", 86400),
    ],
)
def test_times(flags: dict[str, str], begin: str, end: str, step_s: int) -> None:
    """Back from now, to whole seconds, or between two moments."""
    span = settings(**flags).span(NOW_MS)

    assert (span.begin_ms, span.end_ms) == (parse_moment(begin), parse_moment(end))
    assert span.step_ms == step_s * 1000


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"since": "1h", "from_": "2026-11-01"}, "--since and --from both set"),
        ({"to": "2026-12-01"}, "is in the future"),
        ({"from_": "2026-11-14", "to": "2026-11-13"}, "is not before the end of the span"),
        ({"since": "30d", "step": "1s"}, "--step: 1s is too short"),
        ({"month": "2026-10", "since": "1h"}, "use --month alone"),
        ({"month": "2026-12"}, "--month: '2026-12' has not begun"),
    ],
)
def test_times_that_cannot_be(flags: dict[str, str], says: str) -> None:
    """One line each."""
    with pytest.raises(ConfigError, match=says):
        settings(**flags).span(NOW_MS)


@pytest.mark.parametrize(
    ("flag", "text"),
    [("price", "-1"), ("price", "nan"), ("price", "0,30"), ("carbon", "1e999"), ("pue", "0.9"), ("pue", ""),
     ("by", "gpu"), ("since", "7"), ("from_", "soon"), ("currency", "a long word"), ("top", "-1"), ("step", "1ms"),
     ("format", "pdf"), ("month", "2026-13"), ("month", "October"), ("time_zone", "Mars/Base"), ("idle", "hide"),
     ("price_model", "H200"), ("price_model", "=3"), ("price_model", "H200=cheap"), ("by", "label:"),
     ("by", 'label:a"b'), ("gpu_hours", "all")],
)  # fmt: skip
def test_values_that_cannot_be(flag: str, text: str) -> None:
    """Each names its flag."""
    with pytest.raises(ConfigError, match=f"--{flag.strip('_').replace('_', '-')}: "):
        settings(**{flag: text})


def test_prices() -> None:
    """What is not given is not known; what is, is exact."""
    given = settings(price="0.30", currency="EUR", carbon="250", pue="1.3", price_gpu_hour="2", gpu_hours="resident")

    assert given.prices() == Rates(0.3, 2.0, "EUR", "resident", 250.0, 1.3)
    assert settings().prices() == Rates()
    assert settings(price_model="NVIDIA H200 = 2.5").prices().models == {"NVIDIA H200": 2.5}


def test_a_month_that_is_not_over() -> None:
    """The report has a note."""
    for month, over in (("2026-10", True), ("2026-11", False), ("", True)):
        given = settings(month=month)
        assert given.is_month_over(given.span(NOW_MS)) is over


@pytest.mark.parametrize("flags", [{}, {"price": "0.30", "from_": "2026-11-01", "top": "5", "step": "1h"}])
def test_settings_printed_and_read_again_are_the_same(tmp_path: Path, flags: dict[str, str]) -> None:
    """Rates too, which are no durations, and `from`, which is a word of Python."""
    path = tmp_path / "report.yml"
    path.write_text(config.dump(settings(**flags)))

    again = config.load_as(ReportSettings, {"config.file": [str(path)]}, {})
    assert again == settings(**flags)


@pytest.mark.parametrize(
    ("flags", "form"),
    [({}, "table"), ({"output": "a.csv"}, "csv"), ({"output": "a.JSON"}, "json"), ({"output": "a.html"}, "html"),
     ({"output": "a.txt"}, "table"), ({"output": "a", "format": "csv"}, "csv"), ({"format": "html"}, "html")],
)  # fmt: skip
def test_the_suffix_decides_the_format(flags: dict[str, str], form: str) -> None:
    """Unless --format does."""
    assert settings(**flags).output_format() == form


def test_a_suffix_of_no_format() -> None:
    """It is an error."""
    with pytest.raises(ConfigError, match="set --format"):
        settings(output="report.pdf").output_format()
