"""The pods of this node from the Kubernetes API: one list, then a watch for changes.

The list comes from the server's cache (`resourceVersion=0`), which is cheap even if all nodes request it at once. The
server reads its store only after the watched version has expired (410).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from gpuledger.errors import AnswerError, ConfigError, HttpError, ProviderError
from gpuledger.net.address import quoted
from gpuledger.net.answers import with_fix
from gpuledger.net.http import Response
from gpuledger.net.jsonvalues import as_line
from gpuledger.net.kubeapi import ApiAccess
from gpuledger.owners.names import Names
from gpuledger.owners.providers.claims import Claims
from gpuledger.owners.providers.kubepods import EXPIRED, Pods, read_json
from gpuledger.owners.providers.provider import Provider
from gpuledger.runtime.deadline import Deadline
from gpuledger.runtime.poller import Backoff

PAGE, MOST_PAGES = 250, 50
"""Pods in a response, responses in a list."""
RESPONSE_LIMIT, REFUSAL_LIMIT = 32 << 20, 64 << 10
"""Bytes of a list or of one event. A pod has about 10 kB, and never more than 1.5 MB in the server's store."""
WATCH_S, LATE_S = 300, 30.0
"""The duration requested for a watch, and how much later a watch that has not ended counts as dead."""
RELIST_S, SETTLED_S = 600.0, 30.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 4.0, 60.0
"""A watch that breaks before it has settled is likely to break again, so the next lists are delayed by a backoff."""
SLICE_S, NOW_S = 0.25, 0.001
"""How often `wait` checks `stop`; the timeout for events that have already arrived."""

NODE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
RIGHTS_FIX = (
    "grant a ClusterRole with list and watch of pods; `kubectl auth can-i watch pods --all-namespaces "
    "--as=system:serviceaccount:NAMESPACE:ACCOUNT` must print yes"
)
OTHER_SERVER = "check whether it is a healthy Kubernetes API server"
REFUSED = {401: "does not accept our credentials", 403: "does not allow us to list and watch pods"}


