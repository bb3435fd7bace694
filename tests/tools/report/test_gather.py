"""Queries in pieces that a server accepts, and answers that a report refuses."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from gpuledger.errors import PrometheusError
from gpuledger.tools.prometheus.answer import RangeSeries, RangeVector
from gpuledger.tools.report.gather import OVERWRITTEN, Gatherer, Totals
from gpuledger.tools.report.queries import GROUPINGS, Part, Quantity
from gpuledger.tools.report.span import Span

SPAN = Span(0, 250_000, 1000)
WENT_ON = "sum by (namespace) (clamp_min(topk by (uuid, container_id, method) (1, max_over_time(container_gpu_energy_"
BY = GROUPINGS["namespace"]


class Server:
    """A server with a joule per second for one namespace, which answers at most `most` points per query."""

    def __init__(self, most: int = 1000, present: Callable[[int], bool] = lambda _: True, **wrong: object) -> None:
        self.most, self.present, self.wrong = most, present, wrong
        self.asked: list[tuple[str, float, float]] = []

    def query_range(self, promql: str, first_s: float, last_s: float, step_s: float) -> RangeVector:
        """A range query."""
        moments = [first_s + n * step_s for n in range(round((last_s - first_s) / step_s) + 1)]
        if len(moments) > self.most:
            raise PrometheusError("query processing would load too many samples into memory", kind="query")
        self.asked.append((promql, first_s, last_s))
        if promql.startswith("count(max") and " unless " not in promql:
            return RangeVector((RangeSeries({}, [(moment, 1.0) for moment in moments if self.present(round(moment))]),))
        if not promql.startswith(WENT_ON):
            return RangeVector(())
        return RangeVector((RangeSeries({"namespace": "ml"}, [(moment, 1.0) for moment in moments]),), **self.wrong)  # type: ignore[arg-type]


def gathered(server: Server, **more: bool) -> tuple[Totals, list[str]]:
    """The totals and the notes."""
    gatherer = Gatherer(server.query_range, **more)  # type: ignore[arg-type]
    return gatherer.gather(BY, SPAN, 1000), list(gatherer.notes)


@pytest.mark.parametrize("most", [1000, 100, 99, 7, 1])
def test_pieces_are_as_small_as_the_server_wants(most: int) -> None:
    """Each point is queried once, in order, and the sum is the same."""
    server = Server(most)
    tally, notes = gathered(server)

    assert tally.amounts[Part.GROUP]["ml",][Quantity.ENERGY] == 250
    moments = [(first, last) for promql, first, last in server.asked if promql.startswith(WENT_ON)]
    assert (moments[0][0], moments[-1][1]) == (1.0, 250.0)
    assert all(last + 1 == first for (_, last), (first, _) in pairwise(moments))
    assert list(tally.energy_by_cell[Part.GROUP]) == [1.0] * 250
    assert notes == []


def test_a_server_that_refuses_even_one_cell_is_an_error() -> None:
    """The error has the server's message and a fix."""
    with pytest.raises(PrometheusError, match=r"too many samples.*; a shorter --step queries less at a time"):
        gathered(Server(0))


@pytest.mark.parametrize("reason", ["login", "unreachable", "tls", "http", "format"])
def test_errors_that_smaller_pieces_do_not_avoid_are_not_retried(reason: str) -> None:
    """One query, one failure."""

    class Failing(Server):
        def query_range(self, promql: str, first_s: float, last_s: float, step_s: float) -> RangeVector:
            super().query_range(promql, first_s, last_s, step_s)
            raise PrometheusError(reason, "no")

    server = Failing()
    with pytest.raises(PrometheusError, match="no"):
        gathered(server)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"warnings": ("store is down",)}, "Prometheus warns: store is down"),
        ({"dropped": 3}, "3 values of container_gpu_energy_joules_total are NaN, infinite or above 1e+24"),
    ],
)
def test_partial_answers(wrong: dict[str, object], says: str) -> None:
    """An error, or a note with --allow-partial."""
    with pytest.raises(PrometheusError) as caught:
        gathered(Server(**wrong))  # type: ignore[arg-type]
    tally, notes = gathered(Server(**wrong), partial=True)  # type: ignore[arg-type]

    assert str(caught.value) == f"{says}; the report would be wrong; --allow-partial creates it"
    assert notes == [says]
    assert tally.amounts[Part.GROUP]["ml",][Quantity.ENERGY] == 250


@pytest.mark.parametrize("off_s", [-1.0, -0.4, 0.4, 1e6, float("nan")])
def test_other_timestamps_than_those_of_the_query(off_s: float) -> None:
    """Query frontends may align a range with its step; no joule is put into another cell."""

    class Aligning(Server):
        def query_range(self, promql: str, first_s: float, last_s: float, step_s: float) -> RangeVector:
            found = super().query_range(promql, first_s, last_s, step_s).series
            return RangeVector(
                tuple(RangeSeries(c.labels, [(when + off_s, value) for when, value in c.points]) for c in found)
            )

    with pytest.raises(PrometheusError, match="other timestamps than the query"):
        gathered(Aligning())


def test_names_that_prometheus_replaced() -> None:
    """All would be the exporter's: no report by namespace, but one by node, where names do not matter."""

    class Renaming(Server):
        def query_range(self, promql: str, first_s: float, last_s: float, step_s: float) -> RangeVector:
            found = super().query_range(promql, first_s, last_s, step_s)
            return (
                RangeVector((RangeSeries({"exported_namespace": "ml"}, [(last_s, 2.0)]),))
                if "exported_namespace" in promql
                else found
            )

    with pytest.raises(PrometheusError, match=r"without honor_labels: true.*; --allow-partial creates it"):
        gathered(Renaming())
    assert gathered(Renaming(), partial=True)[1] == [OVERWRITTEN]
    Gatherer(Renaming().query_range).gather(GROUPINGS["node"], SPAN, 1000)


def test_no_data_at_all() -> None:
    """A range before the data began, or another Prometheus."""
    with pytest.raises(PrometheusError, match="no metrics of gpuledger from 1970-01-01T00:00:00Z to 1970-01-01T00:04"):
        gathered(Server(present=lambda _: False))


def test_missing_data_are_noted() -> None:
    """Before, after and in between; a chunk without any is not queried further."""
    server = Server(present=lambda moment: 120 <= moment <= 150 or 160 <= moment < 200)
    _, notes = gathered(server)

    assert notes == ["no data before 1970-01-01T00:01:59Z", "no data after 1970-01-01T00:03:19Z"]
    assert {(first, last) for promql, first, last in server.asked if promql.startswith(WENT_ON)} == {(101.0, 200.0)}


@pytest.mark.parametrize(("minutes", "noted"), [(4, False), (5, True)])
def test_gaps_between_scrapes_are_noted_from_the_lookback_on(minutes: int, *, noted: bool) -> None:
    """Cells that are shorter than the scrape interval are often empty, and nothing is lost."""
    server = Server(present=lambda moment: not 600 < moment <= 600 + 60 * minutes)
    gatherer = Gatherer(server.query_range)
    gatherer.gather(BY, Span(0, 3_600_000, 60_000), 1000)

    assert list(gatherer.notes) == (["no data of any GPU in 8.3 % of the time"] if noted else [])


def test_progress_goes_from_0_to_1() -> None:
    """The fraction never falls."""
    fractions: list[float] = []
    Gatherer(Server().query_range, progress=fractions.append).gather(BY, SPAN, 1000)

    assert fractions == sorted(fractions)
    assert 0 <= fractions[0] < 0.1
    assert 0.9 < fractions[-1] < 1
