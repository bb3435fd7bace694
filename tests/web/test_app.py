"""The pages, requested in the same way as by the server."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace

import pytest

from gpuledger.catalog.dialects import Choices
from gpuledger.config import parsers
from gpuledger.model import Driver, Learned, Tick
from gpuledger.model.problem import Problem
from gpuledger.web.app import App
from gpuledger.web.http import Request, Response
from tests.builders import booked_tick, process_use
from tests.web.clients import PROMETHEUS


class Pages:
    """An app over a tick the test chooses."""

    def __init__(self, tick: Tick | None, age_s: float | None = 0.1, path: str = "/metrics") -> None:
        self.app = App(lambda: tick, lambda: age_s, interval_s=1.0, telemetry_path=path)

    def get(self, path: str, **headers: str) -> Response:
        """The answer to a GET."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.app(Request("GET", path, {}, named, "HTTP/1.1", keep_alive=True))


def test_metrics_as_prometheus_asks() -> None:
    """OpenMetrics, compressed, with the headers that caches and Prometheus need."""
    answer = Pages(booked_tick(process_use(7))).get("/metrics", accept=PROMETHEUS, accept_encoding="gzip")

    headers = dict(answer.headers)
    assert answer.status == 200
    assert headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert (headers["Content-Encoding"], headers["Vary"]) == ("gzip", "Accept, Accept-Encoding")
    assert isinstance(answer.body, bytes)
    assert gzip.decompress(answer.body).endswith(b"# EOF\n")


def test_metrics_without_an_accept_header() -> None:
    """Plain text without an Accept header."""
    answer = Pages(booked_tick(process_use(7))).get("/metrics", accept="*/*")

    assert dict(answer.headers)["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert isinstance(answer.body, bytes)
    assert b"# EOF" not in answer.body


def test_fingerprints_as_json() -> None:
    """What was learned of each workload, as ratios; 503 before there is a tick."""
    learned = Learned((("process_name", "train"),), 12.0, 0.8150, (("sm", 0.95), ("dram", 0.17)))
    tick = replace(booked_tick(process_use(7)), learned=(learned,))

    answer = Pages(tick).get("/api/v1/fingerprints")

    assert dict(answer.headers)["Content-Type"] == "application/json"
    assert isinstance(answer.body, bytes)
    assert json.loads(answer.body)["fingerprints"] == [{
        "workload": {"process_name": "train"},
        "seconds": 12.0,
        "power_ratio": 0.815,
        "activity": {"sm": 0.95, "dram": 0.17},
    }]  # fmt: skip
    assert Pages(None).get("/api/v1/fingerprints").status == 503


def test_own_telemetry_path() -> None:
    """`--web.telemetry-path` moves the metrics; the old path is gone and the answer names the pages there are."""
    pages = Pages(booked_tick(), path="/gpu")

    missing = pages.get("/metrics")

    assert pages.get("/gpu").status == 200
    assert missing.status == 404
    assert b"/gpu" in bytes(missing.body)  # type: ignore[arg-type]  # a short text
    assert b'href="./gpu"' in bytes(pages.get("/").body)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tick", "age_s", "healthz", "readyz"),
    [
        (None, None, 200, 503),
        (booked_tick(), 0.5, 200, 200),
        (booked_tick(), 60.0, 503, 503),
        (Tick(1, Driver(up=False, problem=Problem("Driver Not Loaded"))), 0.5, 200, 200),
    ],
    ids=["before the first tick", "ticking", "stopped", "no driver"],
)
def test_health(tick: Tick | None, age_s: float | None, healthz: int, readyz: int) -> None:
    """Healthy while the loop ticks, whatever the driver does; ready from the first tick on."""
    pages = Pages(tick, age_s)

    assert (pages.get("/healthz").status, pages.get("/readyz").status) == (healthz, readyz)
    assert pages.get("/metrics").status == (503 if tick is None else 200)


def test_a_loop_that_never_finishes_a_tick_is_not_healthy() -> None:
    """Nor is it killed too early where driver calls may take long."""
    clock = [0.0]
    app = App(lambda: None, lambda: None, interval_s=1.0, driver_timeout_s=20.0, monotonic=lambda: clock[0])
    request = Request("GET", "/healthz", {}, {}, "HTTP/1.1", keep_alive=True)

    statuses = []
    for clock[0] in (0.0, 59.0, 61.0):
        statuses.append(app(request).status)

    assert statuses == [200, 200, 503]


