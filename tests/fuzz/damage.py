"""Real inputs made wrong: bytes changed, cut, swapped, repeated until they are large, or mixed with another's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

LARGE = 128 << 10
"""Enough for anything quadratic to take minutes."""
TOKENS = (
    b"\0", b"\n", b"\r\n", b"\r\n\r\n", b" ", b"\t", b'"', b"\\", b"{", b"}", b"[", b"]", b"/", b"..", b":",
    b"::", b"%", b"=", b",", b"-", b"_", b"#", b"# HELP ", b"# TYPE ", b"0", b"9" * 20, b"-1", b"1e999", b"NaN",
    b"+Inf", b"null", b"true", b"\xff", b"\xc3\x28", b"\xe2\x80\xae", b"\xf0\x9f\x92\xa9", b"a", b"ab",
    b"\x80\x80\x80\x80\x01", b"\x0a\x7f", b"&a", b"*a", b"!!python/object:os.system", b"\\x2d", b"\\u0000", b"\x1f\x8b",
)  # fmt: skip

Damage = Callable[[Random, bytes, Sequence[bytes]], bytes]


def _changed(random: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    made = bytearray(data)
    for _ in range(random.randint(1, 8)):
        if made:
            made[random.randrange(len(made))] = random.randrange(256)
    return bytes(made)


def _cut(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, stop = sorted(random.randint(0, len(data)) for _ in range(2))
    return data[:start] + data[stop:]


def _put(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + random.choice(TOKENS) * random.choice((1, 1, 2, 100)) + data[at:]


def _mixed(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = random.choice(others)
    return data[: random.randint(0, len(data))] + other[random.randint(0, len(other)) :]


def _swollen(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """A token or a piece of it, again and again."""
    start, stop = sorted(random.randint(0, len(data)) for _ in range(2))
    piece = random.choice((random.choice(TOKENS), data[start:stop] or b"x", data[start : start + 3] or b"x"))
    return data[:start] + piece * (LARGE // len(piece)) + data[start:]


WAYS: tuple[Damage, ...] = (_changed, _changed, _cut, _put, _put, _mixed, _swollen)


def damaged(random: Random, seeds: Sequence[bytes]) -> bytes:
    """One of them, damaged in up to four ways, and not much larger than LARGE."""
    data = random.choice(seeds)
    for _ in range(random.randint(1, 4)):
        data = random.choice(WAYS)(random, data, seeds)
        data = data[: 2 * LARGE]
    return data
