"""Docker Engine and Podman: who a container id is, and which GPUs it was given.

Read-only calls: the list of running containers, one look into each that is new, and the stream of events. What a
container was given cannot change, so it is looked into once; its name can, and comes from the list.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger.httpclient import Client, HttpError, parse_address
from gpuledger.owners.dockerevents import Stream, events_target
from gpuledger.owners.dockerjson import (
    as_dict,
    as_text,
    read_container,
    read_device_ids,
    read_image,
    read_list,
    read_visible_ids,
)
from gpuledger.owners.names import Names
from gpuledger.owners.provider import ProviderError
from gpuledger.said import Said

log = logging.getLogger(__name__)

LIST_LIMIT, INSPECT_LIMIT, VERSION_LIMIT = 16 << 20, 4 << 20, 1 << 20
"""Bytes. A container is about 2 kB of the list; parsed JSON can take twenty times its size."""
MOST_CONTAINERS = 10_000
STREAMED_S, POLLED_S = 60.0, 15.0
"""How often to ask, with and without the stream of events."""
SLICE_S = 0.25
"""How late a `wait` may notice `stop`."""
API = re.compile(r"\d{1,3}\.\d{1,3}", re.ASCII)
NEEDED = "/version, /containers/json, /containers/*/json and /events"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a daemon may be asked, with the files for TLS."""

    name: str
    url: str
    ca: str = ""
    cert: str = ""
    key: str = ""


class DockerProvider:
    """Asks one daemon."""

    def __init__(
        self, url: str, *, name: str = "docker", timeout_s: float = 2.0, ca: str = "", cert: str = "", key: str = ""
    ) -> None:
        self.name = name
        self.interval_s = POLLED_S
        self._client = Client(url, ca=ca, cert=cert, key=key)
        self._timeout_s = timeout_s
        self._said = Said(log)
        self._whom = f"{name} at {self._client.address}"
        self._api = ""
        self._inspected: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {}
        """By id: the image it was created from, the devices it was given, and those its environment names."""
        self._refused: set[str] = set()
        """Those that could not be looked into; they come after the others."""
        self._unfinished = False
        self._asked_at_s = 0.0
        self._stream = Stream(self._client)

    def fetch(self) -> Names:
        """All running containers."""
        asked_at_s = time.time()
        try:
            self._api = self._api or self._negotiate()
            listed = self._get(f"/v{self._api}/containers/json", self._timeout_s, LIST_LIMIT)
        except ProviderError:
            self._api = ""  # the daemon that answers next may be of another version
            raise
        if not isinstance(listed, list):
            raise ProviderError(f"{self._whom} sent no list of containers; is it a Docker API?")
        if len(listed) > MOST_CONTAINERS:
            raise ProviderError(
                f"{self._whom} lists {len(listed)} containers; more than {MOST_CONTAINERS} are not read"
            )
        entries = read_list(listed)
        gone = self._inspect(entries.keys())
        self._asked_at_s = asked_at_s
        known, nothing = self._inspected, ("", (), ())
        return Names({i: read_container(i, e, *known.get(i, nothing)) for i, e in entries.items() if i not in gone})

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        """Wait for an event; without their stream only for the time."""
        if self._unfinished:
            return True
        end = time.monotonic() + timeout_s
        if self._api and not self._stream.is_open:
            self._stream.open(events_target(self._api, self._asked_at_s), min(timeout_s, self._timeout_s))
        while not (stop.is_set() or self._stream.closed) and (left_s := end - time.monotonic()) > 0:
            if self._stream.is_open and self._stream.news(min(left_s, SLICE_S)):
                return True
            if not self._stream.is_open:
                stop.wait(min(left_s, SLICE_S))
            self.interval_s = STREAMED_S if self._stream.works else POLLED_S
        return False

    def close(self) -> None:
        """End the stream of events, and a `wait` with it."""
        self._stream.close()

    def _negotiate(self) -> str:
        version = as_dict(self._get("/version", self._timeout_s, VERSION_LIMIT)).get("ApiVersion")
        if not isinstance(version, str) or not API.fullmatch(version):
            raise ProviderError(f"{self._whom} does not say its version; is it a Docker API?")
        return version

    def _inspect(self, ids: Collection[str]) -> set[str]:
        """Look into the new ones, as many as the time allows. Answers those that are gone meanwhile."""
        self._inspected = {i: known for i, known in self._inspected.items() if i in ids}
        todo = sorted((i for i in ids if i not in self._inspected), key=self._refused.__contains__, reverse=True)
        gone, refused, reason = set(), set(), ""
        deadline = time.monotonic() + self._timeout_s
        while todo and (left_s := deadline - time.monotonic()) > 0:
            i = todo.pop()
            try:
                inspected = self._get(f"/v{self._api}/containers/{i}/json", left_s, INSPECT_LIMIT)
            except _NotFoundError:
                gone.add(i)
            except ProviderError as error:  # one that is stuck must not cost the names of the others
                refused.add(i)
                reason = reason or str(error)
            else:
                self._inspected[i] = read_image(inspected), read_device_ids(inspected), read_visible_ids(inspected)
        self._unfinished = not self._refused.issuperset(todo)
        self._refused = refused | self._refused.intersection(todo)
        self._said.change("inspect", "some" if self._refused else "",
                          f"{self.name}: which GPUs some containers were given stays unknown: {reason}",
                          f"{self.name}: all containers can be looked into again")  # fmt: skip
        return gone

    def _get(self, target: str, timeout_s: float, limit: int) -> Any:
        try:
            status, body = self._client.get(target, timeout_s, limit)
        except HttpError as error:
            raise ProviderError(f"{self._whom} {error}; is it a Docker API?") from error
        except OSError as error:
            raise ProviderError(self._explain(error, target, timeout_s)) from error
        text = body.decode("utf-8", "replace")
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError) as error:
            if status == 200:
                said = as_text(text[:60])
                raise ProviderError(
                    f"{self._whom} did not answer in JSON but with {said!r}; is it a Docker API?"
                ) from error
            answer = {"message": text}
        if status == 200:
            return answer
        said = as_text(as_dict(answer).get("message"))[:200] or "no reason given"
        kind = _NotFoundError if status == 404 else ProviderError
        raise kind(f"{self._whom} answered {status} to {target}: {said}; what stands before it must allow {NEEDED}")

    def _explain(self, error: OSError, target: str, timeout_s: float) -> str:
        where, key = self._client.address, "--docker.host"
        match error:
            case PermissionError():
                return (f"cannot open {where}: permission denied; add the exporter's user to the socket's group "
                        f"or drop {key}")  # fmt: skip
            case FileNotFoundError():
                return f"cannot open {where}: no such file; start {self.name}, correct {key} or drop it"
            case ConnectionRefusedError():
                return f"cannot connect to {where}: connection refused; nobody listens there, start {self.name}"
            case TimeoutError():
                return f"{self._whom} did not answer {target} within {timeout_s:.1f} s; is it overloaded or stuck?"
            case _:
                return f"cannot talk to {self._whom}: {error.strerror or error}; check {key}"


