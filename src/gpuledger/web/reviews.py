"""Reviews by the Kubernetes API server: the user of a bearer token, and the namespaces whose pods the user may get.

Results are kept for a short time. A review that fails is an error, never an answer: the view stays closed.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from gpuledger.errors import ConfigError, HttpError, ProviderError, ReviewError
from gpuledger.model.problem import WARNING, Problem
from gpuledger.net.answers import status_kind
from gpuledger.net.jsonvalues import as_dict, as_list, as_text
from gpuledger.net.kubeapi import TOKEN, ApiAccess

T = TypeVar("T")

VALID_S = 60.0
"""How long a result counts: a right that is withdrawn ends after this time. The API server's own cache: 10 s."""
REFUSED_S = 10.0
"""The same for a token that is not valid and for a namespace that may not be read."""
TIMEOUT_S = 3.0
SIMULTANEOUS = 4
"""Reviews at a time; one for each client. More could keep the API server from its work."""
MOST_RESULTS = 4096
TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
RIGHTS_FIX = "bind the service account of the exporter to the ClusterRole system:auth-delegator"
SERVER_FIX = "check whether the API server can be reached from here"


@dataclass(frozen=True, slots=True)
class TokenUser:
    """The user of a token. `spec` is what a review of its rights contains."""

    name: str
    spec: str


class Reviews:
    """Reviews by one API server. Thread-safe. `report` gets why the last review failed, or None."""

    def __init__(
        self,
        access: Callable[[], ApiAccess],
        audiences: Collection[str] = (),
        report: Callable[[Problem | None], None] = lambda _: None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access, self._audiences, self._report = access, list(audiences), report
        self._secret, self._monotonic = secrets.token_bytes(32), monotonic
        self._changed = threading.Condition()  # guards the following
        self._results: dict[object, tuple[Any, float]] = {}
        """Results and the times until which they count, oldest first."""
        self._reviewing: set[str] = set()
        """Clients whose reviews are in progress."""

    def user(self, token: str, client: str) -> TokenUser | None:
        """The user of a token; None if the token is not valid. Raises ReviewError."""
        if not TOKEN.fullmatch(token):
            return None
        key = hashlib.blake2b(token.encode(), key=self._secret).digest()
        return self._cached(key, lambda: self._token_user(token, client))

    def readable(self, user: TokenUser, namespaces: Collection[str], client: str) -> frozenset[str]:
        """Those of the namespaces whose pods the user may get. Raises ReviewError."""
        reviews = {name: partial(self._may_read, user, name, client) for name in sorted(namespaces)}
        return frozenset(name for name, review in reviews.items() if self._cached((user, name), review))

    def _cached(self, key: object, review: Callable[[], T]) -> T:
        with self._changed:
            result, until_s = self._results.get(key, (None, 0.0))
            if self._monotonic() < until_s:
                return cast("T", result)
        result = review()
        with self._changed:
            self._results.pop(key, None)
            while len(self._results) >= MOST_RESULTS:
                del self._results[next(iter(self._results))]
            self._results[key] = result, self._monotonic() + (VALID_S if result else REFUSED_S)
        return result

    def _may_read(self, user: TokenUser, namespace: str, client: str) -> bool:
        pods = {"namespace": namespace, "verb": "get", "resource": "pods"}
        status = self._review(ACCESS, {**json.loads(user.spec), "resourceAttributes": pods}, client)
        return status.get("allowed") is True and status.get("denied") is not True

    def _token_user(self, token: str, client: str) -> TokenUser | None:
        audiences = {"audiences": self._audiences} if self._audiences else {}
        status = self._review(TOKENS, {"token": token, **audiences}, client)
        user, name = as_dict(status.get("user")), as_text(as_dict(status.get("user")).get("username"))
        is_meant = not self._audiences or set(self._audiences) & set(map(str, as_list(status.get("audiences"))))
        if status.get("authenticated") is not True or not name or not is_meant:
            return None
        spec = {"user": user["username"], **{key: user[key] for key in ("uid", "groups", "extra") if user.get(key)}}
        return TokenUser(name, json.dumps(spec, sort_keys=True))

    def _review(self, path: str, spec: Mapping[str, Any], client: str) -> Mapping[str, Any]:
        def has_room() -> bool:
            return client not in self._reviewing and len(self._reviewing) < SIMULTANEOUS

        with self._changed:
            if not self._changed.wait_for(has_room, TIMEOUT_S):
                raise ReviewError("other reviews are in progress", "try again in a second", "busy")
            self._reviewing.add(client)
        try:
            status = self._post(path, spec)
        except (ProviderError, ConfigError, HttpError) as error:
            self._report(Problem(error.problem.what, error.problem.fix or SERVER_FIX, error.kind, WARNING))
            raise ReviewError("the API server did not review the request", "try again later", error.kind) from None
        finally:
            with self._changed:
                self._reviewing.discard(client)
                self._changed.notify_all()
        self._report(None)
        return status

    def _post(self, path: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        access = self._access()
        status, review = access.ask(path, TIMEOUT_S, {"spec": spec})
        name, kind = f"the API server at {access.address}", status_kind(status)
        if status not in (200, 201):
            fix = RIGHTS_FIX if kind == "auth" else SERVER_FIX
            raise ProviderError(f"{name} refuses to review tokens with status {status}", fix, kind)
        if "status" not in review:
            raise ProviderError(f"{name} does not answer with a review", SERVER_FIX, "format")
        return as_dict(review["status"])
