"""Providers in the background: asked for everything they know, again and again, never by a scrape or a tick.

A provider that is down costs names, never numbers: what it last knew stays for a while, then only ids are left.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from gpuledger.model import ProviderHealth
from gpuledger.owners.names import Names
from gpuledger.problem import Problem
from gpuledger.said import Said

log = logging.getLogger(__name__)

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 1.0, 30.0
NUDGE_APART_S = 1.0
"""News and unknown ids ask for a refresh, but not sooner than this after the last one."""
HANGS_S = 60.0
"""Providers have timeouts of their own, of some seconds in all; a file system that hangs has none."""
KEPT_S = 300.0
"""How long names outlive their provider."""
NOTHING = Names()
"""Always the same object, by which the resolver sees that nothing changed."""


class ProviderError(Exception):
    """The provider cannot be asked now. The message says what failed, on what, and what to do."""


class Provider(Protocol):
    """Somebody who knows names. All calls come from one thread, and each must end within a few seconds."""

    name: str
    """As metrics show it: docker, cri, podresources, kubernetes, slurm."""
    interval_s: float
    """How often to ask when nothing else says that something changed."""

    def fetch(self) -> Names:
        """All it knows; raises ProviderError."""

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        """Wait for news, for `stop` or for `timeout_s`, whichever is first; whether there is news."""

    def close(self) -> None:
        """Let go of connections; may be called from another thread to end a `wait`."""


class Background:
    """Runs one provider in a thread of its own."""

    def __init__(
        self,
        provider: Provider,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._provider = provider
        self._monotonic = monotonic
        self._now_ns = now_ns
        self._said = Said(log)
        self._stop = threading.Event()
        self._nudged = threading.Event()
        self._names = NOTHING
        self._fetched_at: float | None = None
        self._asked_at: float | None = None
        self._backoff_s = FIRST_BACKOFF_S
        self._health = ProviderHealth(provider.name, up=False, problem=Problem("not asked yet"), since_ns=now_ns(),
                                     last_success_ns=0, fetches=0, failures=0)  # fmt: skip
        self._thread = threading.Thread(target=self._run, name=provider.name, daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """End soon; does not wait for a provider that hangs."""
        self._stop.set()
        self._nudged.set()
        with suppress(Exception):
            self._provider.close()

    @property
    def names(self) -> Names:
        """What it knew last; nothing when that is too long ago."""
        if self._fetched_at is not None and self._monotonic() - self._fetched_at > KEPT_S:
            return NOTHING
        return self._names

    @property
    def health(self) -> ProviderHealth:
        """How it is; one that never comes back from a question is down."""
        asked_at = self._asked_at
        if asked_at is None or self._monotonic() - asked_at < HANGS_S:
            return self._health
        name, reason = self._health.name, f"does not come back; it was asked more than {HANGS_S:g} s ago"
        self._said.change(name, reason, f"{name}: {reason}", "")
        return replace(self._health, up=False, problem=Problem(reason))

    def nudge(self) -> None:
        """Somebody met an id that is not in the names: ask again soon. Never waits."""
        self._nudged.set()

    def ask(self) -> float:
        """Ask once and keep the answer; how long to wait before the next time. Public for tests and `explain`."""
        self._asked_at = self._monotonic()
        try:
            names = self._provider.fetch()
        except Exception as error:
            if not isinstance(error, ProviderError):
                log.debug("%s", self._provider.name, exc_info=True)
            self._note(str(error) if isinstance(error, ProviderError) else f"{type(error).__name__}: {error}")
            wait_s = self._backoff_s * random.uniform(0.5, 1.0)  # noqa: S311 - many nodes must not ask in step
            self._backoff_s = min(self._backoff_s * 2, LONGEST_BACKOFF_S)
            return wait_s
        finally:
            self._asked_at = None
        if names != self._names:  # else whoever goes by it need not start over
            self._names = names
        self._fetched_at = self._monotonic()
        self._backoff_s = FIRST_BACKOFF_S
        self._note("")
        return self._provider.interval_s

    def _note(self, reason: str) -> None:
        before, up = self._health, not reason
        now_ns = self._now_ns()
        self._health = ProviderHealth(
            name=before.name,
            up=up,
            problem=Problem(reason) if reason else None,
            since_ns=before.since_ns if before.up == up and before.fetches else now_ns,
            last_success_ns=now_ns if up else before.last_success_ns,
            fetches=before.fetches + 1,
            failures=before.failures + (not up),
        )
        self._said.change(before.name, reason, f"{before.name}: {reason}", f"{before.name} answers again")

    def _run(self) -> None:
        while not self._stop.is_set():
            wait_s = self.ask()
            asked_at = self._monotonic()
            if self._health.up:
                self._wait_for_news()
            else:
                self._stop.wait(wait_s)  # unknown ids are no reason to ask somebody who is down more often
            self._stop.wait(max(0.0, asked_at + NUDGE_APART_S - self._monotonic()))
            self._nudged.clear()

    def _wait_for_news(self) -> None:
        """In slices, so that a nudge is noticed within a second, and so is a provider that now wants to be polled."""
        started = self._monotonic()
        while not self._nudged.is_set():
            left_s = started + self._provider.interval_s - self._monotonic()
            if left_s <= 0 or self._is_news(min(left_s, NUDGE_APART_S)):
                return

    def _is_news(self, timeout_s: float) -> bool:
        """A provider that cannot wait is polled: its names are as good as before."""
        reason = ""
        try:
            return self._provider.wait(timeout_s, self._nudged)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            log.debug("%s", self._provider.name, exc_info=True)
            self._nudged.wait(timeout_s)
            return False
        finally:
            name = self._provider.name
            self._said.change(f"{name} news", reason, f"{name} tells no news, so it is asked every now and then: "
                              f"{reason}", f"{name} tells news again")  # fmt: skip
