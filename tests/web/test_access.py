"""Who asks, and what they may see: users, trusted proxies and bearer tokens."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuledger.config import yamlfile
from gpuledger.errors import ConfigError, ReviewError
from gpuledger.model.problem import Problem
from gpuledger.web import webconfig
from gpuledger.web.access import Access
from gpuledger.web.auth import Logins
from gpuledger.web.http import PROBES, Request, Response, Viewer
from gpuledger.web.webconfig import OwnView, WebConfig, WebFile
from tests.owners.providers.api_server import kubeconfig
from tests.web.asked import Asked, node
from tests.web.logins import USERS, Compared, basic
from tests.web.review_server import OWN_TOKEN, ReviewServer

USER = pwd.getpwuid(os.getuid()).pw_name
ALL = Response.text(200, "everything")
PROXY = "own_view: {proxy: {header: X-Remote-User, addresses: [10.0.0.5, 'fd00::/8']}, roles: {admin: all, bob: own}}"


def config(text: str) -> WebConfig:
    """The configuration in a text, with users."""
    users = yaml.safe_dump({"basic_auth_users": USERS})
    return webconfig.parse(yamlfile.parse(f"{text}\n{users}", "web.yml"), "/etc/web")


class Seen:
    """An access whose page tells who sees it."""

    def __init__(self, settings: WebConfig, report: Callable[[Problem | None], None] = lambda _: None) -> None:
        self.settings = settings
        self.viewers: list[Viewer | None] = []
        self._access = Access(self._page, lambda: self.settings, Logins(Compared()), report)

    def _page(self, request: Request) -> Response:
        self.viewers.append(request.viewer)
        return ALL

    def status(self, address: str = "127.0.0.1", path: str = "/", **headers: str) -> int:
        """Status of a request."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._access(Request("GET", path, {}, named, "HTTP/1.1", keep_alive=True, address=address)).status

    def name(self, address: str = "127.0.0.1", **headers: str) -> str | None:
        """Whose view a request gets; None for everything."""
        assert self.status(address, **headers) == 200
        viewer = self.viewers[-1]
        return viewer.name if viewer else None


def test_roles_of_users() -> None:
    """Whoever has no role sees the own view; wrong passwords see nothing."""
    seen = Seen(config("own_view: {roles: {alice: all}}"))
    assert seen.name(authorization=basic("alice", "wonder")) is None
    seen.settings = config("own_view: {}")
    assert seen.name(authorization=basic("alice", "wonder")) == "alice"
    assert [seen.status(), seen.status(authorization=basic("alice", "no")), seen.status(authorization="Bearer x")] == [
        401, 401, 401,
    ]  # fmt: skip
    seen.settings = WebConfig(users=USERS)
    assert seen.name(authorization=basic("alice", "wonder")) is None


def test_health_checks_are_open() -> None:
    """The kubelet has no password. Without an own view, they need one, as in other exporters."""
    seen = Seen(config("own_view: {}"))
    assert [seen.status(path=path) for path in PROBES] == [200] * len(PROBES)
    seen.settings = WebConfig(users=USERS)
    assert seen.status(path="/healthz") == 401


def test_the_header_of_a_trusted_proxy() -> None:
    """From any other address, it is ignored."""
    seen = Seen(config(PROXY))
    assert [seen.name(address, x_remote_user="bob") for address in ("10.0.0.5", "fd00::7")] == ["bob", "bob"]
    assert seen.name("10.0.0.5", x_remote_user="admin") is None
    assert seen.name("10.0.0.5", x_remote_user=USER) == USER
    assert seen.viewers[-1] == Viewer(USER, uid=os.getuid())
    spoofed = [
        seen.status(address, x_remote_user="admin") for address in ("10.0.0.6", "127.0.0.1", "::1", "fe80::1%eth0")
    ]
    assert spoofed == [401] * 4
    assert seen.status("10.0.0.5") == 401
    assert seen.name("10.0.0.6", x_remote_user="admin", authorization=basic("alice", "wonder")) == "alice"
    assert seen.name("10.0.0.5", x_remote_user="admin, bob") == "admin, bob"  # the header twice: no such user
    assert seen.viewers[-1] == Viewer("admin, bob")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[ReviewServer, WebConfig]]:
    """An API server and a configuration that uses it."""
    server = ReviewServer({"t-alice": "alice", "t-prom": "prom"}, {"alice": {"ml"}})
    path = kubeconfig(server.port, tmp_path, prefix="/k8s", token=OWN_TOKEN)
    text = f"own_view: {{kubernetes: {{kubeconfig: {path}, roles: {{prom: all}}}}, roles: {{alice: all}}}}"
    yield server, config(text)
    server.close()


