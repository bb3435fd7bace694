"""Name providers, polled in the background: Docker, the container runtime, the kubelet, the Kubernetes API.

If a provider is down, its last names are used for five minutes, then ids are shown instead. No number depends on it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from gpuledger.errors import ProviderError
from gpuledger.model import ProviderHealth
from gpuledger.model.problem import Problem
from gpuledger.owners.names import Names
from gpuledger.runtime.poller import HANGS_S, Poller
from gpuledger.runtime.statelog import StateLog

log = logging.getLogger(__name__)

NUDGE_APART_S = 1.0
"""Least time between polls that are triggered by events or unknown ids."""
NAMES_VALID_S = 300.0
"""How long names are used after the last successful poll."""
NO_NAMES = Names()
"""Always the same object: the resolver compares names by identity."""
NOT_POLLED = Problem("not polled yet", kind="starting")


class Provider:
    """A source of names. All calls but `close` come from one thread, and each ends within a few seconds.

    By default it has no events, and nothing is open between two polls.
    """

    name: str
    """The label `provider`: one of PROVIDERS, with a number if there are several of a kind."""
    interval_s: float
    """Seconds between polls if there are no events."""

    def fetch(self) -> Names:
        """All names; raises ProviderError."""
        raise NotImplementedError

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        """Wait for an event, for `stop` or for `timeout_s`, whichever is first; whether an event came."""
        stop.wait(timeout_s)
        return False

    def close(self) -> None:
        """Close connections; may be called from another thread to end a `wait`."""


class PolledProvider(Poller):
    """Polls one provider; has its last names and its health."""

    def __init__(
        self,
        provider: Provider,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        super().__init__(
            provider.name,
            self._refresh,
            lambda: provider.interval_s,
            wait=provider.wait,
            apart_s=NUDGE_APART_S,
            monotonic=monotonic,
        )
        self._provider = provider
        self._now_ns = now_ns
        self._health_log = StateLog(log)
        self._names = NO_NAMES
        self._fetched_at: float | None = None
        self._health = ProviderHealth(name=provider.name, up=False, problem=NOT_POLLED, since_ns=now_ns(),
                                      last_success_ns=0, fetches=0, failures=0)  # fmt: skip

    def stop(self, wait_s: float = 0.0) -> None:
        """End the thread, and close the provider."""
        super().stop(wait_s)
        with suppress(Exception):
            self._provider.close()

    @property
    def names(self) -> Names:
        """The last names; none if they are more than five minutes old."""
        if self._fetched_at is not None and self._monotonic() - self._fetched_at > NAMES_VALID_S:
            return NO_NAMES
        return self._names

    @property
    def health(self) -> ProviderHealth:
        """The provider's health; one that hangs is down."""
        health = self._health
        if not self.hangs:
            return health
        problem = Problem(f"no answer for {HANGS_S:g} s", "check whether it, or its file system, hangs", "hang")
        self._health_log.change(health.name, str(problem), f"{health.name}: {problem}", "")
        return replace(health, up=False, problem=problem)

    def _refresh(self) -> bool:
        try:
            names = self._provider.fetch()
        except ProviderError as error:
            self._note(error.problem)
            return False
        except Exception as error:  # a bug in a provider must not end the thread
            log.debug("%s", self._provider.name, exc_info=True)
            self._note(Problem(f"{type(error).__name__}: {error}", kind="bug"))
            return False
        if names != self._names:  # keep the object if it is equal, so that nothing is resolved again
            self._names = names
        self._fetched_at = self._monotonic()
        self._note(None)
        return True

    def _note(self, problem: Problem | None) -> None:
        before, up, now_ns = self._health, problem is None, self._now_ns()
        self._health = replace(
            before,
            up=up,
            problem=problem,
            since_ns=before.since_ns if before.up == up and before.fetches else now_ns,
            last_success_ns=now_ns if up else before.last_success_ns,
            fetches=before.fetches + 1,
            failures=before.failures + (not up),
        )
        reason = str(problem or "")
        self._health_log.change(before.name, reason, f"{before.name}: {reason}", f"{before.name} answers again")
