"""Basic authentication: who may see the pages.

Bcrypt is slow on purpose, about 70 ms of a core at cost 10. So answers are remembered, one password at a time is looked
at (without Python's lock: ticks and other clients go on), and only some may wait for that.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import threading
from collections.abc import Callable, Mapping
from importlib.util import find_spec

from gpuledger.export.http import Response

MOST = 100
"""Answers of each kind that are remembered, as many as other exporters do."""
WAITING = 8
"""Clients that may wait for a password to be looked at. More of them could take all connections."""
OF_ONE_ADDRESS = 4
"""How many of these. Else a single host that guesses would keep out all whose password is not remembered yet."""
LONGEST_PASSWORD = 72
"""Bytes that bcrypt looks at."""

Compare = Callable[[bytes, bytes], bool]
"""Whether a password has this hash."""

UNAUTHORIZED = Response.text(401, "Unauthorized", ("WWW-Authenticate", "Basic"))
BUSY = Response.text(503, "too many passwords to look at; try again in a second", ("Retry-After", "1"))


def need_bcrypt() -> None:
    """Raises ValueError when passwords cannot be looked at."""
    if find_spec("bcrypt") is None:
        raise ValueError("basic_auth_users needs the bcrypt package; install it with `pip install gpuledger[auth]`")


def compare(password: bytes, hashed: bytes) -> bool:
    """Bcrypt's comparison, without Python's lock."""
    from bcrypt import checkpw  # only where there are users: 1 MB

    return checkpw(password, hashed)


class Logins:
    """Looks at passwords, and remembers what it found.

    Good and bad ones apart, so that wrong guesses cannot push out a right one, and under a keyed digest, so that no
    password stays in memory.
    """

    def __init__(self, compare: Compare = compare) -> None:
        self._compare = compare
        self._secret = secrets.token_bytes(32)
        self._remembered: dict[bool, dict[bytes, None]] = {True: {}, False: {}}
        self._waiting: list[str] = []
        self._counting = threading.Lock()
        self._looking = threading.Lock()

    def refusal(self, users: Mapping[str, str], header: str | None, address: str = "") -> Response | None:
        """The answer to a request of this client with this Authorization header; None when it may pass."""
        given = _credentials(header)
        if given is None:
            return UNAUTHORIZED
        user, password = given
        hashed = users.get(user.decode("utf-8", "surrogateescape"), "")
        # Somebody unknown is compared with somebody else's hash, always the same one: it takes as long, to the cost.
        against = hashed or sorted(users.values())[self._digest(user)[0] % len(users)]
        key = self._digest(user, hashed.encode(), against.encode(), password)
        good = self._recall(key)
        if good is None:
            if not self._may_wait(address):
                return BUSY
            try:
                good = self._look(key, bool(hashed), against, password)
            finally:
                with self._counting:
                    self._waiting.remove(address)
        return None if good else UNAUTHORIZED

    def _may_wait(self, address: str) -> bool:
        with self._counting:
            if len(self._waiting) >= WAITING or self._waiting.count(address) >= OF_ONE_ADDRESS:
                return False
            self._waiting.append(address)
            return True

    def _look(self, key: bytes, known: bool, against: str, password: bytes) -> bool:
        with self._looking:
            good = self._recall(key)  # somebody else may have asked the same meanwhile
            if good is not None:
                return good
            try:
                good = self._compare(password[:LONGEST_PASSWORD], against.encode()) and known
            except ValueError:  # what bcrypt cannot hash cannot be right
                good = False
            remembered = self._remembered[good]
            if len(remembered) >= MOST:
                del remembered[next(iter(remembered))]
            remembered[key] = None
            return good

    def _recall(self, key: bytes) -> bool | None:
        return next((good for good, keys in self._remembered.items() if key in keys), None)

    def _digest(self, *parts: bytes) -> bytes:
        made = hashlib.blake2b(key=self._secret, digest_size=32)
        for part in parts:
            made.update(b"%d:" % len(part) + part)
        return made.digest()


def _credentials(header: str | None) -> tuple[bytes, bytes] | None:
    """User and password of an Authorization header; None when there are none."""
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(encoded.encode("latin-1"), validate=True)
    except (binascii.Error, ValueError):
        return None
    user, colon, password = decoded.partition(b":")
    return (user, password) if colon else None
