"""Bodies: rendered once per tick, whatever is requested; metrics of another exporter after ours."""

from __future__ import annotations

import gzip
import itertools
import re
from collections.abc import Iterable
from dataclasses import replace

import pytest

from gpuledger.catalog import GROUPS
from gpuledger.catalog.dialects import DIALECTS
from gpuledger.model import Health, Tick, Upstream
from gpuledger.model.problem import Problem
from gpuledger.web.app import App
from gpuledger.web.bodies import Families, Section, UpstreamBodies, response
from gpuledger.web.http import Request, Response, parse_head
from gpuledger.web.negotiate import Format
from gpuledger.web.parts import Part, Parts
from gpuledger.web.text import Renderer
from tests.builders import DRIVER, booked_tick, process_use
from tests.web.clients import PROMETHEUS


class Counting(Renderer):
    """Counts how often it renders."""

    calls = 0

    def families(self, *arguments):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN201 - as in Renderer
        """As the real one."""
        self.calls += 1
        return super().families(*arguments)


def test_one_rendering_a_tick_and_format() -> None:
    """Two Prometheis cost one rendering, with gzip or without; a new tick or another format costs another."""
    renderer = Counting()
    parts = Parts()
    section = Section(renderer, parts)
    tick = booked_tick(process_use(7))

    def get(moment: Tick, **headers: str) -> bytes:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request("GET", "/", {}, named, "HTTP/1.1", keep_alive=True)
        return whole(response(request, moment, [section], parts).body)

    plain = {get(tick) for _ in range(3)}
    packed = get(tick, accept_encoding="gzip")
    get(tick, accept=PROMETHEUS)
    get(replace(tick, time_ns=5))

    assert renderer.calls == 3
    assert {gzip.decompress(packed)} == plain == {b"".join(Renderer().chunks(tick, Format.TEXT))}


@pytest.mark.parametrize("key", ["collect[]", "exclude[]", "dialect"])
def test_combinations_cost_no_renderings(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever combinations of groups and dialects clients request, a tick is rendered once per group and dialect."""
    created: list[Part] = []
    real = Parts.create

    def create(parts: Parts, chunks: Iterable[bytes]) -> Part:
        created.append(real(parts, chunks))
        return created[-1]

    monkeypatch.setattr(Parts, "create", create)
    tick = booked_tick(process_use(7), power_mw=5000)
    app = App(lambda: tick, lambda: 0.1, interval_s=1.0)
    names = list(DIALECTS if key == "dialect" else GROUPS)
    for count in range(1, 4):
        for chosen in itertools.combinations(names, count):
            for accept in ({}, {"accept": PROMETHEUS}):
                answer = app(Request("GET", "/metrics", {key: list(chosen)}, accept, "HTTP/1.1", keep_alive=True))
                types = re.findall(rb"^# TYPE (\S+)", whole(answer.body), re.MULTILINE)
                assert answer.status == 200
                assert len(types) == len(set(types))

    assert len(created) <= 2 * (len(GROUPS) + 2 * len(DIALECTS))


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
    """Always text, compressed on request; and not in our own metrics."""
    plain = get("/gpu/metrics", THEIRS, booked_tick(), accept=PROMETHEUS)
    small = get("/gpu/metrics", THEIRS, booked_tick(), accept_encoding="gzip")

    assert whole(plain.body) == b"# TYPE DCGM_A gauge\nDCGM_A 1\ngpuledger_up 7\n"
    assert dict(plain.headers)["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert dict(small.headers)["Content-Encoding"] == "gzip"
    assert gzip.decompress(whole(small.body)) == whole(plain.body)
    assert b"DCGM_A" not in whole(get("/metrics", THEIRS, booked_tick()).body)


def test_in_our_metrics_on_request() -> None:
    """At the end, as text also for clients that prefer OpenMetrics, without names of our own metrics."""
    answer = get("/metrics", THEIRS, booked_tick(), in_metrics=True, accept=PROMETHEUS)

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

    assert (answer.status, answer.body) == (503, b"no metrics to pass on: no whole answer\n")
    assert get("/gpu/metrics", None, None).status == 503
    assert get("/metrics", None, tick, in_metrics=True).status == 200


def test_without_an_upstream_the_page_speaks_the_older_names() -> None:
    """The path was the pod exporter's. An upstream has it also while there is nothing to pass on."""
    tick = booked_tick(power_mw=5000)
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
    tick = booked_tick(power_mw=5000)
    app = App(
        lambda: tick, lambda: 0.1, interval_s=1.0, dialects=dialects, upstream=lambda: theirs, upstream_in_metrics=True
    )

    answer = app(Request("GET", "/metrics", {}, {"accept": PROMETHEUS}, "HTTP/1.1", keep_alive=True))

    types = re.findall(rb"^# TYPE (\S+)", whole(answer.body), re.MULTILINE)
    assert len(types) == len(set(types))
    assert b"DCGM_FI_DEV_POWER_USAGE 9" not in whole(answer.body)
    assert whole(answer.body).count(b"\nDCGM_A 1\n") == 1


def test_a_requested_dialect_has_no_metrics_of_the_upstream() -> None:
    """And so do the pages of dialects: only what the telemetry path says by itself has more at its end."""
    tick = booked_tick(power_mw=5000)
    app = App(lambda: tick, lambda: 0.1, interval_s=1.0, upstream=lambda: THEIRS, upstream_in_metrics=True)

    asked = app(
        Request("GET", "/metrics", {"dialect": ["native"]}, {"accept": PROMETHEUS}, "HTTP/1.1", keep_alive=True)
    )
    page = app(Request("GET", "/dcgm/metrics", {}, {}, "HTTP/1.1", keep_alive=True))

    assert b"DCGM_A" not in whole(asked.body) + whole(page.body)
    assert "openmetrics" in dict(asked.headers)["Content-Type"]


def test_the_landing_page_names_it() -> None:
    """The link to the page names the exporter of its metrics."""
    page = whole(get("/", THEIRS, booked_tick()).body)

    assert b'<a href="./gpu/metrics">Metrics of the local dcgm-exporter, with pods</a>' in page


def test_compressed_once_an_answer() -> None:
    """Not once a scrape; a new answer is compressed anew."""
    held: list[Families | None] = [THEIRS]
    bodies_ = UpstreamBodies(lambda: held[0], Parts())
    request = parse_head(b"GET / HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n")
    assert bodies_.response(request) is not None
    first, again = bodies_.without(()), bodies_.without(())

    assert again[0] is first[0]
    held[0] = ((b"b", b"b 2\n"),)
    changed = bodies_.response(request)
    assert changed is not None
    assert gzip.decompress(whole(changed.body)) == b"b 2\n"
    held[0] = None
    assert bodies_.response(request) is None
