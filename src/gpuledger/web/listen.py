"""Listen addresses in the format of other exporters, and listening sockets: opened here or passed by systemd."""

import errno
import os
import socket
from collections.abc import Mapping

from gpuledger.errors import ListenError
from gpuledger.net.address import parse_listen_address

_NO_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)
_FIXES = {
    errno.EADDRINUSE: "stop the other program or choose another --web.listen-address",
    errno.EACCES: "choose a port above 1023 or grant CAP_NET_BIND_SERVICE",
    errno.EADDRNOTAVAIL: "choose an address of this host, or omit the host to listen on all addresses",
}
_BACKLOG = 4096
"""Pending connections. Beyond that, a client retries after 1 s, 3 s and 7 s, which is too late for a probe."""
_FIRST_PASSED = 3
"""The first file descriptor that systemd passes."""


def check_address(address: str) -> tuple[str, int]:
    """Host and port of a listen address. Raises ListenError."""
    try:
        return parse_listen_address(address)
    except ValueError as error:
        raise ListenError(f"{address!r} {error}") from None


def listen(address: str) -> socket.socket:
    """A listening socket. Raises ListenError."""
    host, port = check_address(address)
    try:
        try:
            return _open(host or "::", port)
        except OSError as error:
            if host or error.errno not in _NO_FAMILY:
                raise
            return _open("0.0.0.0", port)  # a host without IPv6
    except OSError as error:
        number = error.errno or 0  # negative, with its own text, for a name that does not resolve
        reason = os.strerror(number) if number > 0 else str(error.strerror)
        fix = _FIXES.get(number, "choose another --web.listen-address")
        raise ListenError(f"cannot listen on {address}: {reason[:1].lower()}{reason[1:]}", fix) from error


def _open(host: str, port: int) -> socket.socket:
    # The name is passed as bytes: a str would load the IDNA codec. IPv4 is preferred over IPv6, as in Go.
    results = socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, address = min(results, key=lambda result: result[0] != socket.AF_INET)
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)


def passed_sockets(environment: Mapping[str, str], pid: int | None = None) -> list[socket.socket]:
    """The listening TCP sockets passed by systemd (socket activation). Raises ListenError if there are none."""
    for_us = environment.get("LISTEN_PID", "") == str(pid or os.getpid())
    count = environment.get("LISTEN_FDS", "") if for_us else ""
    if not count.isdecimal() or int(count) < 1:
        raise ListenError("--web.systemd-socket: no socket activation file descriptors found",
                          "start gpuledger through a systemd .socket unit")  # fmt: skip
    return [_passed_socket(number) for number in range(_FIRST_PASSED, _FIRST_PASSED + int(count))]


def _passed_socket(number: int) -> socket.socket:
    try:
        os.set_inheritable(number, False)
        sock = socket.socket(fileno=number)
    except OSError as error:
        raise ListenError(f"--web.systemd-socket: file descriptor {number}: {error.strerror}") from None
    is_listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM or not is_listening:
        sock.detach()  # not ours to close
        raise ListenError(f"--web.systemd-socket: file descriptor {number} is not a listening TCP socket",
                          "write ListenStream=9400 in the .socket unit")  # fmt: skip
    return sock
