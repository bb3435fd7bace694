"""Answers of servers: limits of their size, and the kinds of failures with their fixes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gpuledger.errors import ConnectError, GpuledgerError, HttpError
from gpuledger.net.tls import TlsFilesError
from gpuledger.runtime.deadline import Deadline

MOST_ELEMENTS = 500_000
"""Of JSON: values that take up to 130 bytes each. A pod of the API server has about 1,000."""
RUNS = "check whether it runs"
CONNECT_KINDS: tuple[tuple[type[OSError], str, str], ...] = (
    (PermissionError, "permission", "allow this user to open the socket"),
    (FileNotFoundError, "missing", RUNS),
    (ConnectionRefusedError, "refused", RUNS),
)
E = TypeVar("E", bound=GpuledgerError)


class ElementsError(ValueError):
    """An answer has too many elements."""


class Elements:
    """Counts the elements of one answer.

    Tiny elements take up to a hundred times their size in memory, so that a limit of bytes alone does not limit memory.
    """

    def __init__(self, most: int = MOST_ELEMENTS) -> None:
        self._most, self._count = most, 0

    def add(self, count: int = 1) -> None:
        """Count elements before they are created. Raises ElementsError."""
        self._count += count
        if self._count > self._most:
            raise ElementsError(f"more than {self._most:,} elements")


def load_json(
    body: bytes, *, errors: str = "strict", object_hook: Callable[[dict[str, Any]], Any] | None = None
) -> Any:
    """Parse JSON. Raises ElementsError, ValueError or RecursionError.

    Each value but the first follows a comma or an opening bracket; those in texts are counted too.
    """
    Elements().add(sum(body.count(mark) for mark in (b",", b"[", b"{")))
    return json.loads(body.decode("utf-8", errors), object_hook=object_hook)


def http_error(error: OSError, name: str, deadline: Deadline, path: str = "") -> HttpError:
    """The HttpError for an error of a socket; `path` is that of a unix socket."""
    # BlockingIOError: the backlog of a unix socket is full.
    if isinstance(error, (TimeoutError, BlockingIOError)):
        what = f"no complete answer from {name} within {deadline.timeout_s:.3g} s"
        return HttpError(what, "check whether it is overloaded", "timeout")
    if isinstance(error, TlsFilesError):
        return ConnectError(f"cannot reach {name}: {error}", "correct the files", "unreachable")
    if tls_error := _tls_error(error, name):
        return tls_error
    what = f"cannot open {path}" if path else f"cannot reach {name}"
    causes = (cause for cause in CONNECT_KINDS if isinstance(error, cause[0]))
    _, kind, fix = next(causes, (OSError, "unreachable", RUNS))
    return ConnectError(f"{what}: {error.strerror or error}", fix, kind)


def _tls_error(error: OSError, name: str) -> HttpError | None:
    ssl = sys.modules.get("ssl")  # None if TLS was never used
    if ssl is None or not isinstance(error, ssl.SSLError):
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        what = f"the certificate of {name} is not trusted: {error.verify_message}"
        return HttpError(what, "trust the authority that signed it", "tls")
    reason = (error.reason or str(error)).replace("_", " ").lower()
    fix = "check whether it speaks https and requires a client certificate"
    return HttpError(f"no TLS with {name}: {reason}", fix, "tls")


def with_fix(error_type: type[E], error: HttpError, fixes: Mapping[str, str], other: str) -> E:
    """The error of one server: with the fix for its kind, or else `other`."""
    return error_type(error.problem.what, fixes.get(error.kind, other), error.kind)


def local_fixes(start: str, *, missing: str, permission: str, timeout: str) -> dict[str, str]:
    """Fixes by kind for a server on this host, which the command `start` starts."""
    return {
        "missing": f"{start}, or {missing}",
        "refused": f"{start}: nothing listens there",
        "permission": permission,
        "timeout": timeout,
    }


def refused(
    error_type: type[E], name: str, status: int, refusals: Mapping[int, tuple[str, str]], other: str, *, kind: str = ""
) -> E:
    """The error of a server that responds with a status other than 200: with the reason and fix for it, or `other`."""
    reason, fix = refusals.get(status, ("", other))
    if 300 <= status < 400:
        reason, fix = "redirects are not followed", "use the address it redirects to"
    what = f"{name} responds with status {status}{reason and f': {reason}'}"
    return error_type(what, fix, kind or status_kind(status))


def status_kind(status: int) -> str:
    """The kind of problem of an HTTP status other than 200."""
    return "auth" if status in (401, 403) else "http"
