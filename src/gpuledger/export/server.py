"""A small threaded HTTP server that cannot be starved.

One thread accepts, one daemon thread per connection reads, calls the handler and writes. When all
places are taken, the client that has kept us waiting longest loses its place to the new one, or else the
one that takes longest to read its answer. So any number of such clients costs `max_connections` threads and
never the health check.
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
from gpuledger.export.http import BadRequest, Limits, Request, Response
from gpuledger.export.listen import listen, parse_address

__all__ = ["Handler", "Limits", "ListenError", "Request", "Response", "Server", "Statistics", "Wrap", "parse_address"]

if TYPE_CHECKING:
    from ssl import SSLSocket  # 3 MB for those who need it

Wrap = Callable[[socket.socket], "SSLSocket"]
Guard = Callable[[Handler], Handler]

log = logging.getLogger(__name__)

_LINGERING = 16  # rejected connections kept open that long
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Connections open now, and since the start: accepted, evicted to make room, rejected with a 503."""

    open: int
    accepted: int
    evicted: int
    rejected: int


class Server:
    """Serves a handler on some addresses. `wrap` may turn a connection into a TLS one.

    `wrap` runs in the connection's own thread and must not wait for the client: wrap with
    `do_handshake_on_connect=False`, and the server makes the handshake, under the deadline of the first head.
    `guard` may put something before all answers, also before those that no handler sees, such as of a POST.
    `sockets` are listening TCP sockets that somebody else opened; the server owns them from then on.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        handler: Handler,
        *,
        max_connections: int = 64,
        limits: Limits = http.DEFAULT_LIMITS,
        wrap: Wrap | None = None,
        guard: Guard | None = None,
        sockets: Sequence[socket.socket] = (),
    ) -> None:
        try:
            self._wanted = [(text, *parse_address(text)) for text in addresses]
        except ValueError as error:
            raise ListenError(str(error)) from None
        self._handler = _unless_refused(handler) if guard is None else guard(_unless_refused(handler))
        self._wrap, self._limits, self._most = wrap, limits, max_connections
        self._listeners = list(sockets)
        self._stopping = threading.Event()
        self._changed = threading.Condition()  # guards the connections, their states and the counts
        self._connections: set[Connection] = set()
        self._accepted = self._evicted = self._rejected = 0
        self._refused: deque[tuple[float, socket.socket]] = deque()  # this and the next belong to the accept thread
        self._exhausted = False
        self._thread: threading.Thread | None = None
        self._wake: socket.socket | None = None

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The (host, port) pairs that are really bound."""
        return [listener.getsockname()[:2] for listener in self._listeners]

    @property
    def scheme(self) -> str:
        """What the addresses of its pages begin with."""
        return "http" if self._wrap is None else "https"

    @property
    def statistics(self) -> Statistics:
        """Counts for the exporter's own metrics."""
        with self._changed:
            return Statistics(len(self._connections), self._accepted, self._evicted, self._rejected)

    def bind(self) -> None:
        """Open all listeners, or none and raise ListenError."""
        opened: list[socket.socket] = []
        try:
            for text, host, port in self._wanted:
                opened.append(listen(text, host, port))
        except ListenError:
            for listener in opened:
                listener.close()
            raise
        self._wanted = []
        self._listeners += opened

    def start(self) -> None:
        """Serve in the background, binding first if that was not done."""
        self.bind()
        self._wake, woken = socket.socketpair()
        self._thread = threading.Thread(target=self._accept_all, args=(woken,), name="http-accept", daemon=True)
        self._thread.start()

    def stop(self, grace_s: float = 1.0) -> None:
        """Stop accepting, let responses finish for up to `grace_s`, then cut them."""
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
                for key, _ in selector.select(LINGER_S if self._refused else None):
                    if key.data is not None:
                        self._accept(key.data)
                self._close_refused(monotonic())
        self._close_refused(float("inf"))

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, (address, *_) = listener.accept()
        except OSError as error:
            if error.errno not in _EXHAUSTED:  # the client has left again
                return
            if not self._exhausted:
                log.warning("cannot accept connections: %s; raise the open file limit", os.strerror(error.errno))
            self._exhausted = True
            with self._changed:
                self._evict()
            self._stopping.wait(0.1)  # the listener stays readable: without a pause this would spin
            return
        self._exhausted = False
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = self._admit(sock, address)
        try:
            if connection is not None:
                threading.Thread(target=self._serve, args=(connection,), name="http", daemon=True).start()
                return
        except RuntimeError:  # the host has no thread for us
            with self._changed:
                self._connections.discard(connection)
        self._reject(sock)

    def _admit(self, sock: socket.socket, address: str) -> Connection | None:
        """A place for a new client, taken from another if need be; None when everybody is being answered."""
        with self._changed:
            if len(self._connections) >= self._most and self._evict():  # its thread ends within a moment
                self._changed.wait_for(lambda: len(self._connections) < self._most or self._stopping.is_set(), 1.0)
            if len(self._connections) >= self._most or self._stopping.is_set():
                return None
            connection = Connection(sock, self._limits, monotonic(), address)
            self._connections.add(connection)
            self._accepted += 1
            return connection

    def _evict(self) -> bool:
        """Cut the client that has kept us longest. The caller holds the lock."""
        now = monotonic()
        held_up = [(since, c) for c in self._connections if (since := c.held_up(now)) is not None]
        if held_up:
            min(held_up, key=itemgetter(0))[1].cut()
            self._evicted += 1
        return bool(held_up)

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
            if self._wrap is None:  # a TLS client could not read it
                sock.send(b"".join(pieces))
            sock.shutdown(socket.SHUT_WR)
        self._refused.append((monotonic() + LINGER_S, sock))
        if len(self._refused) > _LINGERING:
            self._refused.popleft()[1].close()

    def _close_refused(self, now: float) -> None:
        while self._refused and self._refused[0][0] <= now:
            self._refused.popleft()[1].close()

    def _serve(self, connection: Connection) -> None:
        try:
            connection.sock.settimeout(self._limits.head_s)
            if self._wrap is not None:
                connection.sock = self._wrap(connection.sock)
                if connection.evicted:  # while it had no socket that could be cut
                    return
            if self._shake_hands(connection):
                self._converse(connection)
            if self._rest(connection):
                connection.linger()
        except OSError:  # the client left, was too slow to read, or was evicted: there is nobody to tell
            pass
        except Exception as error:  # noqa: BLE001  # a defect here must cost one connection, not the server
            log.error("connection dropped: %s: %s", type(error).__name__, error)  # noqa: TRY400  # one line
        finally:
            with self._changed:
                self._connections.discard(connection)
                self._changed.notify_all()
            connection.sock.close()

    def _shake_hands(self, connection: Connection) -> bool:
        """Agree on TLS, where it is spoken; False when that failed. The client may still have to read why."""
        if self._wrap is None:
            return True
        try:
            cast("SSLSocket", connection.sock).do_handshake()
        except BadRequest as error:
            connection.complain(error)
            return False
        except TimeoutError:
            raise
        except OSError:
            return False
        return True

    def _converse(self, connection: Connection) -> None:
        """Answer requests until one of the two sides wants no more."""
        for served in range(1, self._limits.requests + 1):
            try:
                request = connection.read_request(fresh=served == 1)
            except BadRequest as error:
                connection.complain(error)
                return
            if request is None or not self._begin(connection):
                return
            keep_alive = request.keep_alive and served < self._limits.requests and not self._stopping.is_set()
            if not connection.answer(request, self._handler, keep_alive=keep_alive) or not self._rest(connection):
                return

    def _begin(self, connection: Connection) -> bool:
        """From waiting to answering; False when the place has been given away meanwhile."""
        with self._changed:
            connection.waiting_since = None
            return not connection.evicted

    def _rest(self, connection: Connection) -> bool:
        """From answering to waiting; False when the server stops."""
        with self._changed:
            connection.waiting_since = monotonic()
            return not self._stopping.is_set()


def _unless_refused(handler: Handler) -> Handler:
    return lambda request: http.refusal(request) or handler(request)
