"""Somebody else's metrics on our pages."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable

import pytest

from gpuledger.catalog.dialects import DIALECTS
from gpuledger.export.app import App
from gpuledger.export.http import Request, Response
from gpuledger.export.passed import Families, Passed
from gpuledger.model import Health, Tick, Upstream
from gpuledger.problem import Problem
from tests.export.test_app import PROMETHEUS
from tests.export.test_text import DRIVER, tick_with

THEIRS: Families = ((b"DCGM_A", b"# TYPE DCGM_A gauge\nDCGM_A 1\n"), (b"gpuledger_up", b"gpuledger_up 7\n"))


def whole(body: bytes | Iterable[bytes]) -> bytes:
    """However it is given."""
    return body if isinstance(body, bytes) else b"".join(body)


def get(
    path: str, families: Families | None, tick: Tick | None, *, in_metrics: bool = False, **headers: str
) -> Response:
    """A page of an app."""
    app = App(lambda: tick, lambda: 0.1, interval_s=1.0, upstream=lambda: families, upstream_in_metrics=in_metrics)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return app(Request("GET", path, {}, named, "HTTP/1.1", keep_alive=True))


def test_a_page_of_its_own() -> None:
    """Always text, whatever is asked for, compressed on request; and not in our metrics."""
    plain = get("/gpu/metrics", THEIRS, tick_with(), accept=PROMETHEUS)
    small = get("/gpu/metrics", THEIRS, tick_with(), accept_encoding="gzip")

    assert whole(plain.body) == b"# TYPE DCGM_A gauge\nDCGM_A 1\ngpuledger_up 7\n"
    assert dict(plain.headers)["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert dict(small.headers)["Content-Encoding"] == "gzip"
    assert gzip.decompress(whole(small.body)) == whole(plain.body)
    assert b"DCGM_A" not in whole(get("/metrics", THEIRS, tick_with()).body)


def test_in_our_metrics_on_request() -> None:
    """At the end, as text also for who prefers OpenMetrics, without a name that is ours."""
    answer = get("/metrics", THEIRS, tick_with(), in_metrics=True, accept=PROMETHEUS)

    assert dict(answer.headers)["Content-Type"].startswith("text/plain")
    assert whole(answer.body).endswith(b"# TYPE DCGM_A gauge\nDCGM_A 1\n")
    assert b"gpuledger_up 1\n" in whole(answer.body)
    assert b"gpuledger_up 7" not in whole(answer.body)


def test_nothing_to_pass_on() -> None:
    """503 with the reason, so that Prometheus shows the target as down; our own metrics go on."""
    state = Upstream(
        up=False,
        problem=Problem("no whole answer"),
        last_success_ns=0,
        duration_ns=0,
        series=0,
        with_pod=0,
        duplicates=0,
    )
    tick = Tick(1, DRIVER, health=Health(upstream=state))

    answer = get("/gpu/metrics", None, tick)

    assert (answer.status, answer.body) == (503, b"there is nothing to pass on: no whole answer\n")
    assert get("/gpu/metrics", None, None).status == 503
    assert get("/metrics", None, tick, in_metrics=True).status == 200


def test_without_an_upstream_the_page_speaks_the_older_names() -> None:
    """The path was the pod exporter's. An upstream has it also while there is nothing to pass on."""
    tick = tick_with(power_mw=5000)
    app = App(lambda: tick, lambda: 0.1, interval_s=1.0)

    answer = app(Request("GET", "/gpu/metrics", {}, {}, "HTTP/1.1", keep_alive=True))

    assert b"\ndcgm_power_usage{" in whole(answer.body)
    assert get("/gpu/metrics", None, tick).status == 503


@pytest.mark.parametrize("dialects", [("dcgm",), ("native", "dcgm"), tuple(DIALECTS)])
def test_no_family_twice_in_any_dialect(dialects: tuple[str, ...]) -> None:
    """What the telemetry path speaks goes before what is passed on under the same name."""
    theirs = (
        *THEIRS,
        (b"DCGM_FI_DEV_POWER_USAGE", b"# TYPE DCGM_FI_DEV_POWER_USAGE gauge\nDCGM_FI_DEV_POWER_USAGE 9\n"),
    )
    tick = tick_with(power_mw=5000)
    app = App(
        lambda: tick, lambda: 0.1, interval_s=1.0, dialects=dialects, upstream=lambda: theirs, upstream_in_metrics=True
    )

    answer = app(Request("GET", "/metrics", {}, {"accept": PROMETHEUS}, "HTTP/1.1", keep_alive=True))

    types = re.findall(rb"^# TYPE (\S+)", whole(answer.body), re.MULTILINE)
    assert len(types) == len(set(types))
    assert b"DCGM_FI_DEV_POWER_USAGE 9" not in whole(answer.body)
    assert whole(answer.body).count(b"\nDCGM_A 1\n") == 1


def test_a_dialect_that_is_asked_for_stands_alone() -> None:
    """And so do the pages of dialects: only what the telemetry path says by itself has more at its end."""
    tick = tick_with(power_mw=5000)
    app = App(lambda: tick, lambda: 0.1, interval_s=1.0, upstream=lambda: THEIRS, upstream_in_metrics=True)

    asked = app(
        Request("GET", "/metrics", {"dialect": ["native"]}, {"accept": PROMETHEUS}, "HTTP/1.1", keep_alive=True)
    )
    page = app(Request("GET", "/dcgm/metrics", {}, {}, "HTTP/1.1", keep_alive=True))

    assert b"DCGM_A" not in whole(asked.body) + whole(page.body)
    assert "openmetrics" in dict(asked.headers)["Content-Type"]


def test_the_landing_page_names_it() -> None:
    """The link to the page says whose metrics are there."""
    page = whole(get("/", THEIRS, tick_with()).body)

    assert b'<a href="./gpu/metrics">the dcgm-exporter beside us, with pods</a>' in page


def test_compressed_once_an_answer() -> None:
    """Not once a scrape; a new answer is compressed anew."""
    held: list[Families | None] = [THEIRS]
    passed = Passed(lambda: held[0])
    first = passed.get("gzip")

    assert passed.get("gzip") is first
    held[0] = ((b"b", b"b 2\n"),)
    assert gzip.decompress(whole(passed.get("gzip") or b"")) == b"b 2\n"
    held[0] = None
    assert passed.get("gzip") is None
