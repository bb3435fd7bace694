"""Docker Engine and Podman: names of containers, and the GPUs passed to them.

Three read-only calls: the list of running containers, `inspect` of each new one, and the event stream. The devices of a
container cannot change, so it is inspected once; its name can change, and comes from the list.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpuledger.errors import HttpError, ProviderError
from gpuledger.net.address import parse_address, quoted
from gpuledger.net.answers import ElementsError, load_json, local_fixes, status_kind, with_fix
from gpuledger.net.http import Client, Response
from gpuledger.net.jsonvalues import LONGEST_TEXT, as_dict, as_line
from gpuledger.net.tls import TlsSettings
from gpuledger.owners.kernel.cgroup import NO_UID
from gpuledger.owners.names import Names
from gpuledger.owners.providers.dockerjson import Inspected, read_container, read_inspected, read_list
from gpuledger.owners.providers.provider import Provider
from gpuledger.runtime.deadline import Deadline
from gpuledger.runtime.statelog import StateLog
from gpuledger.runtime.threads import Lookups

log = logging.getLogger(__name__)

LIST_LIMIT, INSPECT_LIMIT, VERSION_LIMIT = 16 << 20, 4 << 20, 1 << 20
"""Bytes. A container has about 2 kB in the list; parsed JSON can take twenty times its size."""
MOST_CONTAINERS = 10_000
USERS_PART = 4
"""All daemons of users have a quarter of these limits together: any user may start one."""
STREAMED_S, POLLED_S = 60.0, 15.0
"""Seconds between polls, with and without the event stream."""
SLICE_S = 0.25
"""How often `wait` checks `stop`."""
SETTLED_S = 1.0
"""A stream that ends after this time was interrupted, so events were missed."""
EVENT_FILTERS = '{"type":["container"],"event":["start","die","died","destroy","remove","rename"]}'
"""Podman 4 sends `die`, but its filter wants `died` and `remove`."""
API_VERSION = re.compile(r"\d{1,3}\.\d{1,3}", re.ASCII)
NEEDED = "/version, /containers/json, /containers/*/json and /events"

START = {"docker": "`sudo systemctl start docker`", "podman": "`sudo systemctl start podman.socket`"}
PERMISSION = {
    "docker": "in a container, `docker run --user 0`, even with --privileged; else `sudo usermod -aG docker USER`",
    "podman": "run as the owner of the socket, or as root; in a container, `--user 0`",
}
OTHER_API = "check whether it is a Docker API"
SOCKETS_S = 2.0
"""How long to look for sockets at the start."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a daemon, with the files for TLS."""

    name: str
    url: str
    ca: str = ""
    cert: str = ""
    key: str = ""


class _NotFoundError(ProviderError):
    """The daemon answered 404."""