def test_the_page_may_load_nothing_from_elsewhere() -> None:
    """Neither the page nor its files, whatever is in them; its links hold under any prefix."""
    pages = Pages(booked_tick())

    for path in ("/", "/page/page.js", "/page/page.css", "/page/icon.svg"):
        headers = dict(pages.get(path).headers)
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert headers["Referrer-Policy"] == "no-referrer"
    links = re.findall(r'(?:href|src)="([^"#]*)"', body(pages.get("/")))
    assert {"./metrics", "./dcgm/metrics", "./api/v1/"} <= set(links)
    assert all(pages.get("/" + link.removeprefix("./")).status == 200 for link in links if link != "./api/v1/snapshot")


def test_a_hostile_telemetry_path_is_text() -> None:
    """It is set by an administrator, and escaped nevertheless."""
    page = body(Pages(booked_tick(), path='/"><script>').get("/"))

    assert "<script>" not in page
    assert '<a href="./&quot;&gt;&lt;script&gt;">' in page


def test_files_are_not_named_among_the_pages() -> None:
    """A 404 lists pages, not their files."""
    assert "/page/" not in body(Pages(booked_tick()).get("/nothing"))


# -- dialects


def body(answer: Response) -> str:
    """A short one, as text."""
    assert isinstance(answer.body, bytes)
    return answer.body.decode()


def asked(app: App, path: str, *dialects: str, accept: str = PROMETHEUS) -> Response:
    """A request with ?dialect=."""
    query = {"dialect": list(dialects)} if dialects else {}
    return app(Request("GET", path, query, {"accept": accept}, "HTTP/1.1", keep_alive=True))


def app_of(tick: Tick, *dialects: str) -> App:
    """An app with these dialects at its telemetry path."""
    return App(lambda: tick, lambda: 0.1, interval_s=1.0, dialects=dialects or ("native",))


@pytest.mark.parametrize(
    ("path", "dialects", "names"),
    [
        ("/metrics", (), {"gpu_power_watts"}),
        ("/dcgm/metrics", (), {"DCGM_FI_DEV_POWER_USAGE"}),
        ("/gpu/metrics", (), {"dcgm_power_usage"}),
        ("/metrics", ("dcgm",), {"DCGM_FI_DEV_POWER_USAGE"}),
        ("/metrics", ("dcgm1, dcgm",), {"dcgm_power_usage", "DCGM_FI_DEV_POWER_USAGE"}),
        ("/metrics", ("dcgm1", "native"), {"dcgm_power_usage", "gpu_power_watts"}),
    ],
)
def test_each_path_speaks_its_dialect(path: str, dialects: tuple[str, ...], names: set[str]) -> None:
    """At its own path, or requested: one, several in one parameter, or in several parameters."""
    answer = asked(app_of(booked_tick(process_use(7), power_mw=5000)), path, *dialects)

    known = ("gpu_power_watts{", "DCGM_FI_DEV_POWER_USAGE{", "dcgm_power_usage{")
    assert {name.rstrip("{") for name in known if f"\n{name}" in body(answer)} == names


def test_dialects_of_the_telemetry_path() -> None:
    """`--web.dialect` sets it, and a dialect in the request takes precedence."""
    app = app_of(booked_tick(power_mw=5000), "dcgm", "native")

    assert "DCGM_FI_DEV_POWER_USAGE{" in body(asked(app, "/metrics"))
    assert "gpu_power_watts{" in body(asked(app, "/metrics"))
    assert "DCGM_FI_DEV_POWER_USAGE{" not in body(asked(app, "/metrics", "native"))


def test_a_dialect_that_is_not_there() -> None:
    """The answer names those there are."""
    answer = asked(app_of(booked_tick()), "/metrics", "dcgm,klingon")

    assert answer.status == 400
    assert body(answer) == "unknown dialect 'klingon'; use native, dcgm, dcgm1, inference, process, jobstats\n"


@pytest.mark.parametrize(
    ("dialects", "openmetrics"),
    [(("native",), True), (("inference",), True), (("dcgm",), False), (("dcgm1",), False), (("process",), False),
     (("native", "dcgm"), False)],
)  # fmt: skip
def test_openmetrics_only_where_the_names_allow_it(dialects: tuple[str, ...], openmetrics: bool) -> None:
    """A counter without `_total` is not valid in OpenMetrics; such a request gets text."""
    answer = asked(app_of(booked_tick(process_use(7), power_mw=1)), "/metrics", *dialects)

    assert ("openmetrics" in dict(answer.headers)["Content-Type"]) == openmetrics
    assert body(answer).endswith("# EOF\n") == openmetrics


