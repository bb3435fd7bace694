"""A small threaded HTTP server that slow clients cannot starve.

One thread accepts connections; one daemon thread per connection reads requests, calls the handler and writes responses.
When all connections are in use, a new client evicts the client that has been silent longest, or else the one that has
been reading its response longest. Any number of such clients costs at most `max_connections` threads.
"""

import contextlib
import errno
import logging
import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING, cast

from gpuledger.errors import ListenError
from gpuledger.export import http
from gpuledger.export.connection import LINGER_S, Connection, Handler
from gpuledger.export.http import BadRequest, Limits, Response
from gpuledger.export.listen import check_address, listen

if TYPE_CHECKING:
    from ssl import SSLSocket  # 3 MB, only with TLS

Wrap = Callable[[socket.socket], "SSLSocket"]
Middleware = Callable[[Handler], Handler]

log = logging.getLogger(__name__)

_LINGERING = 16  # rejected connections that are kept open for LINGER_S
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Open connections, and since the start: accepted, evicted, and rejected with a 503."""

    open: int
    accepted: int
    evicted: int
    rejected: int


class Server:
    """Serves a handler on a list of addresses.

    `wrap` adds TLS to a connection. It runs in the connection's thread and must not wait for the client: wrap with
    `do_handshake_on_connect=False`; the server performs the handshake under the deadline of the first request.
    `middleware` wraps the handler and sees all requests, also those that no handler serves, such as a POST.
    `sockets` are listening TCP sockets opened elsewhere; the server takes ownership of them.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        handler: Handler,
        *,
        max_connections: int = 64,
        limits: Limits = http.DEFAULT_LIMITS,
        wrap: Wrap | None = None,
        middleware: Middleware | None = None,
        sockets: Sequence[socket.socket] = (),
    ) -> None:
        for address in addresses:
            check_address(address)
        self._addresses = list(addresses)
        handler = _with_refusals(handler)
        self._handler = handler if middleware is None else middleware(handler)
        self._wrap, self._limits, self._max_connections = wrap, limits, max_connections
        self._listeners = list(sockets)
        self._stopping = threading.Event()
        self._changed = threading.Condition()  # guards the connections, their states and the count
        self._connections: set[Connection] = set()
        self._accepted = self._evicted = self._rejected = 0
        self._lingering: deque[tuple[float, socket.socket]] = deque()  # this and the next belong to the accept thread
        self._exhausted = False
        self._thread: threading.Thread | None = None
        self._wake: socket.socket | None = None

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The bound (host, port) pairs."""
        return [listener.getsockname()[:2] for listener in self._listeners]

    @property
    def scheme(self) -> str:
        """The URL scheme of its pages."""
        return "http" if self._wrap is None else "https"

    @property
    def statistics(self) -> Statistics:
        """Counts for the exporter's own metrics."""
        with self._changed:
            return Statistics(len(self._connections), self._accepted, self._evicted, self._rejected)

    def bind(self) -> None:
        """Open all listeners, or none. Raises ListenError."""
        opened: list[socket.socket] = []
        try:
            opened.extend(listen(address) for address in self._addresses)
        except ListenError:
            for listener in opened:
                listener.close()
            raise
        self._addresses = []
        self._listeners += opened

    def start(self) -> None:
        """Serve in the background, after `bind` if that was not called."""
        self.bind()
        self._wake, woken = socket.socketpair()
        self._thread = threading.Thread(target=self._accept_all, args=(woken,), name="http-accept", daemon=True)
        self._thread.start()

    def stop(self, grace_s: float = 1.0) -> None:
        """Stop accepting, let responses finish for up to `grace_s`, then close all connections."""
        self._stopping.set()
        with self._changed:
            for connection in self._connections:
                if connection.waiting_since is not None:
                    connection.cut()
            self._changed.notify_all()
        if self._wake is not None and self._thread is not None:
            self._wake.close()
            self._thread.join(1.0)
        while self._listeners:
            self._listeners.pop().close()
        with self._changed:
            self._changed.wait_for(lambda: not self._connections, grace_s)
            for connection in self._connections:
                connection.cut()

    def _accept_all(self, woken: socket.socket) -> None:
        with woken, selectors.DefaultSelector() as selector:
            selector.register(woken, selectors.EVENT_READ)
            for listener in self._listeners:
                listener.setblocking(False)
                selector.register(listener, selectors.EVENT_READ, listener)
            while not self._stopping.is_set():
                for key, _ in selector.select(LINGER_S if self._lingering else None):
                    if key.data is not None:
                        self._accept(key.data)
                self._close_lingering(monotonic())
        self._close_lingering(float("inf"))

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, (address, *_) = listener.accept()
        except OSError as error:
            if error.errno not in _EXHAUSTED:  # the client disconnected
                return
            if not self._exhausted:
                log.warning("cannot accept connections: %s; raise the open file limit", os.strerror(error.errno))
            self._exhausted = True
            with self._changed:
                self._evict()
            self._stopping.wait(0.1)  # the listener stays readable, so that without a pause this would spin
            return
        self._exhausted = False
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = self._admit(sock, address)
        try:
            if connection is not None:
                threading.Thread(target=self._serve, args=(connection,), name="http", daemon=True).start()
                return
        except RuntimeError:  # the host refused another thread
            with self._changed:
                self._connections.discard(connection)
        self._reject(sock)

    def _admit(self, sock: socket.socket, address: str) -> Connection | None:
        """The connection of a new client, after evicting another one if needed; None if no client can be evicted."""
        with self._changed:
            if len(self._connections) >= self._max_connections and self._evict():  # its thread ends shortly
                self._changed.wait_for(
                    lambda: len(self._connections) < self._max_connections or self._stopping.is_set(), 1.0
                )
            if len(self._connections) >= self._max_connections or self._stopping.is_set():
                return None
            connection = Connection(sock, self._limits, monotonic(), address)
            self._connections.add(connection)
            self._accepted += 1
            return connection

    def _evict(self) -> bool:
        """Evict one client if possible. The caller holds the lock."""
        now = monotonic()
        candidates = [(key, c) for c in self._connections if (key := c.eviction_key(now)) is not None]
        if candidates:
            min(candidates, key=itemgetter(0))[1].cut()
            self._evicted += 1
        return bool(candidates)

    def _reject(self, sock: socket.socket) -> None:
        if self._stopping.is_set():
            sock.close()
            return
        with self._changed:
            self._rejected += 1
        message = "all connections are in use; try again in a second"
        pieces, _ = http.frame(Response.text(503, message, ("Retry-After", "1")), None, keep_alive=False)
        with contextlib.suppress(OSError):
            sock.setblocking(False)
            if self._wrap is None:  # TLS clients could not read it
                sock.send(b"".join(pieces))
            sock.shutdown(socket.SHUT_WR)
        self._lingering.append((monotonic() + LINGER_S, sock))
        if len(self._lingering) > _LINGERING:
            self._lingering.popleft()[1].close()

    def _close_lingering(self, now: float) -> None:
        while self._lingering and self._lingering[0][0] <= now:
            self._lingering.popleft()[1].close()

    def _serve(self, connection: Connection) -> None:
        try:
            connection.sock.settimeout(self._limits.head_s)
            if self._wrap is not None:
                connection.sock = self._wrap(connection.sock)
                if connection.evicted:  # while its socket was being wrapped
                    return
            if self._handshake(connection):
                self._handle_requests(connection)
            if self._wait(connection):
                connection.linger()
        except OSError:  # the client disconnected, was too slow, or was evicted
            pass
        except Exception as error:  # noqa: BLE001  # a bug must cost one connection, not the server
            log.error("connection dropped: %s: %s", type(error).__name__, error)  # noqa: TRY400  # one line
        finally:
            with self._changed:
                self._connections.discard(connection)
                self._changed.notify_all()
            connection.sock.close()

    def _handshake(self, connection: Connection) -> bool:
        """Perform the TLS handshake, if any; False if it failed. The client may still read the reason."""
        if self._wrap is None:
            return True
        try:
            cast("SSLSocket", connection.sock).do_handshake()
        except BadRequest as error:
            connection.send_error(error)
            return False
        except TimeoutError:
            raise
        except OSError:
            return False
        return True

    def _handle_requests(self, connection: Connection) -> None:
        """Handle requests until one side closes."""
        for served in range(1, self._limits.requests + 1):
            try:
                request = connection.read_request(fresh=served == 1)
            except BadRequest as error:
                connection.send_error(error)
                return
            if request is None or not self._begin(connection):
                return
            keep_alive = request.keep_alive and served < self._limits.requests and not self._stopping.is_set()
            if not connection.answer(request, self._handler, keep_alive=keep_alive) or not self._wait(connection):
                return

    def _begin(self, connection: Connection) -> bool:
        """Mark the connection as busy; False if it was evicted meanwhile."""
        with self._changed:
            connection.waiting_since = None
            return not connection.evicted

    def _wait(self, connection: Connection) -> bool:
        """Mark the connection as waiting; False if the server stops."""
        with self._changed:
            connection.waiting_since = monotonic()
            return not self._stopping.is_set()


def _with_refusals(handler: Handler) -> Handler:
    return lambda request: http.refusal(request) or handler(request)