class DockerProvider(Provider):
    """The containers of one daemon."""

    def __init__(
        self,
        url: str,
        *,
        name: str = "docker",
        timeout_s: float = 2.0,
        ca: str = "",
        cert: str = "",
        key: str = "",
        part: int = 1,
    ) -> None:
        """The daemon has one `part`-th of the limits."""
        self.name = name
        self._part = part
        self.interval_s = POLLED_S
        address = parse_address(url)
        self._client = Client(address, name=f"{name} at {address}", tls=TlsSettings(ca, cert, key))
        self._timeout_s = timeout_s
        self._fixes = _fixes(name)
        self._state_log = StateLog(log)
        self._api = ""
        """The API version; empty until the daemon reports it."""
        self._inspected: dict[str, Inspected] = {}
        self._refused: set[str] = set()
        """Ids of containers that could not be inspected; they are tried after the others."""
        self._unfinished = False
        """Whether the time limit left new containers uninspected."""
        self._listed_at_s = 0.0
        self._events = _EventStream(self._client)

    def fetch(self) -> Names:
        """All running containers."""
        listed_at_s = time.time()
        try:
            self._api = self._api or self._negotiate()
            listed = self._get(f"/v{self._api}/containers/json", self._timeout_s, LIST_LIMIT)
        except ProviderError:
            self._api = ""  # after an upgrade the daemon has another version
            raise
        if not isinstance(listed, list):
            raise self._format_error("did not return a list of containers")
        if len(listed) > (most := MOST_CONTAINERS // self._part):
            what = f"{self._client.name} lists {len(listed)} containers"
            raise ProviderError(what, f"more than {most} are not read", "size")
        entries = read_list(listed)
        gone = self._inspect(entries.keys())
        self._listed_at_s = listed_at_s
        containers = {i: read_container(i, entry, self._inspected.get(i, Inspected()))
                      for i, entry in entries.items() if i not in gone}  # fmt: skip
        return Names(containers, uid=controlling_uid(self._client.address.path))

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        """Wait for an event; without the event stream, for the time."""
        if self._unfinished:
            return True
        deadline = Deadline(timeout_s)
        if self._api and not self._events.is_open:
            self._events.open(self._api, self._listed_at_s, min(timeout_s, self._timeout_s))
        while not (stop.is_set() or self._events.closed) and (left_s := deadline.remaining_s):
            if self._events.is_open and self._events.has_news(min(left_s, SLICE_S)):
                return True
            if not self._events.is_open:
                stop.wait(min(left_s, SLICE_S))
            self.interval_s = STREAMED_S if self._events.is_accepted else POLLED_S
        return False

    def close(self) -> None:
        """Close the event stream, which ends a `wait`."""
        self._events.close()

    def _negotiate(self) -> str:
        version = as_dict(self._get("/version", self._timeout_s, VERSION_LIMIT)).get("ApiVersion")
        if not isinstance(version, str) or not API_VERSION.fullmatch(version):
            raise self._format_error("reports no API version")
        return version

    def _inspect(self, ids: Collection[str]) -> set[str]:
        """Inspect new containers until the timeout; returns the ids of removed containers."""
        self._inspected = {i: inspected for i, inspected in self._inspected.items() if i in ids}
        todo = sorted((i for i in ids if i not in self._inspected), key=self._refused.__contains__, reverse=True)
        gone, refused, reason = set(), set(), ""
        deadline = Deadline(self._timeout_s)
        while todo and (left_s := deadline.remaining_s):
            i = todo.pop()
            try:
                answer = self._get(f"/v{self._api}/containers/{i}/json", left_s, INSPECT_LIMIT)
            except _NotFoundError:
                gone.add(i)
            except ProviderError as error:  # one stuck container must not affect the others
                refused.add(i)
                reason = reason or str(error)
            else:
                self._inspected[i] = read_inspected(answer)
        self._unfinished = not self._refused.issuperset(todo)
        self._refused = refused | self._refused.intersection(todo)
        self._state_log.change("inspect", "some" if self._refused else "",
                          f"{self.name}: cannot inspect some containers, so their GPUs are unknown: {reason}",
                          f"{self.name}: all containers can be inspected again")  # fmt: skip
        return gone

    def _get(self, target: str, timeout_s: float, limit: int) -> Any:
        name = self._client.name
        try:
            status, body = self._client.get(target, timeout_s, limit // self._part)
        except HttpError as error:
            raise with_fix(ProviderError, error, self._fixes, OTHER_API) from error
        try:
            answer = load_json(body, errors="replace")
        except ElementsError as error:
            raise ProviderError(f"{name} sent {error}", OTHER_API, "size") from None
        except (ValueError, RecursionError) as error:
            if status == 200:
                raise self._format_error("did not return JSON") from error
            answer = {"message": body[:LONGEST_TEXT].decode("utf-8", "replace")}
        if status == 200:
            return answer
        # A user's socket may be a link to another service of root, whose messages must not become public.
        is_trusted = controlling_uid(self._client.address.path) is None
        message = as_line(as_dict(answer).get("message") if is_trusted else "") or "no reason given"
        error_type = _NotFoundError if status == 404 else ProviderError
        what = f"{name} answered {status} to {target}: {message}"
        raise error_type(what, f"a proxy must allow {NEEDED}", status_kind(status))

    def _format_error(self, what: str) -> ProviderError:
        return ProviderError(f"{self._client.name} {what}", OTHER_API, "format")


def _fixes(name: str) -> dict[str, str]:
    fixes = local_fixes(
        START.get(name, f"start {name}"),
        missing="correct --docker.host",
        permission=PERMISSION.get(name, "run as root"),
        timeout="check whether it is overloaded or hangs",
    )
    return fixes | {"unreachable": "check --docker.host", "tls": "check the certificates and --docker.host"}


class _EventStream:
    """The daemon's event stream. The content of events is ignored: any event means that the list has changed.

    Used by one thread; any thread may call `close`.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._response: Response | None = None
        self._opened_at = 0.0
        self.closed = False

    @property
    def is_open(self) -> bool:
        """Whether the request was sent and the stream has not ended."""
        return self._response is not None

    @property
    def is_accepted(self) -> bool:
        """Whether the daemon has accepted the request."""
        response = self._response
        return response is not None and response.status == 200

    def open(self, api: str, since_s: float, timeout_s: float) -> None:
        """Request the events since the last list, so that none is missed."""
        if self.closed:
            return
        target = f"/v{api}/events?since={since_s:.6f}&filters={quoted(EVENT_FILTERS)}"
        try:
            self._response = self._client.open(target, Deadline(timeout_s), None)
        except HttpError:  # `fetch` gets the same error and reports it
            return
        self._opened_at = time.monotonic()
        if self.closed:  # by another thread meanwhile
            self._end()

    def has_news(self, timeout_s: float) -> bool:
        """Whether an event arrived within this time, or events were missed because a settled stream ended."""
        response = self._response
        if response is None:
            return False
        was_accepted = self.is_accepted
        try:
            events = response.poll(timeout_s)
            if response.status in (0, 200) and not response.done:
                return bool(events)
        except HttpError:
            pass
        self._end()
        return was_accepted and time.monotonic() - self._opened_at > SETTLED_S and not self.closed

    def close(self) -> None:
        """Close for good; a thread in `has_news` is woken."""
        self.closed = True
        self._end()

    def _end(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.close()


def controlling_uid(path: str) -> int | None:
    """The user that decides which daemon listens at a socket; None if it is root or the exporter's own user.

    It is the first other owner of a directory on the way. The user that listens is no criterion: any user can link to a
    socket on which root listens for another service.
    """
    if not path:
        return None
    trusted = {0, os.geteuid()}
    real = os.path.realpath(path)
    try:
        for directory in (*reversed(Path(path).parents), *reversed(Path(real).parents)):
            info = directory.lstat()
            is_shared = stat.S_ISDIR(info.st_mode) and info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            uid = Path(real).lstat().st_uid if is_shared else info.st_uid
            if uid not in trusted:
                return uid
    except OSError:  # removed meanwhile
        return NO_UID
    return None


def is_of_user(url: str) -> bool:
    """Whether the daemon is that of another user, who is not root."""
    return controlling_uid(parse_address(url).path) is not None


def default_urls(environment: Mapping[str, str], uid: int, root: Path = Path("/")) -> list[Endpoint]:
    """The daemons of this host: DOCKER_HOST, and the usual sockets that exist, each once.

    A user may mount a file system that does not answer: a socket that is not found in time does not exist.
    """
    named = _docker_host(environment)
    endpoints = {} if named is None else {_resolved(Path(named.url.removeprefix("unix://"))): named}
    lookups: Lookups[Path, Path | None] = Lookups("sockets")
    deadline = Deadline(SOCKETS_S)
    for path in _usual_paths(uid, root):
        real = lookups.get(path, partial(_socket_at, path), timeout_s=max(0.01, deadline.remaining_s))
        if real is not None:
            endpoints.setdefault(real, Endpoint("podman" if "podman" in str(real) else "docker", f"unix://{path}"))
    return list(endpoints.values())


def endpoint(url: str, environment: Mapping[str, str]) -> Endpoint:
    """A daemon's URL with the certificates that Docker's own client would use; ValueError for a malformed URL."""
    address = parse_address(url)
    name = "podman" if "podman" in url else "docker"
    if address.path or not environment.get("DOCKER_TLS_VERIFY"):
        return Endpoint(name, url)
    folder = Path(environment.get("DOCKER_CERT_PATH") or f"{environment.get('HOME', '/root')}/.docker")
    return Endpoint(name, url, str(folder / "ca.pem"), str(folder / "cert.pem"), str(folder / "key.pem"))


def _docker_host(environment: Mapping[str, str]) -> Endpoint | None:
    try:
        return endpoint(environment.get("DOCKER_HOST", ""), environment)
    except ValueError:  # not set, or ssh://, which only Docker's command line understands
        return None


def _usual_paths(uid: int, root: Path) -> Iterator[Path]:
    yield root / "var/run/docker.sock"
    yield root / "run/podman/podman.sock"
    users = root / "run/user"
    try:
        folders = sorted(users.iterdir()) if uid == 0 else [users / str(uid)]
    except OSError:
        return
    for folder in folders:
        yield folder / "docker.sock"
        yield folder / "podman/podman.sock"


def _resolved(path: Path) -> Path:
    """/var/run is /run, and podman-docker links Docker's path to Podman's."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # not readable, or a link to itself
        return path


def _socket_at(path: Path) -> Path | None:
    """The socket itself if the path leads to one."""
    real = _resolved(path)
    try:
        return real if real.is_socket() else None
    except OSError:
        return None
