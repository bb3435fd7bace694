"""Sockets that systemd has opened and passed on: socket activation."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from gpuledger.errors import ListenError

FIRST = 3
"""systemd passes them from this number on."""


def passed_sockets(environment: Mapping[str, str], pid: int | None = None) -> list[socket.socket]:
    """The listening TCP sockets that were passed; ListenError when there are none."""
    meant = environment.get("LISTEN_PID", "") == str(pid or os.getpid())
    count = environment.get("LISTEN_FDS", "") if meant else ""
    if not count.isdecimal() or int(count) < 1:
        raise ListenError("--web.systemd-socket: no socket activation file descriptors found; "
                          "start it by a .socket unit of systemd")  # fmt: skip
    return [_listener(number) for number in range(FIRST, FIRST + int(count))]


def _listener(number: int) -> socket.socket:
    try:
        os.set_inheritable(number, False)
        sock = socket.socket(fileno=number)
    except OSError as error:
        raise ListenError(f"--web.systemd-socket: file descriptor {number}: {error.strerror}") from None
    listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM or not listening:
        sock.detach()  # not ours to close
        raise ListenError(f"--web.systemd-socket: file descriptor {number} is no listening TCP socket; "
                          "write ListenStream=9400 into the .socket unit")  # fmt: skip
    return sock