def test_bearer_tokens(cluster: tuple[ReviewServer, WebConfig]) -> None:
    """Both headers count. A user of Kubernetes does not have the role of the user of the host with the same name."""
    seen = Seen(cluster[1])
    assert seen.name(authorization="Bearer t-prom") is None
    assert seen.name(authorization="bearer t-alice") == "alice"
    assert seen.name(x_gpuledger_token="t-alice") == "alice"
    viewer = seen.viewers[-1]
    assert viewer is not None
    assert viewer.uid is None
    assert viewer.readable is not None
    assert viewer.readable({"ml", "web"}) == {"ml"}
    assert [seen.status(authorization="Bearer guess"), seen.status(x_gpuledger_token="a b"), seen.status()] == [401] * 3
    assert seen.name(authorization=basic("alice", "wonder")) is None


def test_a_review_that_fails_closes_the_view(cluster: tuple[ReviewServer, WebConfig]) -> None:
    """With a problem for the administrator; users with passwords are not affected."""
    problems: list[Problem | None] = []
    seen = Seen(cluster[1], problems.append)
    cluster[0].answer = 500, b""
    assert seen.status(authorization="Bearer t-prom") == 503
    assert problems[-1] is not None
    assert seen.name(authorization=basic("alice", "wonder")) is None


def test_a_stream_ends_when_a_right_ends(cluster: tuple[ReviewServer, WebConfig]) -> None:
    """Also if the configuration stays the same."""
    server, settings = cluster
    live = Response(200, [], iter([b"1", b"2", b"3"]), live=True)
    access = Access(lambda _: live, lambda: settings, Logins(Compared()))
    request = Request("GET", "/", {}, {"authorization": "Bearer t-prom"}, "HTTP/1.1", keep_alive=True)
    response = access(request)
    assert not isinstance(response.body, bytes)
    parts = iter(response.body)
    assert next(parts) == b"1"
    assert access._reviews is not None
    access._reviews[1]._results.clear()  # a minute later
    del server.users["t-prom"]

    assert list(parts) == []


MISTAKES = [
    ("own_view: {role: {}}", "unknown field role in own_view; did you mean roles?"),
    ("own_view: {roles: {a: admin}}", "admin is not one of all, own"),
    ("own_view: {proxy: {header: X-User}}", "addresses is missing"),
    ("own_view: {proxy: {addresses: [10.0.0.1]}}", "header is missing"),
    ("own_view: {proxy: {header: X-User, addresses: [gateway]}}", "gateway is not an address or a network"),
    ("own_view: {proxy: {header: X-User, addresses: [10.0.0.5/8]}}", "10.0.0.5/8 is not an address or a network"),
    ("own_view: {kubernetes: {token: x}}", "unknown field token in kubernetes"),
    ("own_view: 5", "own_view is not a mapping"),
]


@pytest.mark.parametrize(("text", "error"), MISTAKES)
def test_mistakes(text: str, error: str) -> None:
    """Each has its line."""
    with pytest.raises(ConfigError, match="line 1: ") as raised:
        config(text)
    assert error in str(raised.value)


