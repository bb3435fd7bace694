"""Docker's stream of events. What is in it does not matter: whatever comes means that the list has changed."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from gpuledger.httpclient import HEAD_LIMIT, READ_SIZE, Client, HttpError, parse_head

FILTERS = '{"type":["container"],"event":["start","die","died","destroy","remove","rename"]}'
"""Podman 4 says die in its events, but a filter has to say died, and remove."""
CLOSING_S = 0.25
SETTLED_S = 1.0
"""A stream that lived this long ended for a reason: its daemon did."""


def events_target(api: str, since_s: float) -> str:
    """What to ask for, beginning where the last list was made, so that nothing between falls through."""
    filters = "".join(c if c.isalnum() else f"%{ord(c):02X}" for c in FILTERS)
    return f"/v{api}/events?since={since_s:.6f}&filters={filters}"


class Stream:
    """Kept open from one wait to the next; only `close` may come from another thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._connection: socket.socket | None = None
        self._head = b""
        self._opened_at = 0.0
        self._lock = threading.Lock()
        """Held while the connection is used, so that nobody closes it under a reader."""
        self.works = False
        """Whether the daemon has accepted the request."""
        self.closed = False

    @property
    def is_open(self) -> bool:
        """Whether there is something to wait for."""
        return self._connection is not None

    def open(self, target: str, timeout_s: float) -> None:
        """Send the request; without success nothing is open."""
        with self._lock, contextlib.suppress(OSError):  # `fetch` meets the same error and says it
            if not self.closed:
                self._connection = self._client.open(target, timeout_s)
                self._head, self._opened_at = b"", time.monotonic()
            if self.closed:  # meanwhile
                self._end()

    def news(self, timeout_s: float) -> bool:
        """Whether something came within this time. The end of a stream that was settled is news: events were missed."""
        with self._lock:
            if self._connection is None:
                return False
            try:
                self._connection.settimeout(timeout_s)
                received = self._connection.recv(READ_SIZE)
                if received:
                    return bool(received if self.works else self._body(received))
            except TimeoutError:
                return False
            except (OSError, HttpError):
                pass
            was_settled = self.works and time.monotonic() - self._opened_at > SETTLED_S
            self._end()
            return was_settled and not self.closed

    def close(self) -> None:
        """For good; a reader is woken."""
        self.closed = True
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                # The plain socket's: TLS's own would change what the reader works with.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
        if self._lock.acquire(timeout=CLOSING_S):  # else `open` is at work, and sees that it is closed
            try:
                self._end()
            finally:
                self._lock.release()

    def _body(self, received: bytes) -> bytes:
        """What follows the head, once that is there."""
        head, end, body = (self._head + received).partition(b"\r\n\r\n")
        if not end:
            self._head = head
            if len(head) > HEAD_LIMIT:
                raise HttpError("sent no end of its head")
            return b""
        status, _ = parse_head(head)
        if status != 200:
            raise HttpError(f"answered {status}")
        self._head, self.works = b"", True
        return body

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, self.works = None, False
