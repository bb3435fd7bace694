"""TLS for the server: from a configuration to a context, and the handshake of a client.

`Tls.wrap` is for `Server`. It looks whether files have changed, so that a new certificate is shown to the next client,
and never waits for a client: the handshake is made in the client's own thread, under the deadline of its first request.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address
from typing import Any, cast

from gpuledger.export.http import BadRequest
from gpuledger.export.reloaded import Reloaded, seen
from gpuledger.export.tlsnames import ClientAuth
from gpuledger.export.webconfig import TlsConfig, WebConfig
from gpuledger.export.webfile import read_text

log = logging.getLogger(__name__)

_VERSIONS = {2: ssl.TLSVersion.TLSv1_2, 3: ssl.TLSVersion.TLSv1_3}
_VERIFY = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.VERIFY_IF_GIVEN: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRE_AND_VERIFY: ssl.CERT_REQUIRED,
}
_CERTIFICATE, _KEY = "-----BEGIN CERTIFICATE-----", "PRIVATE KEY-----"


class Context(ssl.SSLContext):
    """A context that knows which clients it is for, and what was logged about others."""

    allowed_sans: frozenset[str] | None = None
    told: frozenset[str] = frozenset()
    """Reasons that were logged once. They are OpenSSL's, a few dozen; what a client sends is not among them."""


class TlsSocket(ssl.SSLSocket):
    """A client's connection."""

    def do_handshake(self, block: bool = False) -> None:
        """Agree with the client, then look whether it is one of those allowed."""
        try:
            super().do_handshake(block)
        except ssl.SSLEOFError:  # it left, or lost its place to another
            raise
        except ssl.SSLError as error:
            self._give_up((error.reason or str(error)).lower())
            if error.reason == "HTTP_REQUEST":
                raise BadRequest(400, "Client sent an HTTP request to an HTTPS server.") from None
            raise
        certificate = self.getpeercert()
        if certificate and (wrong := self._wrong_with(certificate)):
            self._give_up(wrong)
            raise ConnectionAbortedError

    def _wrong_with(self, certificate: Mapping[str, Any]) -> str:
        """What OpenSSL does not look at: names, and in a session that is resumed, the time."""
        allowed = cast("Context", self.context).allowed_sans
        if allowed is not None and not allowed & set(names(certificate)):
            return "could not find allowed SANs in client cert"
        expired = ssl.cert_time_to_seconds(certificate["notAfter"]) < time.time()
        return "certificate has expired since the session began" if expired else ""

    def _give_up(self, reason: str) -> None:
        """From here on it is an ordinary socket: for an answer in clear text, or to wait until the alert was read."""
        self._sslobj = None
        ours = cast("Context", self.context)
        first = reason not in ours.told
        ours.told |= {reason}
        more = "; more of these are logged at level debug" if first else ""
        level = logging.WARNING if first else logging.DEBUG
        log.log(level, "TLS handshake error from %s: %s%s", self._client(), reason, more)

    def _client(self) -> str:
        try:
            return str(self.getpeername()[0])
        except OSError:
            return "a client that has gone"


class Tls:
    """The context of now. Raises ValueError when there cannot be one at the start."""

    def __init__(self, path: str, config: Callable[[], WebConfig]) -> None:
        self._config = config
        self._reloaded = Reloaded(f"TLS of {path}", self._look, self._load)

    def wrap(self, sock: socket.socket) -> ssl.SSLSocket:
        """A client's connection, before the handshake."""
        return self._reloaded.get().wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def _look(self) -> Hashable:
        tls = self._config().tls
        return tls, seen(tls.files if tls else ())

    def _load(self) -> Context:
        tls = self._config().tls
        if tls is None:
            raise ValueError("TLS config is not present; restart to serve plain HTTP")
        return context(tls)