class _NotFoundError(ProviderError):
    """Answered with 404."""


def default_urls(environment: Mapping[str, str], uid: int, root: Path = Path("/")) -> list[Endpoint]:
    """Where daemons are on this host: what DOCKER_HOST says, and the usual sockets that exist, each once."""
    named = _named(environment)
    found = {} if named is None else {_real(Path(named.url.removeprefix("unix://"))): named}
    for path in _usual_paths(uid, root):
        real = _real(path)
        if _is_socket(real):
            found.setdefault(real, Endpoint("podman" if "podman" in str(real) else "docker", f"unix://{path}"))
    return list(found.values())


def _named(environment: Mapping[str, str]) -> Endpoint | None:
    try:
        return endpoint(environment.get("DOCKER_HOST", ""), environment)
    except ValueError:  # none is given, or one for people only: ssh://
        return None


def endpoint(url: str, environment: Mapping[str, str]) -> Endpoint:
    """What a url means, with the certificates Docker's own client would take; ValueError for a bad one."""
    address = parse_address(url)
    name = "podman" if "podman" in url else "docker"
    if address.path or not environment.get("DOCKER_TLS_VERIFY"):
        return Endpoint(name, url)
    folder = Path(environment.get("DOCKER_CERT_PATH") or f"{environment.get('HOME', '/root')}/.docker")
    return Endpoint(name, url, str(folder / "ca.pem"), str(folder / "cert.pem"), str(folder / "key.pem"))


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


def _real(path: Path) -> Path:
    """/var/run is /run, and podman-docker links Docker's path to Podman's."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # not to be read, or a link to itself
        return path


def _is_socket(path: Path) -> bool:
    try:
        return path.is_socket()
    except OSError:
        return False
