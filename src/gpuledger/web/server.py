"""A small threaded HTTP server that slow clients cannot starve.

One thread accepts connections, reads requests and answers health checks. Any other request gets a thread, which calls
the handler and writes the response; there are at most `max_connections` of them. With TLS or a middleware, such as a
login, a request gets a thread with its first bytes, and health checks get one, too.

`places.py` decides which clients have a thread. The addresses of an IPv6 network of 64 bits count as one.
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
from time import monotonic
from typing import TYPE_CHECKING, cast

from gpuledger.errors import ListenError
from gpuledger.web import http
from gpuledger.web.connection import LINGER_S, Connection, Handler
from gpuledger.web.http import BadRequest, Limits, Response
from gpuledger.web.listen import check_address, listen
from gpuledger.web.places import Places
from gpuledger.web.responses import MANY_CONNECTIONS, refusal

if TYPE_CHECKING:
    from ssl import SSLSocket  # 3 MB, only with TLS

Wrap = Callable[[socket.socket], "SSLSocket"]
Middleware = Callable[[Handler], Handler]

log = logging.getLogger(__name__)

_LINGERING = 16  # rejected connections that are kept open for LINGER_S
_PENDING = 512  # connections without a thread
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
        self._wrap, self._limits = wrap, limits
        self._answers_probes = wrap is None and middleware is None  # a login may take long
        self._listeners = list(sockets)
        self._stopping = threading.Event()
        self._places = Places(max_connections)
        self._changed = self._places.changed
        self._accepted = self._rejected = 0
        self._returned: deque[Connection] = deque()  # by their threads, after a request
        # The following belong to the accept thread.
        self._selector: selectors.BaseSelector
        # Clients without a complete request, and clients that wait for a thread. Oldest first.
        self._idle: dict[Connection, None] = {}
        self._ready: dict[Connection, None] = {}
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
            count = len(self._idle) + len(self._ready) + len(self._places.taken)
            return Statistics(count, self._accepted, self._places.evicted, self._rejected)

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
            for connection in self._places.taken:
                if connection.waiting_since is not None:
                    connection.cut()
            self._changed.notify_all()
        if self._wake is not None and self._thread is not None:
            self._wake.close()
            self._thread.join(1.0)
        while self._listeners:
            self._listeners.pop().close()
        with self._changed:
            self._changed.wait_for(lambda: not self._places.taken, grace_s)
            for connection in self._places.taken:
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
                while self._returned:
                    self._continue(self._returned.popleft())
                self._serve_ready()
                self._expire(monotonic())
            with self._changed:
                for connection in (*self._idle, *self._ready, *self._returned):
                    connection.sock.close()
                self._idle, self._ready = {}, {}
                self._returned.clear()
        self._close_lingering(float("inf"))

    def _pause_s(self) -> float | None:
        if self._ready:
            return _POLL_S
        times = [connection.deadline for connection in self._idle] + [time for time, _ in self._lingering]
        return max(0.0, min(times) - monotonic()) if times else None

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
                    self._places.evict("", float("inf"))  # any client that is not being served
            self._stopping.wait(0.1)  # the listener stays readable, so that without a pause this would spin
            return
        self._exhausted = False
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        if len(self._idle) + len(self._ready) >= _PENDING:
            self._drop_pending()
        self._accepted += 1
        self._await_request(Connection(sock, self._limits, monotonic(), address))

    def _await_request(self, connection: Connection) -> None:
        connection.sock.setblocking(False)
        self._idle[connection] = None
        self._selector.register(connection.sock, selectors.EVENT_READ, connection)

    def _receive(self, connection: Connection) -> None:
        """Take the bytes of a client; with a complete request, it waits for a thread, or is answered at once."""
        if connection not in self._idle:  # dropped since the call of select
            return
        if self._wrap is None:
            if not connection.receive():
                self._forget_idle(connection)
                connection.sock.close()
                return
            if not connection.has_request():
                return
        self._forget_idle(connection)
        if self._answers_probes and connection.is_probe():
            self._answer_probe(connection)
        else:
            self._await_thread(connection)

    def _await_thread(self, connection: Connection) -> None:
        connection.waiting_since = monotonic()
        self._ready[connection] = None

    def _answer_probe(self, connection: Connection) -> None:
        try:
            request, keep = connection.read_request(), self._keeps(connection)
            if request is not None and connection.answer_now(request, self._handler, keep_alive=keep):
                self._continue(connection)
            else:
                self._dismiss(connection.sock)
        except BadRequest as error:
            self._dismiss(connection.sock, Response.text(error.status, error.message))
        except OSError:
            connection.sock.close()

    def _keeps(self, connection: Connection) -> bool:
        return connection.requests < self._limits.requests and not self._stopping.is_set()

    def _continue(self, connection: Connection) -> None:
        """Wait for the next request of a client that was answered."""
        pending = getattr(connection.sock, "pending", int)  # bytes that TLS has decrypted
        if connection.has_request() or pending():
            self._await_thread(connection)
        else:
            connection.deadline = monotonic() + (self._limits.head_s if connection.buffer else self._limits.idle_s)
            self._await_request(connection)

    def _forget_idle(self, connection: Connection) -> None:
        del self._idle[connection]
        self._selector.unregister(connection.sock)

    def _drop_pending(self) -> bool:
        """Drop the oldest pending client of the address with the most; False if there is none."""
        pending = (*self._idle, *self._ready)
        counts = Counter(connection.group for connection in pending)
        regulars = self._places.regulars
        dropped = max(pending, key=lambda c: (c.address not in regulars, counts[c.group]), default=None)
        if dropped is None:
            return False
        if dropped in self._idle:
            self._forget_idle(dropped)
        else:
            del self._ready[dropped]
        self._reject(dropped)
        return True

    def _expire(self, now: float) -> None:
        self._close_lingering(now)
        for connection in [c for c in self._idle if c.deadline <= now]:
            self._forget_idle(connection)
            if connection.buffer:
                error = connection.late()
                self._dismiss(connection.sock, Response.text(error.status, error.message))
            else:
                connection.sock.close()
        for connection in [c for c in self._ready if now - (c.waiting_since or now) >= self._limits.queue_s]:
            del self._ready[connection]
            self._reject(connection)

    def _serve_ready(self) -> None:
        """Start the threads of clients that have sent a request, as long as threads are free or can be freed."""
        if not self._ready:
            return
        refused: set[tuple[str, str]] = set()
        for connection in self._places.in_order(self._ready):
            kind = connection.group, connection.address if connection.address in self._places.regulars else ""
            if kind in refused:
                continue
            if not self._places.admit(connection):
                refused.add(kind)
                continue
            del self._ready[connection]
            try:
                threading.Thread(target=self._serve, args=(connection,), name="http", daemon=True).start()
            except RuntimeError:  # the host refused another thread
                self._places.leave(connection)
                self._reject(connection)

    def _reject(self, connection: Connection) -> None:
        self._rejected += 1
        has_request = connection.buffer or not connection.requests
        self._dismiss(connection.sock, MANY_CONNECTIONS if has_request else None)

    def _dismiss(self, sock: socket.socket, response: Response | None = None) -> None:
        """Close a connection, after a last response, as far as the client takes it at once."""
        with contextlib.suppress(OSError):
            sock.setblocking(False)
            if response is not None and self._wrap is None:  # TLS clients could not read it
                sock.send(b"".join(http.frame(response, None, keep_alive=False)[0]))
            socket.socket.shutdown(sock, socket.SHUT_WR)
        self._lingering.append((monotonic() + LINGER_S, sock))
        if len(self._lingering) > _LINGERING:
            self._lingering.popleft()[1].close()

    def _close_lingering(self, now: float) -> None:
        while self._lingering and self._lingering[0][0] <= now:
            self._lingering.popleft()[1].close()

    def _serve(self, connection: Connection) -> None:
        keep = False
        try:
            keep = self._handle_request(connection)
            if not keep and self._wait(connection):
                connection.linger()
        except OSError:  # the client disconnected, was too slow, or was evicted
            keep = False
        except Exception as error:  # noqa: BLE001  # a bug must cost one connection, not the server
            log.error("connection dropped: %s: %s", type(error).__name__, error)  # noqa: TRY400  # one line
        finally:
            with self._changed:
                keep = self._places.leave(connection) and keep and not self._stopping.is_set()
                if keep:
                    self._returned.append(connection)
            if not keep:
                connection.sock.close()
            if (keep or self._ready) and self._wake is not None:
                with contextlib.suppress(OSError):  # the server stops
                    self._wake.send(b"\0")

    def _handle_request(self, connection: Connection) -> bool:
        """Handle one request; whether the client may send another one."""
        connection.sock.settimeout(self._limits.head_s)
        if self._wrap is not None and not connection.requests:
            connection.sock = self._wrap(connection.sock)
            if connection.evicted:  # while its socket was being wrapped
                raise ConnectionAbortedError
            if not self._handshake(connection):
                return False
        try:
            request = connection.read_request()
        except BadRequest as error:
            connection.send_error(error)
            return False
        if request is None or not self._begin(connection):
            return False
        return connection.answer(request, self._handler, keep_alive=self._keeps(connection))

    def _handshake(self, connection: Connection) -> bool:
        """Perform the TLS handshake; False if it failed. The client may still read the reason."""
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
