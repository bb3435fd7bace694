"""Who asks, and what they may see: a middleware in front of the pages.

Without users and without an own view, every client sees everything. With `own_view`, each client has to tell who it is:
by basic authentication, by the header of a trusted proxy, or by a bearer token that the Kubernetes API server reviews.
A client with the role `all` sees everything; any other one is a `Viewer`.
"""

from __future__ import annotations

import pwd
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path

from gpuledger.errors import ReviewError
from gpuledger.model.problem import Problem
from gpuledger.net.kubeapi import ApiAccess
from gpuledger.runtime.threads import Lookups
from gpuledger.web.auth import Logins, credentials
from gpuledger.web.connection import Handler, group_of
from gpuledger.web.http import PROBES, Request, Response, Viewer
from gpuledger.web.responses import UNAUTHORIZED, unavailable
from gpuledger.web.reviews import Reviews
from gpuledger.web.webconfig import KubernetesReviews, OwnView, WebConfig

FORWARDED = "x-gpuledger-token"
"""Header with a bearer token. The API server's proxy removes the header Authorization."""
LOOKUP_S = 2.0
"""How long to wait for the uid of a user: a directory server may not answer."""


class Access:
    """Middleware that requires what the configuration requires. `report` gets why tokens are not reviewed, or None."""

    def __init__(
        self,
        pages: Handler,
        config: Callable[[], WebConfig],
        logins: Logins,
        report: Callable[[Problem | None], None] = lambda _: None,
    ) -> None:
        self._pages, self._config, self._logins, self._report = pages, config, logins, report
        self._reviews: tuple[KubernetesReviews, Reviews] | None = None
        self._uids: Lookups[str, int] = Lookups("users")

    def __call__(self, request: Request) -> Response:
        """The page, or 401, 403 or 503."""
        config = self._config()
        if config.own_view is not None and request.path in PROBES:
            return self._pages(request)
        viewer = self._viewer(request, config)
        if isinstance(viewer, Response):
            return viewer
        response = self._pages(replace(request, viewer=viewer))
        if response.live and not isinstance(response.body, bytes):
            body = Revocable(response.body, lambda: self._is_valid(request, config), response.close)
            return replace(response, body=body)
        return response

    def _is_valid(self, request: Request, before: WebConfig) -> bool:
        config = self._config()
        is_same = (config.users, config.own_view) == (before.users, before.own_view)
        return is_same and (config.own_view is None or self._viewer(request, config) is None)

    def _viewer(self, request: Request, config: WebConfig) -> Viewer | Response | None:
        """None for a client that sees everything; or the response to a client that may see nothing."""
        own_view, header = config.own_view, request.headers.get("authorization", "")
        if own_view is not None:
            if user := own_view.proxy_user(request.address, request.headers):
                return self._of_host(user, own_view)
            scheme, _, token = header.partition(" ")
            token = request.headers.get(FORWARDED, token if scheme.lower() == "bearer" else "")
            if token and own_view.kubernetes is not None:
                return self._of_token(token.strip(), own_view.kubernetes, group_of(request.address))
        if config.users:
            refusal = self._logins.refusal(config.users, header, group_of(request.address))
            if refusal is not None or own_view is None:
                return refusal
            name, _ = credentials(header) or (b"", b"")
            return self._of_host(name.decode("utf-8", "surrogateescape"), own_view)
        return None if own_view is None else UNAUTHORIZED

    def _of_host(self, user: str, own_view: OwnView) -> Viewer | None:
        if user in own_view.sees_all:
            return None
        uid = self._uids.get(user, lambda: pwd.getpwnam(user).pw_uid, timeout_s=LOOKUP_S)
        return Viewer(user, uid=uid)

    def _of_token(self, token: str, settings: KubernetesReviews, client: str) -> Viewer | Response | None:
        if self._reviews is None or self._reviews[0] != settings:
            path = settings.kubeconfig
            access = partial(ApiAccess.from_kubeconfig, Path(path)) if path else ApiAccess.in_cluster
            self._reviews = settings, Reviews(access, settings.audiences, self._report)
        reviews = self._reviews[1]
        try:
            user = reviews.user(token, client)
        except ReviewError as error:
            return unavailable(error)
        if user is None or user.name in settings.sees_all:
            return UNAUTHORIZED if user is None else None
        return Viewer(user.name, readable=partial(reviews.readable, user, client=client))


class Revocable:
    """A body that may stream for days. It ends when its reader may no longer see it, and has to log in again."""

    def __init__(self, body: Iterable[bytes], is_valid: Callable[[], bool], close: Callable[[], None]) -> None:
        self._body, self._is_valid = body, is_valid
        self.close = close

    def __iter__(self) -> Iterator[bytes]:
        return takewhile(lambda _: self._is_valid(), self._body)
