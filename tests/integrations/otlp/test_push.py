"""The push to a collector: what arrives, and what happens if it is down, slow or refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.config.load import load
from gpuledger.errors import ConfigError
from gpuledger.integrations.otlp import push as module
from gpuledger.integrations.otlp.push import Push, create_push, pairs
from tests.builders import pod_tick
from tests.integrations.otlp.collector import PARTIAL, collector
from tests.waiting import free_port


class Clock:
    """Monotonic time that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        """The time in seconds."""
        return self.now


def made(url: str, clock: Clock, **flags: str) -> Push:
    """A push that is stepped by the test."""
    texts = {f"otlp.{name.replace('_', '-')}": [text] for name, text in {"endpoint": url, **flags}.items()}
    made_push = create_push(load(texts, {}), "node1")
    assert made_push is not None
    return Push(made_push._target, 0.0, monotonic=clock, now_ns=lambda: 5)


def send(push: Push, second: int) -> None:
    """A tick, and one step of the thread."""
    push.publish(pod_tick(second, 100 * second))
    push.step()


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_a_tick_arrives(compression: str) -> None:
    """Once, with the headers and the resource of the configuration."""
    with collector() as server:
        push = made(server.url, Clock(), compression=compression, headers="x-scope=a%20b",
                    resource_attributes="team=ml,service.name=mine")  # fmt: skip
        send(push, 3)
        push.step()

    (received,) = server.received
    assert (received.path, received.headers["x-scope"]) == ("/v1/metrics", "a b")
    (of_resource,) = received.message().resource_metrics
    resource = {pair.key: pair.value.string_value for pair in of_resource.resource.attributes}
    assert (resource["service.name"], resource["team"], resource["host.name"]) == ("mine", "ml", "node1")
    (energy,) = [metric for metric in received.metrics() if metric.name == "hw.energy"]
    (point,) = energy.sum.data_points
    assert (energy.sum.is_monotonic, point.as_double, point.time_unix_nano) == (True, 300.0, 3 * 10**9)
    assert push.health.up
    assert push.health.sent_points == len(received.values())


