"""The pods of this node, from the Kubernetes API: one list, then a watch that says what changed.

The list is asked from the server's cache (`resourceVersion=0`), which costs it next to nothing however many nodes ask
at once; only after the server has forgotten where we were (410) does it have to read its store.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from gpuledger.errors import ConfigError
from gpuledger.httpclient import HttpError
from gpuledger.owners.kubeapi import ApiAccess, Stream, left_s
from gpuledger.owners.kubejson import line, read_json
from gpuledger.owners.kubepods import ExpiredError, Pods
from gpuledger.owners.names import Names
from gpuledger.owners.provider import ProviderError

__all__ = ["ApiAccess", "KubernetesProvider"]

PAGE, MOST_PAGES = 250, 50
"""Pods to an answer, answers to a list."""
WATCH_S, LATE_S = 300, 30.0
"""How long the server is asked to keep a watch, and how much later a watch that did not end must be dead."""
RELIST_S, SETTLED_S, LONGEST_PAUSE_S = 600.0, 30.0, 60.0
"""A watch that lived shorter than it takes to settle broke for a reason that lasts: pauses grow."""
SLICE_S, NOW_S = 0.25, 0.001
"""How late a `wait` may notice `stop`; how long to look for what is already there."""

NODE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
RIGHTS = "pods list/watch at cluster scope; see the ClusterRole in the docs"


class _ExpiredError(ProviderError):
    """The server no longer knows the version we ask for."""


class KubernetesProvider:
    """Knows the pods of one node."""

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
            raise ConfigError(f"{node_name!r} is no name of a node; set NODE_NAME from the field spec.nodeName")
        try:
            allow = [re.compile(pattern) for pattern in label_allow]
        except re.error as error:
            raise ConfigError(f"{error.pattern!r} is no regular expression for labels: {error}") from None
        self._api, self._timeout_s, self._now = api, timeout_s, monotonic
        self._target = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{node_name}"
        self._pods = Pods(node_name, lambda label: any(pattern.fullmatch(label) for pattern in allow))
        self._listed_at, self._has_expired = 0.0, False
        self._watch: Stream | None = None
        self._trouble, self._troubles, self._again_at = "", 0, 0.0
        self._lock = threading.Lock()
        """Held while the watch is used, so that nobody closes it under a reader."""
        self._closed = threading.Event()

    def fetch(self) -> Names:
        """The pods as the watch last told; asks for all of them at first, after trouble and now and then."""
        with self._using():
            deadline = time.monotonic() + self._timeout_s
            while self._follow(NOW_S) and time.monotonic() < deadline:
                pass
            if self._trouble and self._now() < self._again_at:
                raise ProviderError(self._trouble)
            try:
                if self._trouble or not self._pods.version or self._now() - self._listed_at > RELIST_S:
                    self._list()
                if self._watch is None:
                    self._open_watch()
            except _ExpiredError:  # what the cache gave is too old to go on from
                self._has_expired = True
                self._list()
                self._open_watch()
            return self._pods.names

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        """Whether a pod changed, or the watch broke so that all have to be asked for again."""
        end = time.monotonic() + timeout_s
        while not stop.is_set() and not self._closed.is_set() and (left := end - time.monotonic()) > 0:
            with suppress(ProviderError), self._using():
                self._follow(min(left, SLICE_S))
                if self._trouble or self._pods.changed:
                    return True
        return False

    def close(self) -> None:
        """End the watch, and a `wait` with it."""
        self._closed.set()
        if watch := self._watch:
            with suppress(OSError):  # the plain socket's: that of TLS would change what the reader works with
                socket.socket.shutdown(watch.connection, socket.SHUT_RDWR)
        if self._lock.acquire(blocking=False):  # else whoever holds it closes
            try:
                self._end_watch()
            finally:
                self._lock.release()

    @contextmanager
    def _using(self) -> Iterator[None]:
        try:
            with self._lock:
                if self._closed.is_set():
                    raise ProviderError("the watch of pods is closed")
                yield
        finally:
            if self._closed.is_set():
                self.close()

    def _list(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        pods, more = self._pods.none(), "" if self._has_expired else "&resourceVersion=0"
        for _ in range(MOST_PAGES):
            with self._asking(f"limit={PAGE}{more}", deadline) as stream:
                while not stream.answer.done:
                    stream.more(left_s(deadline))
                token = pods.put_page(stream.answer.body)
            if not token:
                break
            more = f"&continue={_quote(token)}"
        else:
            raise ProviderError(f"{self._api} sent a list of pods without end; is it a Kubernetes API server?")
        self._end_watch()
        self._pods.replace(pods)
        self._listed_at, self._has_expired, self._trouble = self._now(), False, ""

    def _open_watch(self) -> None:
        query = f"watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}"
        deadline = time.monotonic() + self._timeout_s
        with self._asking(f"{query}&resourceVersion={_quote(self._pods.version)}", deadline) as stream:
            self._watch = stream

    def _follow(self, timeout_s: float) -> bool:
        """Take in what the watch tells within this time; whether it told anything. Trouble is kept for `fetch`."""
        if self._trouble or not self._pods.version:
            return False
        try:
            if self._watch is None:
                self._open_watch()
            return self._watch is not None and self._take(self._watch, timeout_s)
        except ProviderError as error:
            is_settled = self._watch is not None and self._now() - self._watch.opened_at > SETTLED_S
            self._troubles = 1 if is_settled else min(self._troubles + 1, 10)
            pause_s = min(2.0**self._troubles, LONGEST_PAUSE_S) if self._troubles > 1 else 0.0
            self._trouble, self._again_at = str(error), self._now() + pause_s
            self._has_expired = isinstance(error, _ExpiredError)
            self._end_watch()
            return False

    def _take(self, watch: Stream, timeout_s: float) -> bool:
        age_s = self._now() - watch.opened_at
        with self._explaining():
            try:
                watch.more(timeout_s)
            except TimeoutError:
                if age_s > WATCH_S + LATE_S:
                    raise HttpError("neither tells anything nor ends the watch") from None
            lines = watch.answer.lines()
            for event in lines:
                self._pods.apply(event)
            if watch.answer.done and age_s < SETTLED_S:
                raise HttpError("ended a watch that had just begun")
        if watch.answer.done:
            self._end_watch()
        return bool(lines)

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.connection.close()
            self._watch = None

    @contextmanager
    def _asking(self, query: str, deadline: float) -> Iterator[Stream]:
        """An answer to read from. Its connection is closed unless it has become the watch."""
        with self._explaining():
            stream = Stream(self._api.open(f"{self._target}&{query}", deadline), self._now())
            try:
                while not stream.answer.status:
                    stream.more(left_s(deadline))
                if stream.answer.status != 200:
                    self._refuse(stream, deadline)
                yield stream
            finally:
                if self._watch is not stream:
                    stream.connection.close()

    def _refuse(self, stream: Stream, deadline: float) -> None:
        said = ""
        with suppress(HttpError, OSError):
            while not stream.answer.done:
                stream.more(left_s(deadline))
            said = line(read_json(stream.answer.body).get("message"))
        status, said = stream.answer.status, f": {said}" if said else ""
        if status == 410:
            raise ExpiredError("has forgotten the version we asked for")
        if status in (401, 403):
            why = "does not accept who we are" if status == 401 else "does not let us see pods"
            raise ProviderError(f"{self._api} {why} ({status}{said}); the service account needs {RIGHTS}")
        raise ProviderError(f"{self._api} answered {status}{said}; is it a healthy Kubernetes API server?")

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Everything that can go wrong between us and the server, as one kind of error that says what to do."""
        try:
            yield
        except ExpiredError as error:
            raise _ExpiredError(f"{self._api} {error}") from error
        except HttpError as error:
            raise ProviderError(f"{self._api} {error}; is it a healthy Kubernetes API server?") from error
        except TimeoutError as error:
            raise ProviderError(f"no whole answer from {self._api} within {self._timeout_s:.1f} s; is it overloaded, "
                                "or does a network policy keep us out?") from error  # fmt: skip
        except (OSError, ValueError) as error:
            reason, ca = getattr(error, "strerror", None) or error, self._api.ca
            remedy = f"check its address and its certificate authority {ca if isinstance(ca, str) else ''}".rstrip()
            raise ProviderError(f"cannot talk to the API server at {self._api}: {reason}; {remedy}") from error


def _quote(value: str) -> str:
    return "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"%{byte:02X}" for byte in value.encode())
