"""The connection of one client: reading requests, sending responses and closing, each under a deadline."""

import contextlib
import fcntl
import logging
import socket
import struct
import sys
import termios
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

from gpuledger.runtime.deadline import Deadline
from gpuledger.web import http
from gpuledger.web.http import BadRequest, Limits, Request, Response
from gpuledger.web.responses import NOT_RENDERED, refusal

Handler = Callable[[Request], Response]

log = logging.getLogger(__name__)

LINGER_S = 0.5  # closing with unread bytes resets the connection, and the client loses the response
SLOW_S = 0.25  # a client that sends or takes no bytes for this long may be evicted
_RATE = 1 << 20  # bytes per second; a client that takes fewer counts as waiting for the rest of the time
_READ_BYTES = 4096
_FIRST_BYTES = 64
_SEND_BYTES = 256 * 1024  # the deadline is checked after this many bytes, also if a send blocks (TLS)
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset, and drop what the client has not read


def group_of(address: str) -> str:
    """The clients that count as one: those of an IPv4 address or an IPv6 network. One host can have 2^64 addresses."""
    if ":" not in address:
        return address
    packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    return socket.inet_ntop(socket.AF_INET6, packed[:8] + bytes(8))


class Connection:
    """One client. A thread serves it while a request is handled, and while a TLS client sends one.

    `deadline` is when its request must be complete. `waiting_since` is None while a request is being handled.
    `sending_since` is the start of a send that the client has not taken yet, less the time that it wasted before.
    `requests` counts the requests that were read; `succeeded` tells whether the last response was sent, with status
    200.
    """

    __slots__ = (
        "address", "buffer", "deadline", "evicted", "group", "limits", "requests", "sending_since", "sock",
        "succeeded", "waiting_since", "wasted_s",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, limits: Limits, now: float, address: str = "") -> None:
        self.sock = sock
        self.address = address.removeprefix("::ffff:")
        self.group = group_of(self.address)
        self.limits = limits
        self.deadline = now + limits.head_s
        self.waiting_since: float | None = now
        self.sending_since: float | None = None
        self.wasted_s = 0.0
        self.evicted = self.succeeded = False
        self.requests = 0
        self.buffer = bytearray()

    def receive(self) -> bool:
        """Take bytes that have arrived, on a socket that does not block; False if the client disconnected."""
        try:
            data = self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not self.buffer:
            self.deadline = monotonic() + self.limits.head_s
        self.buffer += data
        return bool(data)

    def has_request(self) -> bool:
        """Whether a request, or the start of an invalid one, has arrived."""
        while self.buffer.startswith((b"\r", b"\n")):  # RFC 9112 2.2: empty lines before a request are ignored
            del self.buffer[0]
        try:
            return http.head_end(self.buffer, self.limits) > 0
        except BadRequest:
            return True

    def read_request(self) -> Request | None:
        """The next request; None if the client disconnected or sent nothing."""
        waited_s = 0.0 if self.waiting_since is None else monotonic() - self.waiting_since  # includes a TLS handshake
        deadline = Deadline(self.limits.head_s - waited_s)
        while True:
            if self.has_request():
                end = http.head_end(self.buffer, self.limits)
                head = bytes(self.buffer[:end])
                del self.buffer[:end]
                self.requests += 1
                return http.parse_head(head, self.limits, self.address)
            try:
                self.sock.settimeout(deadline.left_s())
                data = self.sock.recv(_READ_BYTES)
            except TimeoutError:
                if not self.buffer:
                    return None
                raise self.late() from None
            if not data:
                return None
            self.buffer += data

    def late(self) -> BadRequest:
        """The error of a request that is not complete in time."""
        return BadRequest(408, f"the request took too long; send it within {self.limits.head_s:g} s")

    def answer(self, request: Request, handler: Handler, *, keep_alive: bool) -> bool:
        """Call the handler and send its response; return whether the connection can be reused."""
        response, pieces, keep = _call(request, handler, keep_alive=keep_alive)
        self.wasted_s, self.succeeded = 0.0, False
        deadline = Deadline(self.limits.write_s)
        try:
            for piece in _until_failure(pieces, request):
                self.send(piece, Deadline(self.limits.live_s) if response.live else deadline)
        except OSError:
            # A reset cannot be mistaken for the end of the body.
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            raise
        finally:
            response.close()
        self.succeeded = response.status == 200
        return keep

    def answer_now(self, request: Request, handler: Handler, *, keep_alive: bool) -> bool:
        """Like `answer`, for a small response; a client that does not take it at once loses its connection."""
        _, pieces, keep = _call(request, handler, keep_alive=keep_alive)
        data = b"".join(pieces)
        return self.sock.send(data) == len(data) and keep

    def send_error(self, error: BadRequest) -> None:
        """Send the reason why the request is rejected."""
        pieces, _ = http.frame(Response.text(error.status, error.message), None, keep_alive=False)
        self.send(b"".join(pieces), Deadline(LINGER_S))

    def send(self, data: bytes, deadline: Deadline) -> None:
        """Send all data, or raise TimeoutError."""
        unsent = memoryview(data)
        try:
            while unsent:
                self.sock.settimeout(deadline.left_s())
                self.sending_since = monotonic() - self.wasted_s
                size = self.sock.send(unsent[:_SEND_BYTES])
                self.wasted_s = max(0.0, monotonic() - self.sending_since - size / _RATE)
                unsent = unsent[size:]
        finally:
            self.sending_since = None

    def linger(self) -> None:
        """Close our side and read until the client closes too, so that it can read the response."""
        deadline = Deadline(LINGER_S)
        self.sock.settimeout(LINGER_S)
        if unwrap := getattr(self.sock, "unwrap", None):
            with contextlib.suppress(OSError, ValueError):  # the client disconnected, or this was never TLS
                unwrap()  # sends close_notify: without it, TLS clients suspect a truncation attack
        socket.socket.shutdown(self.sock, socket.SHUT_WR)
        self.sock.settimeout(deadline.left_s())
        while self.sock.recv(_READ_BYTES):
            self.sock.settimeout(deadline.left_s())

    def is_probe(self) -> bool:
        """Whether the next request is a health check."""
        words = bytes(self.buffer[:_FIRST_BYTES]).split(b" ", 2)
        return len(words) == 3 and words[1].partition(b"?")[0].decode("latin-1") in http.PROBES

    def eviction_key(self, now: float, slow_s: float) -> tuple[int, float] | None:
        """Sort key for eviction, smallest first; None if the client has not been slow for `slow_s`.

        Clients without a complete request come first, then clients that do not read their response.
        """
        waiting_since, sending_since = self.waiting_since, self.sending_since
        if waiting_since is not None:
            key = 0, waiting_since
        elif sending_since is not None:
            key = 1, sending_since
        else:
            return None
        return key if now - key[-1] >= slow_s else None

    def cut(self) -> None:
        """Shut the socket down, which ends its thread. Called with the server's lock held, so that it is open."""
        self.evicted = True
        with contextlib.suppress(OSError, ValueError):  # its socket may be closed, or being wrapped in TLS
            if self._unread_bytes():  # otherwise they would stay in kernel memory after the connection is closed
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)  # that of TLS sockets would continue in clear text

    def _unread_bytes(self) -> int:
        """Bytes in the send buffer."""
        size = fcntl.ioctl(self.sock.fileno(), termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(size, sys.byteorder)


def _call(request: Request, handler: Handler, *, keep_alive: bool) -> tuple[Response, Iterable[bytes], bool]:
    """The response of the handler, what to send of it, and whether the connection can be reused."""
    keep = keep_alive and request.keep_alive and refusal(request) is None
    try:
        response = handler(request)
        return response, *http.frame(response, request, keep_alive=keep)
    except BaseException as error:  # noqa: BLE001  # even SystemExit has nowhere to go in this thread
        _log_failure(request, error)
        return NOT_RENDERED, *http.frame(NOT_RENDERED, request, keep_alive=False)


def _until_failure(pieces: Iterable[bytes], request: Request) -> Iterator[bytes]:
    try:
        yield from pieces
    except Exception as error:
        _log_failure(request, error)
        raise ConnectionAbortedError from error


def _log_failure(request: Request, error: BaseException) -> None:
    log.error("%s %s failed: %s: %s", request.method, request.path, type(error).__name__, error)