def test_a_collector_that_is_down() -> None:
    """Requests wait, with a backoff; when it is there, each arrives once and in order."""
    clock, port = Clock(), free_port()
    push = made(f"http://127.0.0.1:{port}", clock)
    for second in (1, 2, 3):
        send(push, second)
    assert (push.health.up, push.health.waiting) == (False, 3)
    assert push.health.problem is not None
    assert "cannot reach the collector" in push.health.problem.what

    with collector(port) as server:
        push.step()
        assert server.received == []  # the backoff lasts
        clock.now += 40
        push.step()
        push.step()

    times = [r.metrics()[0].gauge.data_points[0].time_unix_nano // 10**9 for r in server.received]
    assert times == [1, 2, 3]
    assert (push.health.up, push.health.waiting) == (True, 0)


def test_the_queue_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """By number and by size; the oldest requests are dropped and counted."""
    monkeypatch.setattr(module, "MOST_REQUESTS", 5)
    push = made(f"http://127.0.0.1:{free_port()}", Clock())
    for second in range(1, 20):
        send(push, second)
    assert (push.health.waiting, push.health.dropped) == (5, (("queue full", 14),))

    monkeypatch.setattr(module, "MOST_BYTES", 1)
    send(push, 20)
    assert push.health.waiting == 0


@pytest.mark.parametrize("status", [429, 503, 401, 404])
def test_refusals_that_may_pass(status: int) -> None:
    """The request is kept and sent again after a delay, once it is accepted."""
    clock = Clock()
    with collector() as server:
        server.status, server.answer = status, b"busy"
        push = made(server.url, clock)
        send(push, 1)
        assert push.health.waiting == 1
        assert push.health.problem is not None
        assert f"answered {status}: busy" in push.health.problem.what
        server.status, server.answer = 200, b""
        clock.now += 2
        push.step()

    assert (len(server.received), push.health.waiting, push.health.up) == (2, 0, True)


def test_a_request_that_is_refused_for_good() -> None:
    """It is dropped, and the next one is sent."""
    with collector() as server:
        server.status = 400
        push = made(server.url, Clock())
        send(push, 1)
        assert (push.health.waiting, push.health.dropped) == (0, (("rejected", 1),))
        server.status = 200
        send(push, 2)

    assert push.health.up


def test_partial_success() -> None:
    """It is not sent again; the rejected points are counted, and the reason is a problem."""
    with collector() as server:
        server.answer = PARTIAL.SerializeToString()
        push = made(server.url, Clock())
        send(push, 1)
        push.step()

    assert len(server.received) == 1
    assert push.health.rejected_points == 3
    assert push.health.problem is not None
    assert "rejected 3 of" in push.health.problem.what


def test_a_token_file_that_changes(tmp_path: Path) -> None:
    """Each request has the token that is in the file then; a missing file is a problem."""
    token, clock = tmp_path / "token", Clock()
    with collector() as server:
        push = made(server.url, clock, token_file=str(token))
        send(push, 1)
        assert push.health.problem is not None
        assert f"cannot read {token}" in push.health.problem.what
        for second, text in ((2, "first\n"), (3, "second")):
            token.write_text(text)
            clock.now += 40
            send(push, second)

    assert [r.headers["authorization"] for r in server.received] == ["Bearer first", "Bearer first", "Bearer second"]


def test_the_interval() -> None:
    """Of the ticks between two pushes only one is sent."""
    clock = Clock()
    with collector() as server:
        push = Push(made(server.url, clock)._target, 10.0, monotonic=clock)
        for second in range(25):
            clock.now = 100.0 + second
            send(push, second + 1)

    assert len(server.received) == 3


def test_the_thread_sends_the_last_tick_when_it_stops() -> None:
    """And does not wait for a collector that is gone."""
    with collector() as server:
        settings = load({"otlp.endpoint": [server.url], "otlp.interval": ["0s"]}, {})
        push = create_push(settings, "node1")
        assert push is not None
        push.start()
        push.publish(pod_tick(1, 100))
        server.wait_for(1)
        push.publish(pod_tick(2, 200))
        push.stop()

    assert len(server.received) == 2


def test_the_variables_of_opentelemetry() -> None:
    """They are defaults of the flags; the base URL gets the path of metrics."""
    settings = load({}, {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%3Db",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=prod",
    })  # fmt: skip

    assert settings.otlp_endpoint == "http://collector:4318/v1/metrics"
    assert settings.otlp_timeout == 2.5
    assert pairs(settings.otlp_headers) == [("api-key", "a=b")]


@pytest.mark.parametrize("protocol", ["grpc", "http/json", "other"])
def test_unsupported_protocols(protocol: str) -> None:
    """The message names the one that is supported."""
    with pytest.raises(ConfigError, match="http/protobuf"):
        load({}, {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol})


@pytest.mark.parametrize("text", ["a=1%0D%0AHost:%20evil", "a=%0a", "a=%00", "a=x,b=%7F"])
def test_headers_with_line_breaks_are_refused(text: str) -> None:
    """A decoded line break would add headers to every request; the value, which may be a secret, is not shown."""
    with pytest.raises(ConfigError, match=r"--otlp.headers: the header '.' contains a control character") as caught:
        create_push(load({"otlp.endpoint": ["http://collector"], "otlp.headers": [text]}, {}), "node1")

    assert "evil" not in str(caught.value)


@pytest.mark.parametrize("url", ["collector:4318", "http://user:secret@collector", "ftp://x", "http://x y"])
def test_invalid_endpoints(url: str) -> None:
    """The message shows a valid URL, and no password."""
    with pytest.raises(ConfigError) as caught:
        load({"otlp.endpoint": [url]}, {})

    assert "http://collector:4318/v1/metrics" in str(caught.value)
    assert "secret" not in str(caught.value)
