"""The connection of one client: reading requests, sending responses and closing, each under a deadline."""

import contextlib
import fcntl
import logging
import socket
import struct
import sys
import termios
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from time import monotonic

from gpuledger.runtime.deadline import Deadline
from gpuledger.web import http
from gpuledger.web.http import BadRequest, Limits, Request, Response
from gpuledger.web.responses import NOT_RENDERED, refusal

Handler = Callable[[Request], Response]

log = logging.getLogger(__name__)

LINGER_S = 0.5  # closing with unread bytes resets the connection, and the client loses the response
SLOW_S = 0.25  # a client that sends or takes no bytes for this long may be evicted
_IDLE = 4  # an idle client may be evicted after this many times SLOW_S
_READ_BYTES = 4096
_PEEK_BYTES = 64
_SEND_BYTES = 256 * 1024  # the deadline is checked after this many bytes, also if a send blocks (TLS)
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset, and drop what the client has not read


class Connection:
    """One client, served by its own thread.

    `waiting_since` is None while a request is being handled. `sending_since` is the start of a send that the client
    has not taken yet. `requests` counts the requests that were read.
    """

    __slots__ = ("address", "buffer", "evicted", "limits", "requests", "sending_since", "sock", "waiting_since")

    def __init__(self, sock: socket.socket, limits: Limits, now: float, address: str = "") -> None:
        self.sock = sock
        self.address = address
        self.limits = limits
        self.waiting_since: float | None = now
        self.sending_since: float | None = None
        self.evicted = False
        self.requests = 0
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
                self.requests += 1
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
            pieces, keep = http.frame(response, request, keep_alive=keep_alive and refusal(request) is None)
        except BaseException as error:  # noqa: BLE001  # even SystemExit has nowhere to go in this thread
            _log_failure(request, error)
            response = NOT_RENDERED
            pieces, keep = http.frame(response, request, keep_alive=False)
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
        return keep

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
                self.sending_since = monotonic()
                unsent = unsent[self.sock.send(unsent[:_SEND_BYTES]) :]
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
        """Whether the bytes received so far are the start of a health check."""
        try:
            words = self.sock.recv(_PEEK_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT).split(b" ", 2)
        except OSError:
            return False
        return len(words) == 3 and words[1].partition(b"?")[0].decode("latin-1") in http.PROBES

    def eviction_key(self, now: float, slow_s: float) -> tuple[int, int, float] | None:
        """Sort key for eviction, smallest first; None if the client has not been slow for `slow_s`, or idle for longer.

        Clients without a complete request come first, then clients that do not read their response, then idle clients:
        those with the fewest requests, so that a scraper stays connected.
        """
        waiting_since, sending_since = self.waiting_since, self.sending_since
        if waiting_since is not None:
            key, patience_s = (0, 0, waiting_since), slow_s
            if self.requests:
                key, patience_s = (2, self.requests, waiting_since), _IDLE * slow_s
        elif sending_since is not None:
            key, patience_s = (1, 0, sending_since), slow_s
        else:
            return None
        return key if now - key[-1] >= patience_s else None

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


def choose_victim(connections: Collection[Connection], address: str, now: float) -> Connection | None:
    """The connection to evict for a client with this address: one of the address with the most connections.

    An address with fewer connections than the client's loses none. An address with at least two more may lose one at
    any time, other addresses only one that is slow.
    """
    counts = Counter(connection.address for connection in connections)
    keys: dict[Connection, tuple[int, int, int, float]] = {}
    for connection in connections:
        count = counts[connection.address]
        key = connection.eviction_key(now, 0.0 if count > counts[address] + 1 else SLOW_S)
        if key is not None and count >= counts[address]:
            keys[connection] = -count, *key
    return min(keys, key=keys.__getitem__, default=None)


def _until_failure(pieces: Iterable[bytes], request: Request) -> Iterator[bytes]:
    try:
        yield from pieces
    except Exception as error:
        _log_failure(request, error)
        raise ConnectionAbortedError from error


def _log_failure(request: Request, error: BaseException) -> None:
    log.error("%s %s failed: %s: %s", request.method, request.path, type(error).__name__, error)
