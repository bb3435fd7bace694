"""The client of an exporter, over real sockets."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuledger.errors import LostError
from gpuledger.net.address import Address
from gpuledger.tools.exporterclient import PATH, ExporterClient, parse
from gpuledger.tools.prometheus.client import Access
from gpuledger.web.http import Limits, Request, Response
from gpuledger.web.snapshot.codec import decode
from tests.certificates import Authority
from tests.web.clients import serving
from tests.web.snapshot.pictures import busy


def answering(body: object = None, status: int = 200) -> Callable[[Request], Response]:
    """A server with one response."""
    content = body if isinstance(body, bytes) else json.dumps(body or busy()).encode()

    def answer(request: Request) -> Response:
        return Response(status if request.path == PATH else 404, [("Content-Type", "application/json")], content)

    return answer


def ask(address: tuple[str, int], **more: str) -> object:
    """The snapshot."""
    return ExporterClient(Access(f"http://127.0.0.1:{address[1]}", **more, timeout_s=5.0))()  # type: ignore[arg-type]


def test_the_snapshot_of_an_exporter() -> None:
    """Every field."""
    with serving(answering()) as server:
        assert ask(server.addresses[0]) == decode(busy())


UPDATE = "update it, or correct the URL"


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (answering(b"<html>"), "does not respond with JSON; check whether it is a gpuledger"),
        (answering(b"[" * 100_000), "does not respond with JSON; check whether it is a gpuledger"),
        (
            answering(status=404),
            f"responds with status 404: not a gpuledger, or an older version without {PATH}; {UPDATE}",
        ),
        (
            answering(status=401),
            "responds with status 401: authentication failed; set --exporter.user or --exporter.token-file",
        ),
        (answering(status=503), "responds with status 503: its first tick is not finished"),
        (answering(status=500), "responds with status 500; check whether it is a gpuledger"),
        (answering(status=400), "responds with status 400; check whether it requires https"),
    ],
)
def test_other_responses_are_one_line(handler: Callable[[Request], Response], says: str) -> None:
    """The error has a fix."""
    with serving(handler) as server:
        address = server.addresses[0]
        with pytest.raises(LostError, match=f"^http://127.0.0.1:{address[1]} {re.escape(says)}$"):
            ask(address)


@pytest.mark.needs("openssl")
def test_a_certificate_that_is_not_trusted(tmp_path: Path) -> None:
    """The error names the flag; Python's exception for it is also a ValueError."""
    authority = Authority(tmp_path)
    pair = authority.issue("node")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)

    def wrap(sock: socket.socket) -> ssl.SSLSocket:
        return context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    with serving(answering(), wrap=wrap, limits=Limits()) as server:
        url = f"https://localhost:{server.addresses[0][1]}"
        with pytest.raises(LostError, match=rf"^the certificate of {url} is not trusted: .*; set --exporter.ca-file$"):
            ExporterClient(Access(url, timeout_s=5.0))()
        assert ExporterClient(Access(url, ca_file=str(authority.cert), timeout_s=5.0))() == decode(busy())


def test_a_refused_connection() -> None:
    """The error has a fix."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(LostError, match=r"cannot reach .*: Connection refused; check whether it is running"):
            ask(free.getsockname())


def test_no_http() -> None:
    """A server that hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        exporter = ExporterClient(Access(f"http://127.0.0.1:{port}", timeout_s=0.2))
        with pytest.raises(LostError, match=r"no complete answer from .* within 0.2 s"):
            exporter()


def test_logging_in(tmp_path: Path) -> None:
    """With a token, or with user and password; a missing file is an error."""
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    said: list[str] = []

    def answer(request: Request) -> Response:
        said.append(request.headers.get("authorization", ""))
        return Response(200, [], json.dumps(busy()).encode())

    with serving(answer) as server:
        ask(server.addresses[0], token_file=str(secret))
        ask(server.addresses[0], user="eve", password_file=str(secret))
        with pytest.raises(LostError, match="cannot read the secret in"):
            ask(server.addresses[0], token_file=str(tmp_path / "none"))
    assert said == ["Bearer open sesame", "Basic ZXZlOm9wZW4gc2VzYW1l"]


@pytest.mark.parametrize(
    ("text", "address", "prefix"),
    [
        ("n1", Address(host="n1", port=9400), ""),
        ("n1:80", Address(host="n1", port=80), ""),
        ("[::1]:9400", Address(host="::1", port=9400), ""),
        ("http://n1", Address(host="n1", port=80), ""),
        ("http://n1:9400/", Address(host="n1", port=9400), ""),
        ("https://gw/nodes/n1/", Address(host="gw", port=443, tls=True), "/nodes/n1"),
    ],
)
def test_addresses(text: str, address: Address, prefix: str) -> None:
    """As people write them."""
    assert parse(text) == (address, prefix)


@pytest.mark.parametrize(
    "text", ["", "ftp://n1", "n1:0", "n1:70000", "http://", "n1/?a=b", "a b", "http://n1/#x", "::1"]
)
def test_invalid_addresses(text: str) -> None:
    """The error has the correction."""
    with pytest.raises(ValueError, match="is not the address of an exporter; write it as http://host:9400"):
        parse(text)


@pytest.mark.parametrize("text", ["http://a:b@n1:9400", "a:b@n1"])
def test_no_passwords_in_addresses(text: str) -> None:
    """They would be in the list of processes."""
    with pytest.raises(ValueError, match=r"set --exporter.user and --exporter.password-file"):
        parse(text)