def context(config: TlsConfig) -> Context:
    """Raises ValueError with what is wrong."""
    made = Context(ssl.PROTOCOL_TLS_SERVER)
    made.sslsocket_class = TlsSocket
    made.set_alpn_protocols(["http/1.1"])
    made.options |= ssl.OP_NO_RENEGOTIATION  # costs the server more than the client
    made.minimum_version, made.maximum_version = _VERSIONS[config.min_version], _VERSIONS[config.max_version]
    _set_ciphers(made, config)
    _set_curves(made, config.curves)
    _load_pair(made, config)
    _set_clients(made, config)
    return made


def names(certificate: Mapping[str, Any]) -> Iterator[str]:
    """The subject alternative names of a certificate as Python gives it, spelt as Go spells them."""
    for kind, value in certificate.get("subjectAltName", ()):
        if kind == "IP Address":
            address = ip_address(value.strip())
            mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
            yield str(mapped or address)
        elif kind in ("DNS", "URI", "email"):
            yield value


def _set_ciphers(made: Context, config: TlsConfig) -> None:
    if config.prefer_server_ciphers:
        made.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        made.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    older = [name for name in config.ciphers if name]
    if older:
        try:
            made.set_ciphers(":".join(older))
        except ssl.SSLError:
            raise ValueError(f"cipher_suites: this OpenSSL has none of {', '.join(older)}") from None
    elif config.ciphers:
        made.minimum_version = ssl.TLSVersion.TLSv1_3


def _set_curves(made: Context, curves: tuple[str, ...]) -> None:
    set_groups = getattr(made, "set_groups", None)  # since Python 3.15
    if curves and set_groups is not None:
        set_groups(":".join(curves))
    elif curves:
        if len(curves) > 1 or curves == ("X25519",):
            raise ValueError("curve_preferences is not possible here: this Python's ssl can only be held to one of "
                             "CurveP256, CurveP384 and CurveP521; name one, or none")  # fmt: skip
        made.set_ecdh_curve(curves[0])


def _load_pair(made: Context, config: TlsConfig) -> None:
    certificate = _read("cert_file", config.cert_file) if config.cert_file else config.cert
    key = _read("key_file", config.key_file) if config.key_file else config.key
    wrong = "failed to load X509KeyPair: tls: "
    for text, mark, name in ((certificate, _CERTIFICATE, "certificate"), (key, _KEY, "key")):
        if mark not in text:
            raise ValueError(f"{wrong}failed to find any PEM data in {name} input")
    try:
        with _as_file(certificate) as first, _as_file(key) as second:
            made.load_cert_chain(first, second, password=_no_password)
    except ssl.SSLError as error:
        mismatch = error.reason == "KEY_VALUES_MISMATCH"
        words = "private key does not match public key" if mismatch else (error.reason or "malformed PEM").lower()
        raise ValueError(wrong + words) from None


def _no_password() -> bytes:
    """Without this OpenSSL would ask on the terminal."""
    raise ValueError("failed to load X509KeyPair: the key is encrypted; give one without a passphrase")


def _set_clients(made: Context, config: TlsConfig) -> None:
    made.verify_mode = _VERIFY[config.client_auth]
    if config.client_auth is ClientAuth.NONE:
        return
    made.num_tickets = 0  # OpenSSL does not verify the client of a session that is resumed
    made.allowed_sans = None if config.allowed_sans is None else frozenset(config.allowed_sans)
    where = config.client_ca_file or "client_ca"
    trusted = read_text(where) if config.client_ca_file else config.client_ca
    if not trusted and not config.client_ca_file:
        log.warning("there is no client_ca_file: clients with a certificate of any public authority are let in")
        made.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        return
    if _CERTIFICATE not in trusted:
        raise ValueError(f"there is no certificate in {where}")
    try:
        made.load_verify_locations(cadata=trusted)
    except ssl.SSLError as error:
        raise ValueError(f"{where}: {(error.reason or 'malformed PEM').lower()}") from None


def _read(name: str, path: str) -> str:
    try:
        return read_text(path)
    except ValueError as error:
        raise ValueError(f"failed to read {name} ({path}): {error}") from None


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """OpenSSL's loader wants a path; this one is in memory, so that no key is ever written to a disk."""
    number = os.memfd_create("pem")
    try:
        os.write(number, text.encode())
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)