def test_dialects_are_created_on_request() -> None:
    """Equal requests share one rendering, and an unused dialect costs nothing."""
    app = app_of(booked_tick(power_mw=1))
    assert app._sections._sections == {}
    for _ in range(2):
        asked(app, "/dcgm/metrics")
        asked(app, "/metrics", "dcgm")

    assert list(app._sections._sections) == [("dcgm", "both")]


def test_names_of_dcgm_can_be_requested() -> None:
    """`?names=` selects those of dcgm-exporter 4.8, 4.9, or both; anything else is 400."""
    app = app_of(booked_tick(power_mw=1000))

    def names(path: str, query: dict[str, list[str]]) -> tuple[int, bool, bool]:
        response = app(Request("GET", path, query, {}, "HTTP/1.1", keep_alive=True))
        body = response.body if isinstance(response.body, bytes) else b"".join(response.body)
        return response.status, b"DCGM_FI_DEV_POWER_USAGE{" in body, b"DCGM_FI_DEV_BOARD_POWER_WATTS{" in body

    assert names("/dcgm/metrics", {}) == (200, True, True)
    assert names("/dcgm/metrics", {"names": ["old"]}) == (200, True, False)
    assert names("/metrics", {"dialect": ["dcgm"], "names": ["new"]}) == (200, False, True)
    assert names("/dcgm/metrics", {"names": ["newest"]}) == (400, False, False)


# -- groups of metrics


def grouped(**query: list[str]) -> Response:
    """A request of Prometheus with `params`; keyword arguments without the brackets."""
    app = app_of(booked_tick(process_use(7), power_mw=5000))
    return app(
        Request("GET", "/metrics", {f"{key}[]": names for key, names in query.items()}, {}, "HTTP/1.1", keep_alive=True)
    )


def test_collect_selects_groups() -> None:
    """Only their families, in the order of the catalog."""
    shown = body(grouped(collect=["process", "gpu"]))

    assert "gpu_power_watts" in shown
    assert "gpu_process_active" in shown
    assert "gpuledger_up" not in shown
    assert shown.index("gpu_power_watts") < shown.index("gpu_process_active")


def test_exclude_leaves_groups_out() -> None:
    """All other groups are there."""
    shown = body(grouped(exclude=["process", "exporter"]))

    assert "gpu_power_watts" in shown
    assert "gpu_process_active" not in shown
    assert "gpuledger_up" not in shown


def test_optional_groups_are_exposed_only_on_request() -> None:
    """Without its flag, a group is absent, also from a scrape that excludes others, unless the scrape selects it."""
    tick = booked_tick(process_use(7), performance_state=2)
    app = App(lambda: tick, lambda: 0.1, interval_s=1.0, choices=Choices(optional=()))
    enabled = App(lambda: tick, lambda: 0.1, interval_s=1.0, choices=Choices(optional=("hardware",)))

    def shown(app: App, **query: list[str]) -> str:
        return body(app(Request("GET", "/metrics", {f"{key}[]": names for key, names in query.items()}, {}, "HTTP/1.1",
                                keep_alive=True)))  # fmt: skip

    assert "gpu_process_active" in shown(app)
    assert "gpu_performance_state" not in shown(app)
    assert "gpu_performance_state" not in shown(app, exclude=["process"])
    assert "gpu_performance_state" in shown(app, collect=["hardware"])
    assert "gpu_performance_state" in shown(enabled)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"collect": ["cpu"]}, "unknown group 'cpu'; use exporter, gpu"),
        ({"collect": ["gpu"], "exclude": ["mig"]}, "cannot be combined"),
    ],
)
def test_groups_that_cannot_be_selected(query: dict[str, list[str]], message: str) -> None:
    """The answer names the mistake and what there is."""
    answer = grouped(**query)

    assert answer.status == 400
    assert message in body(answer)


def test_no_path_of_another_page_can_be_the_telemetry_path() -> None:
    """The setting refuses the path of every page, so that none of them disappears behind the metrics."""
    used = set(Pages(None).app._pages) - {"/", "/metrics"}

    assert len(used) > 15
    for path in (*used, "/sd", "/api/v1/anything"):
        with pytest.raises(ValueError, match="already in use"):
            parsers.url_path(path)
    assert parsers.url_path("/node/metrics") == "/node/metrics"
