"""Reads the token counters of language-model servers in the background, and adds them to each tick after the books.

Each server has its own thread, so that a slow one delays no other. A tick uses the last answers and never waits. The
servers are read right after a tick: then tokens and energy are of the same moment.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpuledger.errors import UpstreamError
from gpuledger.integrations.exposition import Limits
from gpuledger.integrations.scrape import Page
from gpuledger.integrations.tokens.counters import read_counts
from gpuledger.integrations.tokens.join import Join
from gpuledger.integrations.tokens.targets import Target, annotated, parse_target
from gpuledger.model import Tick, TokenCounts, TokenServer
from gpuledger.model.problem import Problem
from gpuledger.net.address import parse_place
from gpuledger.runtime.poller import Poller
from gpuledger.runtime.statelog import StateLog

log = logging.getLogger(__name__)

MOST_SERVERS = 64
"""Servers on one node, annotated ones included."""
LIMITS = Limits(size=4 << 20, series=20_000, line=16 << 10)
"""Limits of one response; vLLM sends about 100 kB."""
FIXES = {
    "timeout": "check whether the server is overloaded, or raise --tokens.timeout",
    "unreachable": "check whether the server runs and this host may reach it",
    "format": "check whether the URL is that of its metrics in the text format",
    "http": "check the path of its metrics, such as /metrics",
}
NO_TOKENS = Problem(
    "has no token counters", "check whether it is vLLM, SGLang, TGI, Triton or Dynamo with metrics enabled", "empty"
)
STALE_S = 60.0
"""Age from which an answer is no longer shown."""
EARLY_S, LATE_S = 0.2, 2.0
"""How much earlier than its interval a server may be read after a tick, and how much later without a tick."""
NOT_READ = Problem("not read yet", kind="starting")


class ServerPoll:
    """The last answer of one server."""

    def __init__(self, target: Target, timeout_s: float, now_ns: Callable[[], int]) -> None:
        self.target = target
        self.problem: Problem | None = NOT_READ
        self.failures: Counter[str] = Counter()
        self.answer: tuple[float, tuple[TokenCounts, ...]] | None = None
        """Unix time and counts; replaced as a whole."""
        self._now_ns = now_ns
        self._place = parse_place(target.url)
        self._page = Page(self._place, timeout_s, LIMITS)
        self._state_log = StateLog(log)

    def poll(self) -> bool:
        """Read the server once; whether it answered."""
        began_ns = self._now_ns()
        try:
            counts = read_counts(self._page.read().families or ())
        except UpstreamError as error:
            fix = FIXES.get(error.kind, FIXES["format"])
            self._note(Problem(error.problem.what, fix, error.kind))
            return False
        if not counts:
            self._note(replace(NO_TOKENS, what=f"{self._place} {NO_TOKENS.what}"))
            return False
        self.answer = (began_ns + self._now_ns()) / 2e9, counts
        self._note(None)
        return True

    def is_due(self, now_s: float, interval_s: float) -> bool:
        """Whether the last answer is about as old as the interval; if there is none, the poller retries by itself."""
        return self.answer is not None and now_s - self.answer[0] >= interval_s - EARLY_S

    def _note(self, problem: Problem | None) -> None:
        self.problem = problem
        if problem is not None:
            self.failures[problem.kind] += 1
        name, reason = self.target.owner, str(problem or "")
        self._state_log.change(name, reason, f"tokens of {name}: {reason}", f"the server of {name} answers again")


class TokenCollector:
    """Adds the servers of language models to each tick."""

    name = "tokens"

    def __init__(
        self,
        settings: Sequence[str],
        interval_s: float,
        *,
        timeout_s: float = 2.0,
        now_ns: Callable[[], int] = time.time_ns,
        in_threads: bool = True,
    ) -> None:
        """Without threads, for tests, `poll` reads all servers."""
        parsed = [parse_target(text) for text in settings]
        self._configured = [target for target in parsed if target is not None]
        self._finds_pods = None in parsed
        self._interval_s, self._timeout_s, self._now_ns, self._in_threads = interval_s, timeout_s, now_ns, in_threads
        self._polls: dict[Target, tuple[ServerPoll, Poller]] = {}
        self._joins: dict[tuple[str, str], Join] = {}
        """Joins by name and pod uid of the owner."""
        self._follow(self._configured)

    def attach(self, tick: Tick) -> Tick:
        """The tick with the servers as of their last answers."""
        targets = dict.fromkeys(self._configured)
        if self._finds_pods and tick.source != "replay":  # a recording may contain any URL
            pods = (annotated(use.owner) for use in tick.containers if use.processes)
            targets |= dict.fromkeys(target for target in pods if target is not None)
        self._follow(list(targets)[:MOST_SERVERS])
        groups: dict[tuple[str, str], list[ServerPoll]] = {}
        for target, (poll, _) in self._polls.items():
            groups.setdefault((target.owner, target.pod_uid), []).append(poll)
        for poll, poller in self._polls.values():
            if poll.is_due(tick.time_ns / 1e9, self._interval_s):
                poller.nudge()
        joins, self._joins = self._joins, {}
        servers = []
        for key, polls in groups.items():
            join = self._joins[key] = joins.get(key) or Join()
            servers.append(_server(join, polls, tick))
        return replace(tick, servers=tuple(servers))

    def answered(self) -> bool:
        """Whether each server has answered or failed once."""
        return all(poll.problem is not NOT_READ for poll, _ in self._polls.values())

    def poll(self) -> None:
        """Read all servers once, in this thread."""
        for poll, _ in self._polls.values():
            poll.poll()

    def close(self) -> None:
        """Stop all threads; does not wait for them."""
        self._follow([])

    def _follow(self, targets: Sequence[Target]) -> None:
        """Start to read new targets, and stop to read those that are gone."""
        for target in [target for target in self._polls if target not in targets]:
            self._polls.pop(target)[1].stop()
        for target in targets:
            if target not in self._polls:
                poll = ServerPoll(target, self._timeout_s, self._now_ns)
                poller = Poller(
                    f"tokens of {target.owner}",
                    poll.poll,
                    lambda: self._interval_s + LATE_S,
                    apart_s=self._interval_s / 2,
                )
                self._polls[target] = poll, poller
                if self._in_threads:
                    poller.start()


def _server(join: Join, polls: Sequence[ServerPoll], tick: Tick) -> TokenServer:
    target = polls[0].target
    totals: dict[tuple[str, str], list[int]] = {}
    failures: Counter[str] = Counter()
    urls = {poll.target.url for poll in polls}  # a pod may change its annotation without end
    join.tokens = {url: tokens for url, tokens in join.tokens.items() if url in urls}
    for poll in polls:
        failures.update(poll.failures)
        if (answer := poll.answer) is None or tick.time_ns / 1e9 - answer[0] > STALE_S:
            continue
        time_s, counts = answer
        join.add_tokens(poll.target.url, time_s, counts)
        for count in counts:
            total = totals.setdefault((count.engine, count.model), [0, 0])
            total[0] += count.prompt
            total[1] += count.output
    join.add(tick, target)
    problem = next((poll.problem for poll in polls if poll.problem is not None), None)
    return TokenServer(
        name=target.owner,
        up=problem is None,
        problem=problem,
        failures=tuple(sorted(failures.items())),
        owner=join.owner,
        counts=tuple(TokenCounts(engine, model, *total) for (engine, model), total in sorted(totals.items())),
        work_mj=join.energy.work_mj,
        parked_mj=join.energy.parked_mj,
        rates=join.rates() if totals else None,
        phases=join.phases,
    )
