"""TLS of the server: contexts from configurations, handshakes, and files that change."""

from __future__ import annotations

import contextlib
import http.client
import logging
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuledger.errors import ConfigError
from gpuledger.web import tls
from gpuledger.web.connection import Connection
from gpuledger.web.http import Limits
from gpuledger.web.server import Server
from gpuledger.web.tls import Tls, create_context, subject_names
from gpuledger.web.webconfig import ClientAuth, TlsConfig, WebFile
from tests.certificates import Authority, Pair, encrypt_key
from tests.waiting import wait_until
from tests.web.clients import BODY, connect, exchange, get, serving

pytestmark = pytest.mark.needs("openssl")

PAIR = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
CLIENTS = PAIR + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """One that has signed for a server and for clients."""
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    authority.issue("server")
    authority.issue("client", "DNS:prometheus,email:ops@example.org,URI:spiffe://a/b,IP:::1,IP:10.0.0.1")
    return authority


@pytest.fixture
def folder(authority: Authority, tmp_path: Path) -> Path:
    """Copies of all certificates, to be spoilt."""
    return Path(shutil.copytree(authority.cert.parent, tmp_path / "web"))


@contextlib.contextmanager
def tls_server(folder: Path, text: str) -> Iterator[Server]:
    """A server with this configuration."""
    path = folder / "web.yml"
    path.write_text(text)
    with serving(wrap=Tls(str(path), WebFile(str(path)).get).wrap) as server:
        yield server


