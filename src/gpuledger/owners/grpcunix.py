"""gRPC over a Unix socket: one question, one answer, a connection each time.

It uses h2 and the small reader in `protowire.py` instead of grpcio and protobuf: 1 MiB of memory instead of 20, and no
threads. A new connection costs under a millisecond every ten seconds, and a server that restarted needs no special
care.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from gpuledger.owners.protowire import WireError
from gpuledger.owners.provider import ProviderError

LONGEST_ANSWER = 64 << 20
"""Bytes. The 4 MiB that gRPC allows by default are too few for nodes with many pods."""
LARGEST_WINDOW = 2**31 - 1
"""No answer that we accept fills it, so the server never has to wait for us to widen it."""
LONGEST_REMARK = 200
RECEIVE_BYTES = 1 << 16
SETTINGS = b"\x04"
"""The type of the frame with which an HTTP/2 server begins, in its fourth byte."""
UNIMPLEMENTED = "UNIMPLEMENTED"
STATUSES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", UNIMPLEMENTED,
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
"""By the number in `grpc-status`."""
CODES = frozenset(map(str, range(len(STATUSES))))


class StatusError(ProviderError):
    """The server understood the call and refused it."""

    def __init__(self, text: str, status: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class UnixServer:
    """A gRPC server on this host."""

    path: str
    who: str
    """For messages: `the kubelet`."""

    def call(self, method: str, request: bytes, until: float) -> bytes:
        """The answer, which is there before the monotonic time `until`; raises ProviderError."""
        try:
            from h2.exceptions import H2Error
            from hpack import HPACKError
            from hyperframe.exceptions import HyperframeError
        except ImportError:
            raise ProviderError(
                f"cannot ask {self.who}: the package h2 is missing; install gpuledger[kubernetes]"
            ) from None
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_left_s(until))
                connection.connect(self.path)
                answer = _exchange(connection, method, request, until)
        except OSError as error:
            raise ProviderError(self._trouble(error)) from None
        except (H2Error, HPACKError, HyperframeError, WireError) as error:
            raise ProviderError(
                f"{self.path} does not speak gRPC ({_remark(str(error)) or type(error).__name__}); "
                f"is it the socket of {self.who}?"
            ) from None
        return self._judge(method, answer)

    def _trouble(self, error: OSError) -> str:
        path, who = self.path, self.who
        if isinstance(error, (TimeoutError, BlockingIOError)):  # the latter: too many others wait to be accepted
            return f"{path} does not answer in time; see whether {who} hangs"
        if isinstance(error, FileNotFoundError):
            return f"cannot open {path}: no such socket; start {who}, or mount the directory of its socket"
        if isinstance(error, PermissionError):
            return f"cannot open {path}: permission denied; run as root or do not ask {who}"
        if isinstance(error, ConnectionRefusedError):
            return f"cannot open {path}: nobody listens there; start {who}"
        if isinstance(error, ConnectionError):
            return f"{path} closed the connection; see the log of {who}"
        return f"cannot talk to {path}: {error.strerror or error}; see whether it is the socket of {who}"

    def _judge(self, method: str, answer: _Answer) -> bytes:
        if answer.http_status != b"200":
            said = _remark(answer.http_status.decode("latin-1"))
            raise ProviderError(f"{self.path} answers with HTTP status {said}; is it the socket of {self.who}?")
        if answer.too_long:
            raise ProviderError(
                f"the answer of {self.path} is longer than {LONGEST_ANSWER >> 20} MiB; see what {self.who} lists"
            )
        code = answer.grpc_status.decode("latin-1")
        if code != "0":
            status = STATUSES[int(code)] if code in CODES else f"status {_remark(code)}" if code else "no status"
            remark = _remark(unquote(answer.grpc_message.decode("latin-1")))
            text = f"{self.path} refuses {method}: {status}{remark and f' ({remark})'}; see the log of {self.who}"
            raise StatusError(text, status)
        length = int.from_bytes(answer.body[1:5], "big")
        if len(answer.body) < 5 or answer.body[0] != 0 or len(answer.body) != 5 + length:
            raise ProviderError(f"{self.path} does not answer with one plain message; is it the socket of {self.who}?")
        return bytes(memoryview(answer.body)[5:])


@dataclass(slots=True)
class _Answer:
    """What has come so far."""

    http_status: bytes = b""
    grpc_status: bytes = b""
    grpc_message: bytes = b""
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False

    @property
    def too_long(self) -> bool:
        said = int.from_bytes(self.body[1:5], "big") if len(self.body) >= 5 else 0
        return max(said, len(self.body) - 5) > LONGEST_ANSWER

    def headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """The first ones and the trailers; an error may come with the first ones already."""
        said = dict(headers)
        self.http_status = said.get(b":status", self.http_status)
        self.grpc_status = said.get(b"grpc-status", self.grpc_status)
        self.grpc_message = said.get(b"grpc-message", self.grpc_message)


def _exchange(connection: socket.socket, method: str, request: bytes, until: float) -> _Answer:
    from h2.config import H2Configuration
    from h2.connection import H2Connection
    from h2.settings import SettingCodes, Settings

    http = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    http.local_settings = Settings(
        client=True,
        initial_values={SettingCodes.ENABLE_PUSH: 0, SettingCodes.INITIAL_WINDOW_SIZE: LARGEST_WINDOW},
    )
    http.initiate_connection()
    http.increment_flow_control_window(LARGEST_WINDOW - 65535)  # what a connection has from the start
    stream = http.get_next_available_stream_id()
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),  # strict servers refuse a socket's path here
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "gpuledger"),
    ]
    http.send_headers(stream, headers)
    http.send_data(stream, b"\x00" + len(request).to_bytes(4, "big") + request, end_stream=True)
    answer, first = _Answer(), True
    connection.sendall(http.data_to_send())
    while not (answer.ended or answer.too_long):
        connection.settimeout(_left_s(until))
        data = connection.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError
        if first and data[3:4] not in (b"", SETTINGS):  # h2 would wait for megabytes of a frame that is none
            raise WireError("it does not begin as HTTP/2 does")
        first = False
        for event in http.receive_data(data):
            _take(event, answer)
        if reply := http.data_to_send():  # acknowledged settings and pings
            connection.settimeout(_left_s(until))
            connection.sendall(reply)
    return answer


def _take(event: Any, answer: _Answer) -> None:
    from h2 import events

    if answer.ended:  # what comes after the end is of no interest
        return
    if isinstance(event, (events.ResponseReceived, events.TrailersReceived)):
        answer.headers(event.headers)
    elif isinstance(event, events.DataReceived):
        answer.body += event.data
    elif isinstance(event, events.StreamEnded):
        answer.ended = True
    elif isinstance(event, (events.StreamReset, events.ConnectionTerminated)):
        raise ConnectionResetError


def _left_s(until: float) -> float:
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _remark(text: str) -> str:
    """What a server says, fit for one line of a log."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= LONGEST_REMARK else f"{line[:LONGEST_REMARK]}…"
