"""Users, their headers, and a comparison that counts."""

from __future__ import annotations

import base64

import bcrypt

USERS = {"alice": bcrypt.hashpw(b"wonder", bcrypt.gensalt(4)).decode(), "bob": "$2b$04$" + "b" * 53}


def basic_bytes(raw: bytes) -> str:
    """A header with any bytes in it."""
    return "Basic " + base64.b64encode(raw).decode()


def basic(user: str, password: str) -> str:
    """The header of a request."""
    return basic_bytes(f"{user}:{password}".encode())


class Compared:
    """Counts comparisons; `alice` has the password `wonder`."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, bytes]] = []

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        """In place of bcrypt."""
        self.calls.append((password, hashed))
        return (password, hashed) == (b"wonder", USERS["alice"].encode())
