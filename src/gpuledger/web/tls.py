"""TLS for the server: the context of a configuration, and the handshake of a client.

`Tls.wrap` checks whether files have changed, so that the next client sees a renewed certificate. It never waits for a
client: the handshake happens in the client's own thread, under the deadline of its first request.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack
from ipaddress import IPv6Address, ip_address
from typing import Any, cast

from gpuledger.config.yamlfile import read_text
from gpuledger.errors import ConfigError
from gpuledger.net.tls import pem_path
from gpuledger.web.http import BadRequest
from gpuledger.web.webconfig import LARGEST_FILE, ClientAuth, Reloaded, TlsConfig, WebConfig, file_state

log = logging.getLogger(__name__)

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_VERIFY_MODES = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.VERIFY_IF_GIVEN: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRE_AND_VERIFY: ssl.CERT_REQUIRED,
}
_CERTIFICATE, _KEY = "-----BEGIN CERTIFICATE-----", "PRIVATE KEY-----"


class Context(ssl.SSLContext):
    """A context with the client names it allows and the handshake errors it has logged."""

    allowed_sans: frozenset[str] | None = None
    logged: frozenset[str] = frozenset()
    """OpenSSL's reasons, a few dozen at most; nothing that a client sends is in them."""


class TlsSocket(ssl.SSLSocket):
    """The connection of a client."""

    def do_handshake(self, block: bool = False) -> None:
        """Perform the handshake, then check the client's certificate."""
        try:
            super().do_handshake(block)
        except ssl.SSLEOFError:  # the client disconnected or was evicted
            raise
        except ssl.SSLError as error:
            self._fail((error.reason or str(error)).lower())
            if error.reason == "HTTP_REQUEST":
                raise BadRequest(400, "Client sent an HTTP request to an HTTPS server.") from None
            raise
        certificate = self.getpeercert()
        if certificate and (reason := self._rejection(certificate)):
            self._fail(reason)
            raise ConnectionAbortedError

    def _rejection(self, certificate: Mapping[str, Any]) -> str:
        """Why a verified certificate is rejected: its names or, in a resumed session, its expiry; may be empty."""
        allowed = cast("Context", self.context).allowed_sans
        if allowed is not None and not allowed & set(subject_names(certificate)):
            return "no allowed SAN in the client certificate"
        expired = ssl.cert_time_to_seconds(certificate["notAfter"]) < time.time()
        return "the client certificate expired during the session" if expired else ""

    def _fail(self, reason: str) -> None:
        """Continue as a plain socket, to respond in clear text or to wait until the client has read the alert."""
        self._sslobj = None
        context = cast("Context", self.context)
        first = reason not in context.logged
        context.logged |= {reason}
        more = "; further ones are logged at level debug" if first else ""
        level = logging.WARNING if first else logging.DEBUG
        log.log(level, "TLS handshake with %s failed: %s%s", self._client(), reason, more)

    def _client(self) -> str:
        try:
            return str(self.getpeername()[0])
        except OSError:
            return "a disconnected client"


class Tls:
    """TLS as configured now. Raises ConfigError if the first context cannot be created."""

    def __init__(self, path: str, config: Callable[[], WebConfig]) -> None:
        self._config = config
        self._reloaded = Reloaded(f"TLS configuration {path}", self._state, self._load)

    def wrap(self, sock: socket.socket) -> ssl.SSLSocket:
        """The TLS connection of a client, before its handshake."""
        return self._reloaded.get().wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def _state(self) -> Hashable:
        tls = self._config().tls
        return tls, file_state(tls.files if tls else ())

    def _load(self) -> Context:
        tls = self._config().tls
        if tls is None:
            raise ConfigError("tls_server_config was removed", "restart to serve plain HTTP")
        return create_context(tls)


def create_context(config: TlsConfig) -> Context:
    """A server context. Raises ConfigError."""
    context = Context(ssl.PROTOCOL_TLS_SERVER)
    context.sslsocket_class = TlsSocket
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION  # costs the server more than the client
    context.minimum_version, context.maximum_version = _VERSIONS[config.min_version], _VERSIONS[config.max_version]
    _load_key_pair(context, config)
    _set_client_auth(context, config)
    return context


def subject_names(certificate: Mapping[str, Any]) -> Iterator[str]:
    """The subject alternative names of a certificate as returned by `getpeercert`, in the notation of Go."""
    for kind, value in certificate.get("subjectAltName", ()):
        if kind == "IP Address":
            address = ip_address(value.strip())
            mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
            yield str(mapped or address)
        elif kind in ("DNS", "URI", "email"):
            yield value


def _load_key_pair(context: Context, config: TlsConfig) -> None:
    certificate = read_text(config.cert_file, LARGEST_FILE) if config.cert_file else config.cert
    key = read_text(config.key_file, LARGEST_FILE) if config.key_file else config.key
    for text, marker, where in ((certificate, _CERTIFICATE, config.cert_file or "cert"),
                                (key, _KEY, config.key_file or "key")):  # fmt: skip
        if marker not in text:
            raise ConfigError(f"no PEM data in {where}", "put the certificate or key there in PEM format")
    try:
        with ExitStack() as stack:
            certificate_path, key_path = (str(pem_path(text.encode(), stack)) for text in (certificate, key))
            context.load_cert_chain(certificate_path, key_path, password=_reject_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError("the private key does not match the certificate") from None
        raise ConfigError(f"invalid certificate or key: {(error.reason or 'malformed PEM').lower()}") from None


def _reject_passphrase() -> bytes:
    """Without this, OpenSSL would ask for a passphrase on the terminal."""
    raise ConfigError("the private key is encrypted", "use a key without a passphrase")


def _set_client_auth(context: Context, config: TlsConfig) -> None:
    context.verify_mode = _VERIFY_MODES[config.client_auth]
    if config.client_auth is ClientAuth.NONE:
        return
    context.num_tickets = 0  # OpenSSL does not verify the client again when a session is resumed
    context.allowed_sans = None if config.allowed_sans is None else frozenset(config.allowed_sans)
    where = config.client_ca_file or "client_ca"
    trusted = read_text(where, LARGEST_FILE) if config.client_ca_file else config.client_ca
    if not trusted and not config.client_ca_file:
        log.warning("client_ca_file is not set: client certificates of any public authority are accepted")
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        return
    if _CERTIFICATE not in trusted:
        raise ConfigError(f"no certificate in {where}", "put the client authority there in PEM format")
    try:
        context.load_verify_locations(cadata=trusted)
    except ssl.SSLError as error:
        raise ConfigError(f"invalid certificate in {where}: {(error.reason or 'malformed PEM').lower()}") from None
