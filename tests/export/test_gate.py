"""What stands before the pages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.export.auth import Logins
from gpuledger.export.files import POLICY
from gpuledger.export.gate import Bucket, Gate, Watched
from gpuledger.export.http import Request, Response, frame
from gpuledger.export.streams import Streams
from gpuledger.export.webconfig import RateLimit, WebConfig
from tests.export.test_auth import USERS, Compared, basic

PAGE = Response(200, [("Content-Type", "text/html; charset=utf-8"), ("Content-Security-Policy", POLICY)], b"page")


def request(**headers: str) -> Request:
    """A request for a page."""
    return Request("GET", "/metrics", {}, headers, "HTTP/1.1", keep_alive=True)


def gate(config: WebConfig, now_ns: list[int] | None = None) -> Gate:
    """Before one page."""
    clock = now_ns or [0]
    return Gate(lambda _: PAGE, lambda: config, Logins(Compared()), lambda: clock[0])


def test_an_empty_configuration_changes_nothing() -> None:
    """Not one header."""
    assert gate(WebConfig())(request()) is PAGE


def test_users() -> None:
    """Without a password the page is not even made; with it, it is."""
    asked = []

    def pages(request: Request) -> Response:
        asked.append(request)
        return PAGE

    guarded = Gate(pages, lambda: WebConfig(users=USERS), Logins(Compared()))

    assert [guarded(request()).status, guarded(request(authorization=basic("alice", "no"))).status] == [401, 401]
    assert asked == []
    assert guarded(request(authorization=basic("alice", "wonder"))) is PAGE


@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_headers(user: str) -> None:
    """They are on every answer, once, also on those that refuse; the configured one wins over the page's."""
    headers = {
        "Strict-Transport-Security": "max-age=1",
        "Content-Security-Policy": "default-src 'self'",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "deny",
    }
    answer = gate(WebConfig(headers=headers, users=USERS))(request(authorization=basic(user, "wonder")))

    head = b"".join(frame(answer, None, keep_alive=False)[0]).partition(b"\r\n\r\n")[0].decode()
    for name, value in headers.items():
        assert head.count(f"{name}: ") == head.count(f"{name}: {value}") == 1
    assert head.count("Content-Type: ") == 1


def test_a_stream_ends_with_its_users() -> None:
    """Who watches since yesterday does not go on with a password of yesterday; and the stream's place is free again."""
    streams = Streams(lambda: None, 1)
    configs = [WebConfig(users=USERS)]

    def pages(_: Request) -> Response:
        stream = streams.join(gzip=False)
        assert stream is not None
        return Response(200, [], stream, live=True)

    answer = Gate(pages, lambda: configs[0], Logins(Compared()))(request(authorization=basic("alice", "wonder")))
    assert isinstance(answer.body, Watched)
    parts = iter(answer.body)
    assert next(parts)
    streams.wake()
    configs[0] = WebConfig(users=USERS, headers={"X-Frame-Options": "deny"})
    assert next(parts)
    streams.wake()
    configs[0] = WebConfig(users={name: hashed for name, hashed in USERS.items() if name != "alice"})
    assert list(parts) == []
    answer.body.close()
    assert streams.open == 0


def test_rate_limit() -> None:
    """A burst, then one a second; refused before any password is looked at, and with another limit all anew."""
    now_ns = [10**9]
    config = WebConfig(rate_limit=RateLimit(10**9, 2))
    configs = [config]
    guarded = Gate(lambda _: PAGE, lambda: configs[0], Logins(Compared()), lambda: now_ns[0])

    assert [guarded(request()).status for _ in range(4)] == [200, 200, 429, 429]
    now_ns[0] += 10**9 - 1
    assert guarded(request()).status == 429
    now_ns[0] += 1
    assert [guarded(request()).status for _ in range(2)] == [200, 429]
    now_ns[0] += 100 * 10**9
    assert [guarded(request()).status for _ in range(3)] == [200, 200, 429]
    configs[0] = WebConfig(rate_limit=RateLimit(10**9, 1), users=USERS)
    assert [guarded(request()).status for _ in range(2)] == [401, 429]


def test_no_burst() -> None:
    """As in other exporters, a limit without a burst lets nobody in."""
    assert gate(WebConfig(rate_limit=RateLimit(1, 0)))(request()).status == 429


@given(
    interval_ns=st.integers(1, 100),
    burst=st.integers(0, 5),
    pauses=st.lists(st.integers(0, 200), max_size=50),
)
def test_bucket(interval_ns: int, burst: int, pauses: list[int]) -> None:
    """It gives what a bucket with whole tokens counted one by one gives."""
    bucket = Bucket(RateLimit(interval_ns, burst), 0)
    now_ns, level_ns = 0, burst * interval_ns
    for pause in pauses:
        now_ns += pause
        level_ns = min(burst * interval_ns, level_ns + pause)
        expected = level_ns >= interval_ns and burst > 0
        if expected:
            level_ns -= interval_ns
        assert bucket.take(now_ns) is expected
