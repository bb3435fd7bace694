"""Listen addresses, spelt as other exporters spell them, and the sockets behind them."""

import errno
import os
import re
import socket

from gpuledger.errors import ListenError

_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[A-Za-z0-9_.-]*)):(?P<port>[0-9]{1,5})")
_NO_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)
_ADVICE = {
    errno.EADDRINUSE: "stop the other program or choose another --web.listen-address",
    errno.EACCES: "choose a port above 1023 or grant CAP_NET_BIND_SERVICE",
    errno.EADDRNOTAVAIL: "choose an address of this host, or leave the host out to listen on all of them",
}

_BACKLOG = 4096
"""Clients that may wait to be accepted. One more would try again after 1 s, 3 s and 7 s, too late for a probe."""


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of a listen address such as `:9400`, `127.0.0.1:9400` or `[::1]:9400`."""
    found = _ADDRESS.fullmatch(text)
    if found is None:
        wrong, right = "it is not host:port", "write for example :9400, 127.0.0.1:9400 or [::1]:9400"
        if "//" in text:
            wrong = "it is a URL"
        elif ":" not in text:
            wrong, right = "the port is missing", f"write :{text}" if text.isdigit() else f"write {text or ''}:9400"
        elif text.count(":") > 1 and "[" not in text:
            wrong, right = "an IPv6 address needs brackets", "write for example [::1]:9400"
        raise ValueError(f"bad listen address {text!r}: {wrong}; {right}")
    port = int(found["port"])
    if port > 65535:
        raise ValueError(f"bad listen address {text!r}: the port is too large; choose one from 1 to 65535")
    return found["v6"] or found["host"], port


def listen(text: str, host: str, port: int) -> socket.socket:
    """A listening socket, or ListenError with the remedy."""
    try:
        try:
            return _open(host or "::", port)
        except OSError as error:
            if host or error.errno not in _NO_FAMILY:
                raise
            return _open("0.0.0.0", port)  # a host without IPv6
    except OSError as error:
        number = error.errno or 0  # a name that does not resolve has a negative one, and its own words
        reason = os.strerror(number) if number > 0 else str(error.strerror)
        advice = _ADVICE.get(number, "choose another --web.listen-address")
        raise ListenError(f"cannot listen on {text}: {reason[:1].lower()}{reason[1:]}; {advice}") from error


def _open(host: str, port: int) -> socket.socket:
    # The name goes in as bytes: a str would load the IDNA codec. Of several addresses IPv4 wins, as in Go.
    found = socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
