"""Protobuf messages, read and written by field number without schemas. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gpuledger.model.plaintext import plain
from gpuledger.net.answers import Elements

MOST_FIELDS = 200_000
"""Of an answer, with up to 380 bytes each. A container of a runtime has about 100."""
VARINT, FIXED64, BYTES = 0, 1, 2


class WireError(ValueError):
    """Malformed protobuf or HTTP/2."""


class Message:
    """A protobuf message: its numbers, texts, messages and maps of texts.

    Other fields are skipped, so the messages of newer servers can be read too.
    """

    __slots__ = ("_elements", "_fields", "_numbers")

    def __init__(self, data: bytes, elements: Elements | None = None) -> None:
        self._elements = elements or Elements(MOST_FIELDS)  # all messages of an answer are counted together
        self._fields: dict[int, list[bytes]] = {}
        self._numbers: dict[int, int] = {}
        for number, value in _fields(data):
            self._elements.add()
            if isinstance(value, int):
                self._numbers[number] = value
            else:
                self._fields.setdefault(number, []).append(value)

    def number(self, number: int) -> int:
        """A variable-length number, not negative; 0 if there is none."""
        return self._numbers.get(number, 0)

    def text(self, number: int) -> str:
        """A text; empty if there is none. The last value counts, as in protobuf."""
        values = self._fields.get(number)
        return plain(values[-1].decode()) if values else ""

    def texts(self, number: int) -> list[str]:
        """The texts of a repeated field."""
        return [plain(value.decode()) for value in self._fields.get(number, ())]

    def message(self, number: int) -> Message:
        """A message; empty if there is none. Joining the bytes of all values merges them, as in protobuf."""
        return Message(b"".join(self._fields.get(number, ())), self._elements)

    def messages(self, number: int) -> list[Message]:
        """The messages of a repeated field."""
        return [Message(value, self._elements) for value in self._fields.get(number, ())]

    def text_map(self, number: int) -> dict[str, str]:
        """A map from text to text, which is a list of pairs on the wire."""
        return {entry.text(1): entry.text(2) for entry in self.messages(number)}


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire_type = key >> 3, key & 7
        if number == 0:
            raise WireError("a field has the number 0")
        if wire_type == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire_type == 1:
            at += 8
        elif wire_type == 5:
            at += 4
        elif wire_type == 2:
            length, start = _varint(data, at)
            at = start + length
            if at <= end:
                yield number, data[start:at]
        else:  # groups, which these messages never had
            raise WireError(f"field {number} has an unknown wire type")
    if at > end:
        raise WireError("truncated field")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise WireError("truncated varint")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise WireError("varint is too long")


def number_field(field: int, number: int) -> bytes:
    """A variable-length number, not negative."""
    return _key(field, VARINT) + _to_varint(number)


def fixed64_field(field: int, kind: str, value: float) -> bytes:
    """A number of eight bytes; `kind` is its format in `struct`: Q, q or d."""
    return _key(field, FIXED64) + struct.pack(f"<{kind}", value)


def bytes_field(field: int, data: bytes) -> bytes:
    """A nested message, or bytes."""
    return _key(field, BYTES) + _to_varint(len(data)) + data


def text_field(field: int, text: str) -> bytes:
    """A text; nothing if it is empty, as in protobuf."""
    return bytes_field(field, text.encode("utf-8", "replace")) if text else b""


def _key(field: int, kind: int) -> bytes:
    return _to_varint(field << 3 | kind)


def _to_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
