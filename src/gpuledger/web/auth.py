"""Passwords of basic authentication.

bcrypt is slow on purpose, about 70 ms of a core at cost 10. Therefore results are cached, one password is compared at a
time (without the GIL, so that ticks and other clients continue), and only a few clients may queue. The queue is ordered
by address: the one with the fewest wrong passwords comes first.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuledger.web.http import Response
from gpuledger.web.responses import MANY_LOGINS, UNAUTHORIZED

CACHE_SIZE = 100
"""Cached successes, and cached failures; the same number as in exporter-toolkit."""
QUEUE_SIZE = 8
"""Clients that may queue for a comparison. More of them could take all connections."""
QUEUE_PER_ADDRESS = 4
"""Share of one address."""
FAILURES_SIZE = 1000
"""Addresses whose wrong passwords are counted."""
PASSWORD_BYTES = 72
"""bcrypt ignores the rest of a password."""

Compare = Callable[[bytes, bytes], bool]
"""Whether a password matches a hash."""


def compare(password: bytes, hashed: bytes) -> bool:
    """Bcrypt's comparison, which releases the GIL."""
    from bcrypt import checkpw  # only if there are users: 1 MB

    return checkpw(password, hashed)


@dataclass(slots=True, eq=False)
class _Client:
    """A client that waits for its comparison."""

    address: str


class Logins:
    """Checks passwords and caches the results.

    Successes and failures have separate caches, so that wrong guesses cannot evict a right one. The keys are keyed
    digests, so that no password stays in memory.
    """

    def __init__(self, compare: Compare = compare) -> None:
        self._compare = compare
        self._secret = secrets.token_bytes(32)
        self._cache: dict[bool, dict[bytes, None]] = {True: {}, False: {}}
        self._changed = threading.Condition()  # guards the following
        self._queue: list[_Client] = []  # oldest first
        self._current: _Client | None = None
        self._failures: dict[str, int] = {}

    def refusal(self, users: Mapping[str, str], header: str | None, address: str = "") -> Response | None:
        """The response to a request with this Authorization header; None if the login is valid."""
        login = credentials(header)
        if login is None:
            return UNAUTHORIZED
        user, password = login
        hashed = users.get(user.decode("utf-8", "surrogateescape"), "")
        # An unknown user is compared with another user's hash, always the same one, so that both take equally long.
        compared_hash = hashed or sorted(users.values())[self._digest(user)[0] % len(users)]
        key = self._digest(user, hashed.encode(), compared_hash.encode(), password)
        valid = self._cached(key)
        if valid is None:
            if not self._enqueue(client := _Client(address)):
                return MANY_LOGINS
            try:
                valid = self._check(key, password, compared_hash, known=bool(hashed))
            finally:
                self._finish(client, valid=bool(valid))
        return None if valid else UNAUTHORIZED

    def _enqueue(self, client: _Client) -> bool:
        """Wait for the client's turn; False if too many clients wait.

        If the queue is full, the address with the most wrong passwords, or else with the most clients, loses the last
        of its clients.
        """
        with self._changed:
            counts = Counter(other.address for other in (*self._queue, client))
            if counts[client.address] > QUEUE_PER_ADDRESS:
                return False
            self._queue.append(client)
            if len(self._queue) > QUEUE_SIZE:
                last = max(reversed(self._queue), key=lambda c: (self._count_failures(c), counts[c.address]))
                self._queue.remove(last)
                self._changed.notify_all()
            self._changed.wait_for(lambda: client not in self._queue or self._is_next(client))
            if client not in self._queue:
                return False
            self._queue.remove(client)
            self._current = client
            return True

    def _is_next(self, client: _Client) -> bool:
        return self._current is None and min(self._queue, key=self._count_failures) is client

    def _count_failures(self, client: _Client) -> int:
        return self._failures.get(client.address, 0)

    def _finish(self, client: _Client, *, valid: bool) -> None:
        with self._changed:
            failures = self._failures.pop(client.address, 0)
            if not valid:
                self._failures[client.address] = failures + 1  # last in the order of eviction
                if len(self._failures) > FAILURES_SIZE:
                    del self._failures[next(iter(self._failures))]
            self._current = None
            self._changed.notify_all()

    def _check(self, key: bytes, password: bytes, compared_hash: str, *, known: bool) -> bool:
        valid = self._cached(key)  # another client may have sent the same login meanwhile
        if valid is not None:
            return valid
        try:
            valid = self._compare(password[:PASSWORD_BYTES], compared_hash.encode()) and known
        except ValueError:  # bcrypt cannot hash this password
            valid = False
        cache = self._cache[valid]
        if len(cache) >= CACHE_SIZE:
            del cache[next(iter(cache))]
        cache[key] = None
        return valid

    def _cached(self, key: bytes) -> bool | None:
        return next((valid for valid, keys in self._cache.items() if key in keys), None)

    def _digest(self, *parts: bytes) -> bytes:
        digest = hashlib.blake2b(key=self._secret, digest_size=32)
        for part in parts:
            digest.update(b"%d:" % len(part) + part)
        return digest.digest()


def credentials(header: str | None) -> tuple[bytes, bytes] | None:
    """User and password of an Authorization header; None if it has none."""
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(encoded.encode("latin-1"), validate=True)
    except (binascii.Error, ValueError):
        return None
    user, colon, password = decoded.partition(b":")
    return (user, password) if colon else None
