"""gRPC over a unix socket, one connection per call.

h2 and a small protobuf reader (`net/protobuf.py`) replace grpcio and protobuf: 1 MiB of memory instead of 20, and no
threads. A new connection takes less than a millisecond, and survives restarts of the server.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from gpuledger.errors import ProviderError
from gpuledger.model.plaintext import one_line
from gpuledger.net.answers import http_error, local_fixes, with_fix
from gpuledger.net.protobuf import WireError
from gpuledger.runtime.deadline import Deadline

ANSWER_LIMIT = 16 << 20
"""Bytes. The default of gRPC, 4 MiB, is too little for nodes with many pods."""
LARGEST_WINDOW = 2**31 - 1
"""No answer within the limit fills it, so the server never waits for a window update."""
RECEIVE_BYTES = 1 << 16
SETTINGS = b"\x04"
"""The type, in the fourth byte, of the frame with which an HTTP/2 server begins."""
UNIMPLEMENTED = "UNIMPLEMENTED"
STATUSES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", UNIMPLEMENTED,
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
"""By the number in `grpc-status`."""
CODES = frozenset(map(str, range(len(STATUSES))))


@dataclass(frozen=True, slots=True)
class UnixServer:
    """A gRPC server on this host."""

    path: str
    name: str
    """The server in messages: `the kubelet`."""
    start: str
    """The command that starts it."""

    def call(self, method: str, request: bytes, deadline: Deadline, *headers: tuple[str, str]) -> bytes:
        """The answer; raises ProviderError, with the kind UNIMPLEMENTED if the server lacks the method."""
        try:
            from h2.exceptions import H2Error
            from hpack import HPACKError
            from hyperframe.exceptions import HyperframeError
        except ImportError:
            what = f"cannot query {self.name}: the package h2 is missing"
            raise ProviderError(what, "it belongs to gpuledger: install gpuledger again", "package") from None
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(deadline.left_s())
                connection.connect(self.path)
                answer = _exchange(connection, method, request, deadline, headers)
        except OSError as error:
            raise self._socket_error(error, deadline) from None
        except (H2Error, HPACKError, HyperframeError, WireError) as error:
            reason = one_line(str(error)) or type(error).__name__
            raise self.format_error(f"does not speak gRPC ({reason})") from None
        return self._checked(method, answer)

    def format_error(self, what: str) -> ProviderError:
        """The error for a malformed answer."""
        return ProviderError(f"{self.path} {what}", f"see whether it is the socket of {self.name}", "format")

    def _socket_error(self, error: OSError, deadline: Deadline) -> ProviderError:
        if isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError):
            return ProviderError(f"{self.path} closed the connection", f"see the log of {self.name}", "half")
        fixes = local_fixes(
            self.start,
            missing="mount the directory of its socket",
            permission="run as root, in a container `--user 0`: the socket is root's",
            timeout=f"see whether {self.name} hangs",
        )
        failure = http_error(error, self.path, deadline, self.path)
        return with_fix(ProviderError, failure, fixes, f"see whether it is the socket of {self.name}")

    def _checked(self, method: str, answer: _Answer) -> bytes:
        if answer.http_status != b"200":
            raise self.format_error(f"answers with HTTP status {one_line(answer.http_status.decode('latin-1'))}")
        if answer.is_too_large:
            what = f"the answer of {self.path} is longer than {ANSWER_LIMIT >> 20} MiB"
            raise ProviderError(what, f"see what {self.name} lists", "size")
        code = answer.grpc_status.decode("latin-1")
        if code != "0":
            status = STATUSES[int(code)] if code in CODES else f"status {one_line(code)}" if code else "no status"
            message = one_line(unquote(answer.grpc_message.decode("latin-1")))
            what = f"{self.path} refuses {method}: {status}{message and f' ({message})'}"
            raise ProviderError(
                what, f"see the log of {self.name}", UNIMPLEMENTED if status == UNIMPLEMENTED else "http"
            )
        length = int.from_bytes(answer.body[1:5], "big")
        if len(answer.body) < 5 or answer.body[0] != 0 or len(answer.body) != 5 + length:
            raise self.format_error("does not answer with one plain message")
        return bytes(memoryview(answer.body)[5:])


@dataclass(slots=True)
class _Answer:
    """The part of an answer that has arrived."""

    http_status: bytes = b""
    grpc_status: bytes = b""
    grpc_message: bytes = b""
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False

    @property
    def is_too_large(self) -> bool:
        announced = int.from_bytes(self.body[1:5], "big") if len(self.body) >= 5 else 0
        return max(announced, len(self.body) - 5) > ANSWER_LIMIT

    def add_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Headers or trailers; an error may come with the headers already."""
        fields = dict(headers)
        self.http_status = fields.get(b":status", self.http_status)
        self.grpc_status = fields.get(b"grpc-status", self.grpc_status)
        self.grpc_message = fields.get(b"grpc-message", self.grpc_message)


def _exchange(
    connection: socket.socket, method: str, request: bytes, deadline: Deadline, metadata: Iterable[tuple[str, str]]
) -> _Answer:
    from h2.config import H2Configuration
    from h2.connection import H2Connection
    from h2.settings import SettingCodes, Settings

    http = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    http.local_settings = Settings(
        client=True, initial_values={SettingCodes.ENABLE_PUSH: 0, SettingCodes.INITIAL_WINDOW_SIZE: LARGEST_WINDOW}
    )
    http.initiate_connection()
    http.increment_flow_control_window(LARGEST_WINDOW - 65535)  # the window of a new connection
    stream = http.get_next_available_stream_id()
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),  # strict servers refuse the path of a socket here
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "gpuledger"),
        *metadata,
    ]
    http.send_headers(stream, headers)
    http.send_data(stream, b"\x00" + len(request).to_bytes(4, "big") + request, end_stream=True)
    answer, is_first = _Answer(), True
    connection.sendall(http.data_to_send())
    while not (answer.ended or answer.is_too_large):
        connection.settimeout(deadline.left_s())
        data = connection.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError
        if is_first and data[3:4] not in (b"", SETTINGS):  # h2 would wait for a frame of megabytes
            raise WireError("no HTTP/2 settings frame")
        is_first = False
        for event in http.receive_data(data):
            _take(event, answer)
        if reply := http.data_to_send():  # acknowledgements of settings and pings
            connection.settimeout(deadline.left_s())
            connection.sendall(reply)
    return answer


def _take(event: Any, answer: _Answer) -> None:
    from h2 import events

    if answer.ended:
        return
    if isinstance(event, (events.ResponseReceived, events.TrailersReceived)):
        answer.add_headers(event.headers)
    elif isinstance(event, events.DataReceived):
        answer.body += event.data
    elif isinstance(event, events.StreamEnded):
        answer.ended = True
    elif isinstance(event, (events.StreamReset, events.ConnectionTerminated)):
        raise ConnectionResetError
