"""What stands before the pages when there is a web configuration: rate limit, headers, passwords, in this order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import takewhile

from gpuledger.export.auth import Logins
from gpuledger.export.connection import Closable, Handler
from gpuledger.export.http import Request, Response
from gpuledger.export.webconfig import RateLimit, WebConfig

TOO_MANY = Response.text(429, "Too Many Requests")


class Gate:
    """A handler in front of another. `config` gives the configuration as it is now."""

    def __init__(
        self,
        pages: Handler,
        config: Callable[[], WebConfig],
        logins: Logins,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._pages, self._config, self._logins, self._monotonic_ns = pages, config, logins, monotonic_ns
        self._bucket: Bucket | None = None

    def __call__(self, request: Request) -> Response:
        """The page, or why there is none."""
        config = self._config()
        if config.rate_limit is not None and not self._may_pass(config.rate_limit):
            return TOO_MANY
        refused = None
        if config.users:
            refused = self._logins.refusal(config.users, request.headers.get("authorization"), request.address)
        answer = refused or self._pages(request)
        if answer.live and not isinstance(answer.body, bytes):
            answer = replace(answer, body=Watched(answer.body, lambda: self._config().users == config.users))
        return with_headers(answer, config)

    def _may_pass(self, limit: RateLimit) -> bool:
        now_ns = self._monotonic_ns()
        bucket = self._bucket
        if bucket is None or bucket.limit != limit:
            bucket = self._bucket = Bucket(limit, now_ns)
        return bucket.take(now_ns)


def with_headers(response: Response, config: WebConfig) -> Response:
    """The answer with the configured headers, which win over the page's own."""
    added = {name.lower(): (name, value) for name, value in config.headers.items()}
    added.pop("x-content-type-options", None)  # every answer has it, and it has one value
    if not added:
        return response
    kept = [(name, value) for name, value in response.headers if name.lower() not in added]
    return replace(response, headers=[*kept, *added.values()])


class Watched:
    """A body that may go on for days. It ends when other users are let in: its reader has to show a password again."""

    def __init__(self, body: Iterable[bytes], may_go_on: Callable[[], bool]) -> None:
        self._body, self._may_go_on = body, may_go_on

    def __iter__(self) -> Iterator[bytes]:
        return takewhile(lambda _: self._may_go_on(), self._body)

    def close(self) -> None:
        """Nobody reads it any more."""
        if isinstance(self._body, Closable):
            self._body.close()


class Bucket:
    """Tokens for requests: `burst` at most, a new one each interval."""

    def __init__(self, limit: RateLimit, now_ns: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._full_at_ns = now_ns  # when all tokens are back

    def take(self, now_ns: int) -> bool:
        """Whether there was one."""
        with self._lock:
            full_at_ns = max(self._full_at_ns, now_ns) + self.limit.interval_ns
            if full_at_ns - now_ns > self.limit.burst * self.limit.interval_ns:
                return False
            self._full_at_ns = full_at_ns
            return True
