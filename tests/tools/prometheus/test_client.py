"""The client against a real server that answers well or badly: an answer, or one clear line."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from gpuledger.errors import PrometheusError
from gpuledger.tools.prometheus.answer import Series
from gpuledger.tools.prometheus.client import Access, Prometheus, parse_place
from tests.certificates import copy_certificate
from tests.integrations.dcgmexporter.server import Upstream, hang, page, raw, upstream
from tests.tools.fleet.answers import vector

GOOD = vector(({"uuid": "a"}, 0.5))
MANY = 1 << 20
"""Bytes of a large response."""


@pytest.fixture
def server() -> Iterator[Upstream]:
    """A server with a valid answer; tests change it."""
    with upstream(page(GOOD)) as running:
        yield running


def failure(access: Access, **more: int) -> PrometheusError:
    """The error of a query, which is one line."""
    with pytest.raises(PrometheusError) as caught:
        Prometheus(access, **more).query("up")
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_query_is_posted_with_its_time(server: Upstream) -> None:
    """A long query fits no URL; the path prefix comes first."""
    answer = Prometheus(Access(f"{server.root}/a/b/", timeout_s=2.5)).query("sum(a+b) > 0", 1.5)

    assert answer.series == (Series({"uuid": "a"}, 0.5),)
    assert server.asked[0]["path"] == "/a/b/api/v1/query"
    assert parse_qs(server.asked[0]["form"]) == {"query": ["sum(a+b) > 0"], "time": ["1.500"], "timeout": ["2.5"]}


def test_extra_headers_are_sent(server: Upstream) -> None:
    """Tenants of Mimir and Thanos are named by them."""
    Prometheus(Access(server.root, headers=("X-Scope-OrgID: team", "X-B: 2"))).query("up")

    assert (server.asked[0]["x-scope-orgid"], server.asked[0]["x-b"]) == ("team", "2")


def test_basic_authentication(server: Upstream, tmp_path: Path) -> None:
    """The newline at the end of a secret file is not part of the secret."""
    (tmp_path / "password").write_text("pä:ss\n")
    Prometheus(Access(server.root, user="me", password_file=str(tmp_path / "password"))).query("up")

    assert base64.b64decode(server.asked[0]["authorization"].removeprefix("Basic ")).decode() == "me:pä:ss"


def test_a_token_is_read_again_when_it_changes(server: Upstream, tmp_path: Path) -> None:
    """Kubernetes replaces the tokens of service accounts while we run."""
    token = tmp_path / "token"
    prometheus = Prometheus(Access(server.root, token_file=str(token)))
    for text in ("first", "second"):
        token.write_text(text)
        prometheus.query("up")

    assert [asked["authorization"] for asked in server.asked] == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot read"), (b"", "not one line"), (b"a\nb", "not one line"), (b"\xff\xfe", "is not text")],
)
def test_a_bad_secret_file_is_named(server: Upstream, tmp_path: Path, content: bytes | None, says: str) -> None:
    """No query is sent with a part of a secret or with an injected header."""
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    failed = failure(Access(server.root, token_file=str(path)))

    assert (failed.kind, server.asked) == ("login", [])
    assert says in str(failed)
    assert str(path) in str(failed)


@pytest.mark.parametrize(
    ("status", "body", "reason", "says"),
    [
        ("401 Unauthorized", b"no", "login", "status 401: authentication failed; set --prometheus.user"),
        ("403 Forbidden", b"<html>", "login", "status 403"),
        ("302 GpuSample", b"", "http", "redirects are not followed"),
        ("404 Not GpuSample", b"404 page not found", "http", "check the path prefix of --prometheus.url"),
        ("405 Method Not Allowed", b"", "http", "no Prometheus at this path"),
        ("200 OK", b"<!doctype html><html>", "format", "with HTML"),
        ("200 OK", b"", "format", "not JSON"),
        ("504 Gateway Timeout", b"<html>", "timeout", "status 504: a proxy timed out"),
        ("502 Bad Gateway", b"<html>", "http", "status 502; check whether it is healthy"),
        ("503 Service Unavailable", b'{"status":"error","errorType":"timeout","error":"query timed out"}', "timeout",
         "timed out in Prometheus: query timed out"),
        ("400 Bad Request", b'{"status":"error","errorType":"bad_data","error":"parse error"}', "query",
         "rejects 'up': parse error"),
        ("422 Unprocessable Entity", b'{"status":"error","errorType":"execution","error":"too many samples"}', "query",
         "too many samples"),
        ("404 Not GpuSample", b'{"status":"error","errorType":"not_found","error":"no tenant"}', "query", "no tenant"),
    ],
)  # fmt: skip
def test_each_bad_answer_is_its_own_line(server: Upstream, status: str, body: bytes, reason: str, says: str) -> None:
    """With the kind of failure, for the metric."""
    server.say = page(body, status)
    failed = failure(Access(server.root))

    assert failed.kind == reason
    assert says in str(failed)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("200 OK", b"<" * MANY),
        ("200 OK", b"[" + b"0," * (MANY // 2) + b"0]"),
        ("200 OK", b'{"status":"success","data":{"resultType":"vector","result":"' + b"x" * MANY + b'"}}'),
        ("200 OK", b"x" * ((32 << 20) + 1)),
        ("422 Unprocessable Entity", b'{"status":"error","error":"' + b"x" * MANY + b'"}'),
        ("401 Unauthorized", b"x" * MANY),
    ],
    ids=["html", "no object", "no series", "too large", "rejected", "login"],
)
@pytest.mark.parametrize("is_range", [False, True])
def test_an_error_does_not_keep_the_body_in_memory(
    server: Upstream, status: str, body: bytes, *, is_range: bool
) -> None:
    """A report collects errors of many queries; the frames of a traceback keep their local variables."""
    server.say = page(body, status)
    prometheus = Prometheus(Access(server.root, timeout_s=60))
    with pytest.raises(PrometheusError) as caught:
        prometheus.query_range("up", 0, 1, 1) if is_range else prometheus.query("up")

    assert largest_local(caught.value) < MANY


def largest_local(error: BaseException | None) -> int:
    """The size of the largest bytes or text in the frames of an error, of its cause and of its context."""
    sizes = [0]
    while error is not None:
        frames = (
            frame
            for frame, _ in traceback.walk_tb(error.__traceback__)
            if "/src/gpuledger/" in frame.f_code.co_filename
        )
        values = [value for frame in frames for value in frame.f_locals.values()]
        sizes += [len(value) for value in values if isinstance(value, (bytes, bytearray, str))]
        error = error.__cause__ or error.__context__
    return max(sizes)


def test_a_login_that_is_refused_says_so(server: Upstream, tmp_path: Path) -> None:
    """The fix is another one than without a login."""
    (tmp_path / "token").write_text("old")
    server.say = page(b"", "401 Unauthorized")

    assert "check user, password or token" in str(failure(Access(server.root, token_file=str(tmp_path / "token"))))


def test_a_server_that_hangs_costs_the_timeout(server: Upstream) -> None:
    """The query ends after the timeout."""
    server.say = hang
    failed = failure(Access(server.root, timeout_s=0.1))

    assert (failed.kind, "within 0.1 s" in str(failed)) == ("timeout", True)


@pytest.mark.parametrize("data", [b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"])
def test_a_response_that_is_not_http(server: Upstream, data: bytes) -> None:
    """A truncated response too."""
    server.say = raw(data)

    assert failure(Access(server.root)).kind == "http"


def test_an_answer_may_not_be_larger_than_memory_allows(server: Upstream) -> None:
    """A larger response is refused."""
    assert failure(Access(server.root), largest=10).kind == "size"


def test_an_unreachable_server() -> None:
    """A port without a listener, and an unknown host."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        refused = failure(Access(f"http://127.0.0.1:{unused.getsockname()[1]}"))
    unknown = failure(Access("http://unknown.invalid:9090"))

    assert (refused.kind, unknown.kind) == ("unreachable", "unreachable")
    assert "refused; check whether it is running" in str(refused)


