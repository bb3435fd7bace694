"""A small threaded HTTP server that slow clients cannot starve.

One thread accepts connections. With its first bytes, a client gets a thread that reads requests, calls the handler and
writes responses. There are at most `max_connections` threads; a quarter of them is reserved for clients whose first
request is a health check.

When no thread is free, a client evicts a client of the address with the most threads: one that does not complete its
request, does not read its response, or is idle. If none can be evicted, it waits. Clients of the address with the
fewest threads come first.
"""

import contextlib
import errno
import logging
import os
import selectors
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from time import monotonic
from typing import TYPE_CHECKING, cast

from gpuledger.errors import ListenError
from gpuledger.web import http
from gpuledger.web.connection import LINGER_S, Connection, Handler, choose_victim
from gpuledger.web.http import BadRequest, Limits
from gpuledger.web.listen import check_address, listen
from gpuledger.web.responses import MANY_CONNECTIONS, refusal

if TYPE_CHECKING:
    from ssl import SSLSocket  # 3 MB, only with TLS

Wrap = Callable[[socket.socket], "SSLSocket"]
Middleware = Callable[[Handler], Handler]

log = logging.getLogger(__name__)

_LINGERING = 16  # rejected connections that are kept open for LINGER_S
_PENDING = 512  # connections without a thread
_ENDING = 4  # threads of evicted clients
_POLL_S = 0.05  # while clients wait for a thread: another one may have become slow
_SEND_BUFFER = 256 * 1024  # kernel memory of a client that does not read; the kernel's own limit is 4 MB
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
        served: Handler = lambda request: refusal(request) or handler(request)  # noqa: E731
        self._handler = served if middleware is None else middleware(served)
        self._wrap, self._limits, self._max_connections = wrap, limits, max_connections
        self._reserved = max_connections // 4 if wrap is None else 0  # with TLS, health checks cannot be recognized
        self._listeners = list(sockets)
        self._stopping = threading.Event()
        self._changed = threading.Condition()  # guards the connections, their states and the count
        self._connections: set[Connection] = set()  # with a thread
        self._ending: set[Connection] = set()  # evicted
        self._accepted = self._evicted = self._rejected = 0
        # The following belong to the accept thread.
        self._selector: selectors.BaseSelector
        # Clients that have sent nothing, and clients that wait for a thread: whether for a health check. Oldest first.
        self._silent: dict[Connection, None] = {}
        self._ready: dict[Connection, bool] = {}
        self._lingering: deque[tuple[float, socket.socket]] = deque()
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
            pending = len(self._silent) + len(self._ready)
            return Statistics(len(self._connections) + pending, self._accepted, self._evicted, self._rejected)

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
            self._selector = selector
            woken.setblocking(False)
            selector.register(woken, selectors.EVENT_READ)
            for listener in self._listeners:
                listener.setblocking(False)
                selector.register(listener, selectors.EVENT_READ, listener)
            while not self._stopping.is_set():
                for key, _ in selector.select(self._pause_s()):
                    if key.data is None:
                        woken.recv(4096)
                    elif isinstance(key.data, Connection):
                        self._receive(key.data)
                    else:
                        self._accept(key.data)
                self._serve_ready()
                self._expire(monotonic())
            for pending in (self._silent, self._ready):
                while pending:
                    pending.popitem()[0].sock.close()
        self._close_lingering(float("inf"))

    def _pause_s(self) -> float | None:
        if self._ready:
            return _POLL_S
        return min(LINGER_S, self._limits.head_s) if self._lingering or self._silent else None

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, (address, *_) = listener.accept()
        except OSError as error:
            if error.errno not in _EXHAUSTED:  # the client disconnected
                return
            if not self._exhausted:
                log.warning("cannot accept connections: %s; raise the open file limit", os.strerror(error.errno))
            self._exhausted = True
            if not self._drop_pending():
                with self._changed:
                    self._evict("", float("inf"))  # any client that is not being served
            self._stopping.wait(0.1)  # the listener stays readable, so that without a pause this would spin
            return
        self._exhausted = False
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        if len(self._silent) + len(self._ready) >= _PENDING:
            self._drop_pending()
        connection = Connection(sock, self._limits, monotonic(), address)
        self._silent[connection] = None
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _receive(self, connection: Connection) -> None:
        """Note that a client has sent its first bytes, or has disconnected."""
        if connection not in self._silent:  # dropped since the call of select
            return
        self._forget_silent(connection)
        connection.waiting_since = monotonic()
        self._ready[connection] = connection.is_probe()

    def _forget_silent(self, connection: Connection) -> None:
        del self._silent[connection]
        self._selector.unregister(connection.sock)

    def _drop_pending(self) -> bool:
        """Drop the oldest pending client of the address with the most; False if there is none."""
        pending = (*self._silent, *self._ready)
        counts = Counter(connection.address for connection in pending)
        dropped = max(pending, key=lambda connection: counts[connection.address], default=None)
        if dropped is None:
            return False
        if dropped in self._silent:
            self._forget_silent(dropped)
        else:
            del self._ready[dropped]
        self._reject(dropped.sock)
        return True

    def _expire(self, now: float) -> None:
        self._close_lingering(now)
        for connection in list(takewhile(lambda c: _waited_s(c, now) >= self._limits.head_s, self._silent)):
            self._forget_silent(connection)
            connection.sock.close()
        for connection in list(takewhile(lambda c: _waited_s(c, now) >= self._limits.queue_s, self._ready)):
            del self._ready[connection]
            self._reject(connection.sock)

    def _serve_ready(self) -> None:
        """Start the threads of clients that have sent bytes, as long as threads are free or can be freed."""
        if not self._ready:
            return
        with self._changed:
            counts = Counter(connection.address for connection in self._connections)
        refused: set[tuple[str, bool]] = set()
        for connection in sorted(self._ready, key=lambda c: (not self._ready[c], counts[c.address])):
            kind = connection.address, self._ready[connection]
            if kind in refused:
                continue
            if not self._admit(connection, is_probe=self._ready[connection]):
                refused.add(kind)
                continue
            del self._ready[connection]
            try:
                threading.Thread(target=self._serve, args=(connection,), name="http", daemon=True).start()
            except RuntimeError:  # the host refused another thread
                with self._changed:
                    self._connections.discard(connection)
                    self._accepted -= 1
                self._reject(connection.sock)

    def _admit(self, connection: Connection, *, is_probe: bool) -> bool:
        """Whether the client may have a thread, after evicting another client if needed."""
        with self._changed:
            free = self._max_connections - len(self._connections) - (0 if is_probe else self._reserved)
            if free <= 0 and not self._evict(connection.address, monotonic()):
                return False
            connection.waiting_since = monotonic()
            self._connections.add(connection)
            self._accepted += 1
            return True

    def _evict(self, address: str, now: float) -> bool:
        """Evict a client for another one with this address, if possible. The caller holds the lock."""
        victim = None
        if len(self._ending) < _ENDING:
            victim = choose_victim(self._connections, address, now)
        if victim is None:
            return False
        victim.cut()
        self._connections.discard(victim)
        self._ending.add(victim)
        self._evicted += 1
        return True

    def _reject(self, sock: socket.socket) -> None:
        if self._stopping.is_set():
            sock.close()
            return
        with self._changed:
            self._rejected += 1
        pieces, _ = http.frame(MANY_CONNECTIONS, None, keep_alive=False)
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
                self._ending.discard(connection)
                self._changed.notify_all()
            connection.sock.close()
            if self._ready and self._wake is not None:
                with contextlib.suppress(OSError):  # the server stops
                    self._wake.send(b"\0")

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


def _waited_s(connection: Connection, now: float) -> float:
    return now - (connection.waiting_since or now)
