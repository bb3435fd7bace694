"""Protobuf messages as they are on the wire, read by field number, without schemas."""

from __future__ import annotations

from collections.abc import Iterator


class WireError(ValueError):
    """These bytes are no protobuf message."""


class Message:
    """A protobuf message, read by field number; only what has a length: texts and messages.

    Numbers are skipped, as are fields that nobody asks for; so newer servers are understood too.
    """

    __slots__ = ("_fields",)

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[bytes]] = {}
        for number, value in _fields(data):
            self._fields.setdefault(number, []).append(value)

    def text(self, number: int) -> str:
        """The last one, as protobuf has it; empty when there is none."""
        values = self._fields.get(number)
        return values[-1].decode() if values else ""

    def texts(self, number: int) -> list[str]:
        """Of a repeated field."""
        return [value.decode() for value in self._fields.get(number, ())]

    def message(self, number: int) -> Message:
        """All parts merged, which in protobuf is the same as their bytes joined; empty when there is none."""
        return Message(b"".join(self._fields.get(number, ())))

    def messages(self, number: int) -> list[Message]:
        """Of a repeated field."""
        return [Message(value) for value in self._fields.get(number, ())]

    def text_map(self, number: int) -> dict[str, str]:
        """Of a map from text to text, which is a list of pairs on the wire."""
        return {entry.text(1): entry.text(2) for entry in self.messages(number)}


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise WireError("a field has the number 0")
        if kind == 0:
            at = _varint(data, at)[1]
        elif kind == 1:
            at += 8
        elif kind == 5:
            at += 4
        elif kind == 2:
            length, start = _varint(data, at)
            at = start + length
            if at <= end:
                yield number, data[start:at]
        else:  # groups, which these messages never had
            raise WireError(f"field {number} is of no known kind")
    if at > end:
        raise WireError("it ends within a field")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise WireError("it ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise WireError("a number is too long")