class KubernetesProvider(Provider):
    """The pods of one node."""

    name = "kubernetes"
    interval_s = 60.0

    def __init__(
        self,
        api: ApiAccess,
        node_name: str,
        label_allow: Sequence[str] = (),
        timeout_s: float = 5.0,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not NODE_NAME.fullmatch(node_name):
            raise ConfigError(f"{node_name!r} is not a node name", "set NODE_NAME from the field spec.nodeName")
        try:
            allow = [re.compile(pattern) for pattern in label_allow]
        except re.error as error:
            raise ConfigError(f"{error.pattern!r} is not a regular expression for labels: {error}") from None
        self._api, self._client = api, api.client()
        self._timeout_s, self._now = timeout_s, monotonic
        self._fixes = _fixes(api)
        self._target = f"{api.path}/api/v1/pods?fieldSelector=spec.nodeName%3D{node_name}"
        self._pods = Pods(node_name, lambda label: any(pattern.fullmatch(label) for pattern in allow))
        self._listed_at, self._has_expired = 0.0, False
        self._watch: _Watch | None = None
        self._failure: ProviderError | None = None
        """The error that broke the watch; cleared by the next list."""
        self._has_failed = False
        self._backoff = Backoff(monotonic, first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        self._claims = Claims(self._read)
        self._names = self._bare = Names()
        """The last names, with capacities and without."""
        self._closed = threading.Event()

    def fetch(self) -> Names:
        """The pods as of the last event. Lists them on the first call, after an error, and every ten minutes."""
        if self._closed.is_set():
            raise ProviderError("the watch of pods is closed", kind="closed")
        with self._closing():
            deadline = Deadline(self._timeout_s)
            while self._follow(NOW_S) and deadline.remaining_s:
                pass
            if self._failure is not None and not self._backoff.due():
                problem = self._failure.problem
                raise ProviderError(problem.what, problem.fix, problem.kind)
            try:
                if self._failure or not self._pods.version or self._now() - self._listed_at > RELIST_S:
                    self._list()
                if self._watch is None:
                    self._open_watch()
            except ProviderError as error:
                if error.kind != EXPIRED:
                    raise
                self._has_expired = True  # the version in the server's cache is too old to watch from
                self._list()
                self._open_watch()
            return self._with_capacities(self._pods.names)

    def _with_capacities(self, names: Names) -> Names:
        """The names with what claims consume; the same object until one of both changes."""
        claims = {(pod.namespace, claim) for pod in names.pods.values() for claim in pod.claims}
        capacities = self._claims.of(claims) if claims else {}
        if names is not self._bare or capacities != self._names.capacities:
            self._bare, self._names = names, replace(names, capacities=capacities) if capacities else names
        return self._names

    def _read(self, path: str) -> bytes:
        """The answer to one request."""
        with self._errors():
            response = self._open(f"{self._api.path}{path}", Deadline(self._timeout_s), REFUSAL_LIMIT)
            try:
                return response.body()
            finally:
                response.close()

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        """Wait until a pod changes, or the watch breaks so that a list is needed."""
        deadline = Deadline(timeout_s)
        with self._closing():
            while not stop.is_set() and not self._closed.is_set() and (left_s := deadline.remaining_s):
                self._follow(min(left_s, SLICE_S))
                if self._closed.is_set():
                    break
                if self._failure or self._pods.changed:
                    return True
        return False

    def close(self) -> None:
        """Close the watch, which ends a `wait`."""
        self._closed.set()
        if watch := self._watch:
            watch.response.close()

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """Close the watch afterwards if `close` was called meanwhile."""
        try:
            yield
        finally:
            if self._closed.is_set():
                self._end_watch()

    def _list(self) -> None:
        deadline = Deadline(self._timeout_s)
        pods, more = self._pods.empty(), "" if self._has_expired else "&resourceVersion=0"
        for _ in range(MOST_PAGES):
            with self._errors():
                response = self._open(f"{self._target}&limit={PAGE}{more}", deadline, RESPONSE_LIMIT)
                try:
                    token = pods.put_page(response.body())
                finally:
                    response.close()
            if not token:
                break
            more = f"&continue={quoted(token)}"
        else:
            what = f"{self._client.name} sent a list of pods with more than {MOST_PAGES} pages"
            raise ProviderError(what, OTHER_SERVER, "format")
        self._end_watch()
        self._pods.replace(pods)
        self._listed_at, self._has_expired, self._failure = self._now(), False, None

    def _open_watch(self) -> None:
        query = f"watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}"
        query += f"&resourceVersion={quoted(self._pods.version)}"
        with self._errors():
            self._watch = _Watch(self._open(f"{self._target}&{query}", Deadline(self._timeout_s), None), self._now())

    def _follow(self, timeout_s: float) -> bool:
        """Apply the events that arrive within this time; whether any did. `fetch` raises the error, if any."""
        if self._failure or not self._pods.version:
            return False
        try:
            if self._watch is None:
                self._open_watch()
            return self._watch is not None and self._take(self._watch, timeout_s)
        except ProviderError as error:
            is_settled = self._watch is not None and self._now() - self._watch.opened_at > SETTLED_S
            if is_settled or not self._has_failed:
                self._backoff.reset()
            else:
                self._backoff.failed()
            self._failure, self._has_failed = error, True
            self._has_expired = error.kind == EXPIRED
            self._end_watch()
            return False

    def _take(self, watch: _Watch, timeout_s: float) -> bool:
        age_s = self._now() - watch.opened_at
        with self._errors():
            lines = watch.lines(timeout_s)
            if lines is None and age_s > WATCH_S + LATE_S:
                raise AnswerError("sends no events and does not end the watch", kind="timeout")
            for event in lines or ():
                self._pods.apply(event)
            if watch.response.done and age_s < SETTLED_S:
                raise AnswerError("ended the watch too early", kind="half")
        if watch.response.done:
            self._end_watch()
        return bool(lines)

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.response.close()
            self._watch = None

    def _open(self, target: str, deadline: Deadline, limit: int | None) -> Response:
        """A response with status 200."""
        response = self._client.open(target, deadline, limit, *self._api.headers())
        try:
            response.read_head()
            if response.status != 200:
                self._refuse(response)
        except BaseException:
            response.close()
            raise
        return response

    def _refuse(self, response: Response) -> None:
        body = b""
        message = ""
        with suppress(HttpError, AnswerError):
            for piece in response.pieces():
                body += piece
                if len(body) > REFUSAL_LIMIT:
                    break
            message = as_line(read_json(body).get("message"))
        status, reason = response.status, f": {message}" if message else ""
        if status == 410:
            raise AnswerError("no longer has the requested version", kind=EXPIRED)
        if status in REFUSED:
            raise ProviderError(f"{self._client.name} {REFUSED[status]} ({status}{reason})", RIGHTS_FIX, "auth")
        raise ProviderError(f"{self._client.name} answered {status}{reason}", OTHER_SERVER, "http")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except AnswerError as error:
            raise ProviderError(f"{self._client.name} {error}", OTHER_SERVER, error.kind) from error
        except HttpError as error:
            raise with_fix(ProviderError, error, self._fixes, OTHER_SERVER) from error


@dataclass(slots=True)
class _Watch:
    """A response without an end, with one event in each line."""

    response: Response
    opened_at: float
    partial: bytes = b""
    """The beginning of an incomplete line."""

    def lines(self, timeout_s: float) -> list[bytes] | None:
        """The complete lines that arrive within this time; None if nothing arrived."""
        received = self.response.poll(timeout_s)
        if received is None:
            return None
        *lines, self.partial = (self.partial + received).split(b"\n")
        if len(self.partial) > RESPONSE_LIMIT:
            raise AnswerError(f"sent an event of more than {RESPONSE_LIMIT >> 20} MiB", kind="size")
        return [line for line in lines if line.strip()]


def _fixes(api: ApiAccess) -> dict[str, str]:
    ca = f" {api.tls.ca}" if api.tls.ca and isinstance(api.tls.ca, str) else ""
    address = f"check its address and its certificate authority{ca}"
    return {
        "timeout": "check whether it is overloaded, or whether a network policy blocks this pod",
        **dict.fromkeys(("permission", "missing", "refused", "unreachable", "tls"), address),
    }
