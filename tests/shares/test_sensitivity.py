"""The table of what each constant of the estimate changes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType

import pytest
from bench import sensitivity
from bench.sensitivity import Constant, Row, changed, scaled

MADE = "gpuledger.shares_made_up"


class Package(ModuleType):
    """Two modules: one defines constants, the other imports one of them by name."""

    RATE: float
    SPANS: tuple[float, ...]
    MOST: int


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Package:
    """The modules, imported for the time of a test."""
    made, other = Package(MADE), ModuleType(f"{MADE}_other")
    made.RATE, made.SPANS, made.MOST = 0.3, (1.0, 12.0), 5
    vars(made).update(TUNED=("RATE", "SPANS", "MOST"), __path__=[])
    vars(other)["RATE"] = made.RATE
    monkeypatch.setitem(sys.modules, MADE, made)
    monkeypatch.setitem(sys.modules, f"{MADE}_other", other)
    return made


def test_constants_are_those_that_a_module_names(package: Package) -> None:
    """In TUNED, of the package itself here."""
    assert sensitivity.tuned(package) == [Constant(MADE, "RATE"), Constant(MADE, "SPANS"), Constant(MADE, "MOST")]


def test_numbers_keep_their_type() -> None:
    """A count of 1 is not halved to none; all numbers of a tuple are scaled."""
    assert scaled(0.3, 0.5) == 0.15
    assert scaled((1.0, 12), 2.0) == (2.0, 24)
    assert [scaled(count, 0.5) for count in (5, 1, 0)] == [2, 1, 0]
    assert isinstance(scaled(5, 2.0), int)


def test_a_constant_is_changed_wherever_it_was_imported(package: Package) -> None:
    """And is as before afterwards, also after an error."""
    other, seen = sys.modules[f"{MADE}_other"], []

    def fail() -> None:
        with changed(Constant(MADE, "RATE"), 0.6):
            seen.append((package.RATE, vars(other)["RATE"]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert seen == [(0.6, 0.6)]
    assert (package.RATE, vars(other)["RATE"]) == (0.3, 0.3)


def test_the_table_has_differences(package: Package, capsys: pytest.CaptureFixture[str]) -> None:
    """Each constant halved and doubled, against the errors with none changed; no number where nothing changes."""

    def measured() -> Mapping[str, float]:
        return {"natural": package.RATE / 10, "steady": 0.06 + 0.001 * package.SPANS[1]}

    assert sensitivity.main([f"{MADE}:RATE", f"{MADE}:SPANS"], measured) == 0
    head, _, *lines = capsys.readouterr().out.splitlines()

    assert head == "| constant | value | | natural | steady |"
    assert lines == [
        "| as it is | | | 0.030 | 0.072 |",
        "| `shares_made_up.RATE` | 0.15 | halved | -0.015 |  |",
        "| `shares_made_up.RATE` | 0.6 | doubled | +0.030 |  |",
        "| `shares_made_up.SPANS` | 0.5, 6 | halved |  | -0.006 |",
        "| `shares_made_up.SPANS` | 2, 24 | doubled |  | +0.012 |",
    ]


def test_what_cannot_be_scaled_is_refused(package: Package, capsys: pytest.CaptureFixture[str]) -> None:
    """Text, an empty tuple, a name that does not exist, or a module that does not."""
    vars(package).update(TEXT="a", NONE=())
    for constant in (f"{MADE}:TEXT", f"{MADE}:NONE", f"{MADE}:MISSING", "gpuledger.nowhere:RATE"):
        with pytest.raises(SystemExit):
            sensitivity.main([constant])
        assert "argument MODULE:NAME" in capsys.readouterr().err


def test_every_regime_is_measured() -> None:
    """The figures are those of the accuracy table, in less time."""
    means = sensitivity.measure()

    assert set(means) == {"natural", "natural known", "steady", "known", "mps", "mig", "without GPM"}
    assert all(0 < mean < 0.5 for mean in means.values())
    assert sensitivity.line(Row(Constant("a.b", "C"), 1, "halved", means), means).count("+") == 0