def test_tls_with_our_own_authority_or_with_none(tmp_path: Path) -> None:
    """An untrusted certificate is refused, unless its authority is given or verification is disabled."""
    certificate, key = copy_certificate(tmp_path)
    with upstream(page(GOOD), (certificate, key)) as server:
        url = server.root
        failed = failure(Access(url))
        assert (failed.kind, "is not trusted" in str(failed)) == ("tls", True)
        for access in (Access(url, ca_file=str(certificate)), Access(url, insecure=True)):
            assert Prometheus(access).query("up").series
        plain = failure(Access(url.replace("https", "http")))
        assert plain.kind in ("http", "unreachable")


def test_a_certificate_authority_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """A rotated one needs no restart."""
    certificate = copy_certificate(tmp_path)
    other = tmp_path / "ca.pem"
    other.write_text("not yet\n")
    with upstream(page(GOOD), certificate) as server:
        prometheus = Prometheus(Access(server.root, ca_file=str(other)))
        with pytest.raises(PrometheusError, match=r"TLS files .*ca\.pem cannot be used"):
            prometheus.query("up")
        other.write_text(certificate[0].read_text())

        assert prometheus.query("up").series


def test_a_client_certificate_is_shown_where_one_is_wanted(tmp_path: Path) -> None:
    """Without one, the error names the missing certificate."""
    certificate, key = copy_certificate(tmp_path)
    with upstream(page(GOOD), (certificate, key)) as server:
        listener = server._server.socket
        assert isinstance(listener, ssl.SSLSocket)
        listener.context.load_verify_locations(certificate)
        listener.context.verify_mode = ssl.CERT_REQUIRED
        url, ca = server.root, str(certificate)

        failed = failure(Access(url, ca_file=ca))
        shown = Prometheus(Access(url, ca_file=ca, cert_file=ca, key_file=str(key))).query("up")

    assert (failed.kind, "requires a client certificate" in str(failed)) == ("tls", True)
    assert shown.series