def test_an_empty_section_shows_nobody_everything() -> None:
    """Paths are relative to the file; an empty section is an own view for all. It cannot be removed by half a file."""
    assert config("own_view:").own_view == OwnView()
    own_view = config("own_view: {kubernetes: {kubeconfig: kube.conf, audiences: [a]}}").own_view
    assert own_view is not None
    assert own_view.kubernetes is not None
    assert (own_view.kubernetes.kubeconfig, own_view.kubernetes.audiences) == ("/etc/web/kube.conf", ("a",))


def test_a_reload_never_opens_the_view(tmp_path: Path) -> None:
    """A file that is half written, or that loses the section by mistake, changes nothing."""
    path = tmp_path / "web.yml"
    path.write_text(yaml.safe_dump({"basic_auth_users": USERS, "own_view": {}}))
    file = WebFile(str(path))
    path.write_text(yaml.safe_dump({"basic_auth_users": USERS}))

    assert file.get().own_view == OwnView()


class OfTenant(Asked):
    """Requests of a tenant."""

    def answer(self, path: str, viewer: Viewer) -> Response:
        """The response to a tenant."""
        return self.app(Request("GET", path, {}, {}, "HTTP/1.1", keep_alive=True, viewer=viewer))

    def content(self, path: str, viewer: Viewer) -> Any:
        """JSON for a tenant."""
        response = self.answer(path, viewer)
        assert (response.status, dict(response.headers)["Cache-Control"]) == (200, "no-store")
        return json.loads(response.body if isinstance(response.body, bytes) else b"".join(response.body))


def viewer_of(*namespaces: str) -> Viewer:
    """A user who may read these namespaces."""
    return Viewer("t", readable=lambda present: frozenset(present) & set(namespaces))


def test_tenants_see_their_own_rows() -> None:
    """Each tenant its own, also if several ask in the same tick; whoever sees everything is not affected."""
    asked = OfTenant(*node())
    everything = asked.json("snapshot")
    for name in ("team-2", "team-3", "team-2"):
        own = asked.content("/api/v1/snapshot", viewer_of(name))
        assert {row["namespace"] for row in (*own["processes"], *own["containers"])} == {name}
        assert own["viewer"] == "t"
        past = asked.content("/api/v1/history", viewer_of(name))
        assert {row["owner"] for row in past["owners"]["rows"]} <= {row["owner"] for row in own["containers"]}
    assert asked.json("snapshot") == everything
    assert everything["viewer"] == ""
    assert {gpu["others"] is None for gpu in everything["gpus"]} == {True}


def test_all_other_pages_are_closed() -> None:
    """With the same response, whether they exist or not."""
    asked = OfTenant(*node())
    paths = {*asked.app._pages, "/nothing", "/api/v1/scaling/namespace=team-2", "/api/v1/snapshot/", "/api/v1/Snapshot"}
    answers = {path: asked.answer(path, viewer_of("team-2")) for path in paths}
    closed = {path for path, answer in answers.items() if answer.status == 403}

    assert {answers[path].body for path in closed} == {asked.answer("/other", viewer_of()).body}
    assert {path for path in paths - closed if not path.startswith("/page/")} == {
        "/", *PROBES, "/api/v1/", "/api/v1/snapshot", "/api/v1/history", "/api/v1/openapi.json",
    }  # fmt: skip


def test_pages_in_memory_are_bounded() -> None:
    """However many tenants there are."""
    asked = OfTenant(*node())
    for number in range(200):
        asked.content("/api/v1/snapshot", Viewer(f"user-{number}", uid=number))
    assert len(asked.api._cached) <= 64


def test_a_review_that_fails_while_a_page_is_made() -> None:
    """503 without a reason."""

    def fails(_: object) -> frozenset[str]:
        raise ReviewError("the API server did not review the request", "try again later")

    response = OfTenant(*node()).answer("/api/v1/snapshot", Viewer("t", readable=fails))
    assert (response.status, response.body) == (503, b"the API server did not review the request; try again later\n")