def client(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    """One that trusts the authority."""
    made = ssl.create_default_context(cafile=str(authority.cert))
    if pair:
        made.load_cert_chain(pair.cert, pair.key)
    return made


def fetch(server: Server, context: ssl.SSLContext, path: str = "/metrics") -> bytes:
    """A page over TLS."""
    connection = http.client.HTTPSConnection(*server.addresses[0], timeout=5, context=context)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def serial(server: Server, authority: Authority) -> str:
    """Of the certificate that the server shows."""
    with client(authority).wrap_socket(connect(server), server_hostname="localhost") as sock:
        certificate = sock.getpeercert()
        assert certificate is not None
        return str(certificate["serialNumber"])


def test_pages(authority: Authority, folder: Path) -> None:
    """A client that trusts the authority gets its page, and hears a proper goodbye; the protocol is HTTP/1.1."""
    with tls_server(folder, PAIR) as server:
        assert server.scheme == "https"
        assert fetch(server, client(authority)) == BODY
        ours = client(authority)
        ours.set_alpn_protocols(["h2", "http/1.1"])
        with ours.wrap_socket(connect(server), server_hostname="localhost") as sock:
            assert (sock.version(), sock.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")
            sock.sendall(get("/stream", version="1.0"))
            received = b""
            while data := sock.recv(65536):  # an end without goodbye would raise
                received += data
        assert received.endswith(b"\r\n\r\n" + BODY)


def test_inline(authority: Authority, folder: Path) -> None:
    """Certificate, key and authority may stand in the file itself; the key is never written to a disk."""
    config = TlsConfig(
        cert=(folder / "server.crt").read_text(),
        key=(folder / "server.key").read_text(),
        client_ca=authority.cert.read_text(),
    )

    assert create_context(config).cert_store_stats()["x509_ca"] == 0
    indented = "".join(
        f"  {name}: |\n" + "".join(f"    {line}\n" for line in text.splitlines())
        for name, text in (("cert", config.cert), ("key", config.key))
    )
    for name in ("server.crt", "server.key"):
        (folder / name).unlink()
    with tls_server(folder, "tls_server_config:\n" + indented) as server:
        assert fetch(server, client(authority)) == BODY


def test_plain_http(folder: Path) -> None:
    """A client that speaks plain HTTP gets the reason in clear text."""
    with tls_server(folder, PAIR) as server:
        answer = exchange(server, get("/metrics"))

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")


def test_nonsense_and_silence(authority: Authority, folder: Path) -> None:
    """Clients that never finish a handshake, or send other data, do not delay other clients."""
    with tls_server(folder, PAIR) as server, contextlib.ExitStack() as stack:
        for sent in (b"", b"\x16\x03\x01", b"SSH-2.0-x\r\n", b"\x16\x03\x01\x02\x00\x01" + bytes(512)) * 30:
            stack.enter_context(connect(server, sent))
        assert fetch(server, client(authority)) == BODY


def test_a_slow_handshake_ends(folder: Path) -> None:
    """A handshake that arrives byte by byte is cut at the deadline of the first request."""
    hello = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
    path = folder / "web.yml"
    path.write_text(PAIR)
    wrap = Tls(str(path), WebFile(str(path)).get).wrap
    with serving(limits=Limits(head_s=0.3), wrap=wrap) as server, connect(server) as sock:
        started = time.monotonic()
        sock.settimeout(0.02)
        cut = False
        for byte in hello.read():
            with contextlib.suppress(TimeoutError):
                try:
                    sock.sendall(bytes([byte]))
                    cut = sock.recv(1) == b""
                except ConnectionError:
                    cut = True
            if cut:
                break

    assert cut
    assert time.monotonic() - started > 0.25


def test_client_certificates(authority: Authority, folder: Path, tmp_path: Path) -> None:
    """One of our authority gets in; none, an expired one and one of another authority do not."""
    other = Authority(tmp_path / "other").issue("client")
    expired = authority.issue("expired", days=-1)
    good = Pair(folder / "client.crt", folder / "client.key")
    with tls_server(folder, CLIENTS) as server:
        assert fetch(server, client(authority, good)) == BODY
        for pair in (None, expired, other):
            with pytest.raises(OSError, match="alert"):
                fetch(server, client(authority, pair))
        assert fetch(server, client(authority, good)) == BODY


def test_certificates_if_given(authority: Authority, folder: Path, tmp_path: Path) -> None:
    """A client without one gets in, one with a bad one does not."""
    text = CLIENTS.replace("RequireAndVerifyClientCert", "VerifyClientCertIfGiven")
    with tls_server(folder, text) as server:
        assert fetch(server, client(authority)) == BODY
        with pytest.raises(OSError, match="alert"):
            fetch(server, client(authority, Authority(tmp_path / "other").issue("client")))


@pytest.mark.parametrize("san", ["prometheus", "ops@example.org", "spiffe://a/b", "::1", "10.0.0.1"])
def test_allowed_names(authority: Authority, folder: Path, san: str, caplog: pytest.LogCaptureFixture) -> None:
    """Of the clients with a good certificate those with one of the listed names get in, each as it is written."""
    pair = Pair(folder / "client.crt", folder / "client.key")
    with tls_server(folder, f'{CLIENTS}  client_allowed_sans: ["{san}"]\n') as server:
        assert fetch(server, client(authority, pair)) == BODY
    for wrong in (san.upper() + "x", ""):
        with tls_server(folder, f'{CLIENTS}  client_allowed_sans: ["{wrong}"]\n') as server:
            with pytest.raises((OSError, http.client.HTTPException)):
                fetch(server, client(authority, pair))
            wait_until(lambda: "no allowed SAN in the client certificate" in caplog.text, timeout_s=3)


def test_names_of_certificates() -> None:
    """Addresses as Go writes them, whatever form OpenSSL gives them."""
    certificate = {
        "subjectAltName": (
            ("DNS", "a"), ("IP Address", "0:0:0:0:0:0:0:1\n"), ("IP Address", "0:0:0:0:0:FFFF:A00:1"), ("DirName", "x"),
        )
    }  # fmt: skip

    assert list(subject_names(certificate)) == ["a", "::1", "10.0.0.1"]


def test_a_new_certificate(authority: Authority, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Shown to the next client; connections of before live on; half a change does no harm."""
    caplog.set_level(logging.INFO)
    new = authority.issue("new")
    with tls_server(folder, PAIR) as server:
        before = serial(server, authority)
        with client(authority).wrap_socket(connect(server), server_hostname="localhost") as kept:
            kept.sendall(get("/healthz"))
            assert kept.recv(1000).endswith(b"ok\n")
            shutil.copy(new.cert, folder / "server.crt")
            assert [serial(server, authority) for _ in range(3)] == [before] * 3  # the old key does not fit
            shutil.copy(new.key, folder / "server.key")
            assert serial(server, authority) != before
            kept.sendall(get("/healthz", "Connection: close"))
            assert kept.recv(1000).endswith(b"ok\n")

    assert [line for line in caplog.messages if "TLS configuration" in line] == [
        (
            f"reloading TLS configuration {folder}/web.yml failed: the private key does not match the certificate; "
            "the last valid version is still used"
        ),
        f"TLS configuration {folder}/web.yml is valid again and was reloaded",
    ]


def test_a_new_authority(authority: Authority, folder: Path, tmp_path: Path) -> None:
    """Clients of the old authority are rejected, also if they resume an old session."""
    other = Authority(tmp_path / "other")
    old, new = Pair(folder / "client.crt", folder / "client.key"), other.issue("client")
    with tls_server(folder, CLIENTS) as server:
        ours = client(authority, old)
        ours.maximum_version = ssl.TLSVersion.TLSv1_2  # where sessions are kept even without tickets
        with ours.wrap_socket(connect(server), server_hostname="localhost") as sock:
            session = sock.session
        shutil.copy(other.cert, folder / "ca.crt")

        assert fetch(server, client(authority, new)) == BODY
        with pytest.raises(OSError, match="alert"):
            fetch(server, client(authority, old))
        with (
            contextlib.suppress(OSError),
            ours.wrap_socket(connect(server), server_hostname="localhost", session=session) as sock,
        ):
            assert not sock.session_reused


def test_a_resumed_session_expires(authority: Authority, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL verifies a certificate once per session; a resumed session with an expired certificate is rejected."""
    ours = client(authority, Pair(folder / "client.crt", folder / "client.key"))
    ours.maximum_version = ssl.TLSVersion.TLSv1_2
    with tls_server(folder, CLIENTS) as server:
        with ours.wrap_socket(connect(server), server_hostname="localhost") as sock:
            session = sock.session
        answers = []
        for days in (0, 29, 31):
            later = time.time() + days * 86400
            monkeypatch.setattr(tls, "time", SimpleNamespace(time=lambda later=later: later))
            with ours.wrap_socket(connect(server), server_hostname="localhost", session=session) as sock:
                assert sock.session_reused
                sock.sendall(get("/healthz"))
                answers.append(sock.recv(1000)[-3:] if days < 30 else _end(sock))

    assert answers == [b"ok\n", b"ok\n", b""]


def _end(sock: ssl.SSLSocket) -> bytes:
    with contextlib.suppress(OSError):
        return sock.recv(1000)
    return b""


def test_the_file_is_read_again(authority: Authority, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What it says about TLS counts from the next client on; TLS itself stays on until a restart."""
    with tls_server(folder, PAIR) as server:
        assert fetch(server, client(authority)) == BODY
        (folder / "web.yml").write_text(CLIENTS)
        with pytest.raises(OSError, match="alert"):
            fetch(server, client(authority))
        (folder / "web.yml").write_text("http_server_config: {http2: true}")
        with pytest.raises(OSError, match="alert"):
            fetch(server, client(authority))
        assert "tls_server_config was removed; restart to serve plain HTTP" in caplog.text


@pytest.mark.parametrize("path", [r"a\0b", r"\ud800"])
def test_an_invalid_path(authority: Authority, folder: Path, path: str, caplog: pytest.LogCaptureFixture) -> None:
    """A path that cannot be opened is logged like any other error, and the certificate stays in use."""
    with tls_server(folder, PAIR) as server:
        (folder / "web.yml").write_text(PAIR.replace("server.crt", f'"{path}"'))
        assert fetch(server, client(authority)) == BODY
    assert "cannot read" in caplog.text
    assert "the last valid version is still used" in caplog.text


@pytest.mark.parametrize(
    ("config", "newest", "agreed"),
    [
        (TlsConfig(), ssl.TLSVersion.TLSv1_3, "TLSv1.3"),
        (TlsConfig(max_version="TLS12"), ssl.TLSVersion.TLSv1_3, "TLSv1.2"),
        (TlsConfig(min_version="TLS13"), ssl.TLSVersion.TLSv1_2, ""),
    ],
)
def test_versions(authority: Authority, folder: Path, config: TlsConfig, newest: ssl.TLSVersion, agreed: str) -> None:
    """The negotiated version is in the configured range; otherwise the handshake fails."""
    config = replace(config, cert_file=str(folder / "server.crt"), key_file=str(folder / "server.key"))
    ours, theirs = create_context(config), client(authority)
    theirs.maximum_version = newest

    assert _shake_hands(ours, theirs)[0] == agreed


def _shake_hands(ours: ssl.SSLContext, theirs: ssl.SSLContext) -> tuple[str, str]:
    """Version and cipher two contexts agree on, without a socket; empty when they do not."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        theirs.wrap_bio(to_client, to_server, server_hostname="localhost"),
        ours.wrap_bio(to_server, to_client, server_side=True),
    ]
    try:
        for _ in range(3):
            for end in ends:
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
    except ssl.SSLError:
        return "", ""
    cipher = ends[0].cipher()
    assert cipher is not None
    return ends[0].version() or "", cipher[0]


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        ({"cert_file": "gone"}, "cannot read gone: No such file or directory"),
        ({"key_file": "gone"}, "cannot read gone: No such file or directory"),
        ({"cert_file": "{}/server.key"},
         "no PEM data in {}/server.key; put the certificate or key there in PEM format"),
        ({"key_file": "{}/server.crt"}, "no PEM data in {}/server.crt; put the certificate or key there in PEM format"),
        ({"key_file": "{}/client.key"}, "the private key does not match the certificate"),
        ({"cert_file": "{}/torn.crt"}, "invalid certificate or key: malformed pem"),
        ({"key_file": "{}/secret.key"}, "the private key is encrypted; use a key without a passphrase"),
        ({"client_ca_file": "gone"}, "cannot read gone: No such file or directory"),
        ({"client_ca_file": "{}/server.key"},
         "no certificate in {}/server.key; put the client authority there in PEM format"),
        ({"client_ca_file": "{}/torn.crt"}, "invalid certificate in {}/torn.crt: malformed pem"),
    ],
)  # fmt: skip
def test_mistakes(folder: Path, spoil: dict[str, object], error: str) -> None:
    """Each mistake is one line."""
    (folder / "torn.crt").write_text((folder / "server.crt").read_text()[:100] + "\n-----END CERTIFICATE-----\n")
    encrypt_key(folder / "server.key", folder / "secret.key")
    values = {name: value.format(folder) if isinstance(value, str) else value for name, value in spoil.items()}
    usual = {"cert_file": str(folder / "server.crt"), "key_file": str(folder / "server.key")}
    auth = ClientAuth.REQUIRE_AND_VERIFY if "client_ca_file" in spoil else ClientAuth.NONE

    with pytest.raises(ConfigError) as raised:
        create_context(TlsConfig(**(usual | values), client_auth=auth))  # type: ignore[arg-type]

    assert str(raised.value) == error.format(folder)


def test_refused_connections_get_no_clear_text(folder: Path) -> None:
    """Where all places are taken, a TLS client sees the end of the connection, nothing it would take for an attack."""
    with tls_server(folder, PAIR) as server:
        ours, theirs = socket.socketpair()
        server._reject(Connection(ours, Limits(), 0.0))

        assert theirs.recv(100) == b""
        theirs.close()