def test_a_certificate_is_refused_before_the_request_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In TLS 1.3, the client sends before the server has verified its certificate; the alert has the reason."""
    certificate, key = copy_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection, pytest.raises(ssl.SSLError):
                context.wrap_socket(connection, server_side=True)

        def send_late(*_: object) -> None:
            thread.join()
            raise ConnectionResetError(104, "Connection reset by peer")  # with OpenSSL 3.0 an SSLEOFError

        thread = threading.Thread(target=refuse)
        thread.start()
        monkeypatch.setattr(ssl.SSLSocket, "sendall", send_late)
        failed = failure(Access(f"https://127.0.0.1:{listener.getsockname()[1]}", ca_file=str(certificate)))

    assert (failed.kind, "requires a client certificate" in str(failed)) == ("tls", True)


def test_https_where_there_is_none(server: Upstream) -> None:
    """HTTPS to a server of plain HTTP is a TLS error."""
    assert failure(Access(server.root.replace("http:", "https:"))).kind == "tls"


@pytest.mark.parametrize(
    ("text", "host", "port", "tls", "prefix"),
    [
        ("http://a", "a", 80, False, ""),
        ("https://a/", "a", 443, True, ""),
        ("http://[::1]:9090/prom/", "::1", 9090, False, "/prom"),
    ],
)
def test_urls(text: str, host: str, port: int, tls: bool, prefix: str) -> None:
    """With and without port, path and brackets."""
    address, found = parse_place(text)

    assert (address.host, address.port, address.tls, found) == (host, port, tls, prefix)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a URL"),
        ("prometheus:9090", "not a URL"),
        ("ftp://a", "not a URL"),
        ("http://a:0", "not a URL"),
        ("http://a:99999", "not a URL"),
        ("http://a/?x=1", "not a URL"),
        ("http://a b", "not a URL"),
        ("http://me:secret@a", "--prometheus.user"),
        ("http://a/api/v1", "remove /api/v1"),
        ("http://a/x/api/v1/query", "remove /api/v1"),
    ],
)
def test_wrong_urls(text: str, says: str) -> None:
    """Each error has the correction."""
    with pytest.raises(ValueError, match=says):
        parse_place(text)
