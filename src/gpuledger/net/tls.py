"""TLS of clients, and PEM data for `ssl`.

`ssl` takes megabytes of memory, so it is imported at the first TLS connection.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

Pem = str | bytes
"""The path of a PEM file, or the PEM data; empty if there is none."""


def pem_path(pem: Pem, stack: ExitStack) -> str | None:
    """A path from which `ssl` can read the PEM data until `stack` closes; None if there is none.

    OpenSSL reads keys from files only. Data goes into an anonymous file in memory, so no key is written to a disk.
    """
    if isinstance(pem, str) or not pem:
        return str(pem) if pem else None
    memory = os.memfd_create("pem")
    stack.callback(os.close, memory)
    os.write(memory, pem)
    return f"/proc/self/fd/{memory}"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """How a client verifies its server and identifies itself."""

    ca: Pem = ""
    """Authorities that may sign the server's certificate; empty for those of the system."""
    certificate: Pem = ""
    key: Pem = field(default="", repr=False)
    verify: bool = True
    server_name: str = ""
    """The name in the server's certificate, if it differs from the host."""
    strict: bool = True
    """Require the certificate extensions of RFC 5280, which the authorities of many Kubernetes clusters lack."""

    @property
    def files(self) -> tuple[str, ...]:
        """The file paths among the settings."""
        return tuple(pem for pem in (self.ca, self.certificate, self.key) if pem and isinstance(pem, str))


class ClientTls:
    """TLS for the connections of one client. Changed files are read again, because certificates are rotated."""

    def __init__(self, settings: TlsSettings) -> None:
        self.settings = settings
        self._context: ssl.SSLContext | None = None
        self._signature: object = None

    def wrap(self, connection: socket.socket, host: str) -> socket.socket:
        """The connection after the handshake; raises OSError, and TlsFilesError for files that cannot be used."""
        settings = self.settings
        signature = tuple(_signature(path) for path in settings.files)
        if self._context is None or signature != self._signature:
            try:
                self._context = _client_context(settings)
            except OSError as error:
                reason = error.strerror or error
                raise TlsFilesError(f"the TLS files {', '.join(settings.files)} cannot be used: {reason}") from error
            self._signature = signature
        # As bytes: a str goes through IDNA and its tables.
        name = (settings.server_name or host).encode()
        try:
            return self._context.wrap_socket(connection, server_hostname=name)
        except OSError:
            raise
        except ValueError as error:  # a name that no certificate can have, such as `.example`
            raise TlsFilesError(str(error)) from error


class TlsFilesError(OSError):
    """A certificate, key or authority is missing or malformed. `net` converts it to an HttpError."""


def _client_context(settings: TlsSettings) -> ssl.SSLContext:
    import ssl

    with ExitStack() as stack:
        ca, certificate, key = (pem_path(pem, stack) for pem in (settings.ca, settings.certificate, settings.key))
        context = ssl.create_default_context(cafile=ca)
        if not settings.strict:
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not settings.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate is not None:
            context.load_cert_chain(certificate, key, password="")  # without a password OpenSSL asks on the terminal
        return context


def _signature(path: str) -> tuple[int, int, int] | None:
    with suppress(OSError):
        info = os.stat(path)  # noqa: PTH116 - a path that may be empty
        return info.st_ino, info.st_mtime_ns, info.st_size
    return None
