"""The connection of one client: reading requests, sending responses and closing, each under a deadline."""

import contextlib
import logging
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Protocol, runtime_checkable

from gpuledger.export import http
from gpuledger.export.http import BadRequest, Limits, Request, Response
from gpuledger.net.deadline import Deadline

Handler = Callable[[Request], Response]

log = logging.getLogger(__name__)

LINGER_S = 0.5  # closing with unread bytes resets the connection, and the client loses the response
SLOW_S = 1.0  # a scrape takes milliseconds; a client that is still reading after this may be evicted
_READ_BYTES = 4096
_SEND_BYTES = 256 * 1024  # the deadline is checked after this many bytes, also if a send blocks (TLS)


@runtime_checkable
class Closable(Protocol):
    """A body that must be closed after use, such as a generator or a stream."""

    def close(self) -> None:
        """Release the body's resources."""


class Connection:
    """One client, served by its own thread.

    `waiting_since` is None while a request is being handled. `sending_since` is the start of the current send: of the
    response, or of one part of a live response.
    """

    __slots__ = ("address", "buffer", "evicted", "limits", "sending_since", "sock", "waiting_since")

    def __init__(self, sock: socket.socket, limits: Limits, now: float, address: str = "") -> None:
        self.sock = sock
        self.address = address
        self.limits = limits
        self.waiting_since: float | None = now
        self.sending_since: float | None = None
        self.evicted = False
        self.buffer = bytearray()

    def read_request(self, *, fresh: bool) -> Request | None:
        """The next request; None if the client disconnected or was idle for too long."""
        started = fresh or bool(self.buffer)
        waited_s = 0.0 if self.waiting_since is None else monotonic() - self.waiting_since  # includes a TLS handshake
        deadline = Deadline((self.limits.head_s if started else self.limits.idle_s) - waited_s)
        while True:
            while self.buffer.startswith((b"\r", b"\n")):  # RFC 9112 2.2: empty lines before a request are ignored
                del self.buffer[0]
            end = http.head_end(self.buffer, self.limits)
            if end:
                head = bytes(self.buffer[:end])
                del self.buffer[:end]
                return http.parse_head(head, self.limits, self.address)
            try:
                self.sock.settimeout(deadline.left_s())
                data = self.sock.recv(_READ_BYTES)
            except TimeoutError:
                if not self.buffer:
                    return None
                raise BadRequest(408, f"the request took too long; send it within {self.limits.head_s:g} s") from None
            if not data:
                return None
            if not started:
                started, deadline = True, Deadline(self.limits.head_s)
            self.buffer += data

    def answer(self, request: Request, handler: Handler, *, keep_alive: bool) -> bool:
        """Call the handler and send its response; return whether the connection can be reused."""
        try:
            response = handler(request)
            pieces, keep = http.frame(response, request, keep_alive=keep_alive and http.refusal(request) is None)
        except BaseException as error:  # noqa: BLE001  # even SystemExit has nowhere to go in this thread
            _log_failure(request, error)
            response = Response.text(500, "the page could not be rendered; see the log of the exporter")
            pieces, keep = http.frame(response, request, keep_alive=False)
        deadline = Deadline(self.limits.write_s)
        try:
            for piece in _until_failure(pieces, request):
                if response.live or self.sending_since is None:
                    self.sending_since = monotonic()
                self.send(piece, Deadline(self.limits.live_s) if response.live else deadline)
                if response.live:  # the client has everything and waits for the next part
                    self.sending_since = None
        except OSError:
            # A reset cannot be mistaken for the end of the body, and the kernel drops its send buffer.
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise
        finally:
            self.sending_since = None
            if isinstance(response.body, Closable):
                response.body.close()
        return keep

    def send_error(self, error: BadRequest) -> None:
        """Send the reason why the request is rejected."""
        pieces, _ = http.frame(Response.text(error.status, error.message), None, keep_alive=False)
        self.send(b"".join(pieces), Deadline(LINGER_S))

    def send(self, data: bytes, deadline: Deadline) -> None:
        """Send all data, or raise TimeoutError."""
        unsent = memoryview(data)
        while unsent:
            self.sock.settimeout(deadline.left_s())
            unsent = unsent[self.sock.send(unsent[:_SEND_BYTES]) :]

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

    def eviction_key(self, now: float) -> tuple[int, float] | None:
        """Sort key for eviction, smallest first; None if the connection must not be evicted.

        Clients that send nothing come first, then clients that are slow to read their response.
        """
        if self.evicted:
            return None
        if self.waiting_since is not None:
            return 0, self.waiting_since
        sending_since = self.sending_since
        return None if sending_since is None or now - sending_since < SLOW_S else (1, sending_since)

    def cut(self) -> None:
        """Shut the socket down, which ends its thread. Called with the server's lock held, so that it is open."""
        self.evicted = True
        with contextlib.suppress(OSError):  # not the method of TLS sockets, which would continue in clear text
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


def _until_failure(pieces: Iterable[bytes], request: Request) -> Iterator[bytes]:
    try:
        yield from pieces
    except Exception as error:
        _log_failure(request, error)
        raise ConnectionAbortedError from error


def _log_failure(request: Request, error: BaseException) -> None:
    log.error("%s %s failed: %s: %s", request.method, request.path, type(error).__name__, error)
