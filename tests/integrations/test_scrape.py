"""Reads over real HTTP and from real files: valid, damaged and hostile ones."""

from __future__ import annotations

import gzip
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import UpstreamError
from gpuledger.integrations.exposition import Limits
from gpuledger.integrations.scrape import SETTLED_NS, File, Page, unzipped
from gpuledger.net.address import Address, Place, parse_place
from tests.certificates import copy_certificate
from tests.integrations.dcgmexporter.server import Say, hang, page, raw, upstream
from tests.integrations.dcgmexporter.world import NAMES, body, parsed
from tests.waiting import free_port

SMALL = Limits(size=1 << 20, series=1000)


def trickle(out: BinaryIO, over: threading.Event) -> None:
    """A byte now and then, each well within any timeout."""
    out.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not over.wait(0.02):
        out.write(b"#")


def endless(out: BinaryIO, over: threading.Event) -> None:
    """A hundred megabytes and more, without saying how many."""
    out.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not over.is_set():
        out.write(b"# a comment of no use to anybody\n" * 1000)


def chunked(data: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    """An answer in pieces of 1000 bytes."""
    pieces = [data[start : start + 1000] for start in range(0, len(data), 1000)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + end


def failure(say: Say, timeout_s: float = 5.0) -> tuple[str, str]:
    """The kind and the words of the error."""
    with upstream(say) as server, pytest.raises(UpstreamError) as caught:
        Page(parse_place(server.url), timeout_s, SMALL).read()
    return caught.value.kind, str(caught.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["plain", "gzip", "chunked", "until the end"])
def test_good_answers(name: str, form: str) -> None:
    """In every form HTTP has for a body, the same families."""
    data = body(name)
    answers = {
        "plain": page(data),
        "gzip": page(gzip.compress(data), "200 OK", "Content-Encoding: gzip"),
        "chunked": raw(chunked(data)),
        "until the end": raw(b"HTTP/1.0 200 OK\r\n\r\n" + data),
    }
    with upstream(answers[form]) as server:
        found = Page(parse_place(server.url), 5.0, SMALL).read()

    assert found.families == parsed(data)
    assert server.asked[0]["path"] == "/metrics"
    assert server.asked[0]["accept"] == "text/plain;version=0.0.4"


@pytest.mark.parametrize(
    ("say", "reason", "words"),
    [
        (page(b"", "500 Oh"), "http", "status 500; check whether it is a healthy"),
        (page(b"", "404 No"), "http", "use the whole URL"),
        (page(b"", "401 Who"), "http", "authentication is not supported"),
        (page(b"", "302 Found", "Location: /metrics"), "http", "redirects are not followed"),
        (
            page(b"a 1\n", "200 OK", "Content-Encoding: br"),
            "http",
            "responds with an encoding that was not requested",
        ),
        (raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "http", "did not answer in HTTP"),
        (raw(b""), "http", "closed the connection without an answer"),
        (page(b"<html>log in</html>\n", "200 OK", "Content-Type: text/html"), "format", "line 1 is not a sample"),
        (page(b"a 1\n\x00\x01\x02\n", "200 OK", "Content-Type: application/octet-stream"), "format", "line 2 is no"),
        (page(b""), "empty", "has no series"),
        (page(b"a 1\nb"), "half", "ends in the middle of line 2"),
        (
            raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\na 1\n"),
            "half",
            "closed the connection in the middle of an answer",
        ),
        (raw(chunked(b"a 1\n", end=b"")), "half", "closed the connection"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n"), "size", "more than 1 MiB"),
        (endless, "size", "more than 4000 lines"),
        (page(b"a 1\n" * 1001), "size", "more than 1000 series"),
        (
            page(gzip.compress(b"# 0\n" * 2_000_000, 9), "200 OK", "Content-Encoding: gzip"),
            "size",
            "more than 4000 lines",
        ),
        (page(gzip.compress(b"a 1\n" * 9)[:-9], "200 OK", "Content-Encoding: gzip"), "half", "gzip stream"),
        (page(b"a 1\n", "200 OK", "Content-Encoding: gzip"), "format", "is not valid gzip"),
        (
            page(gzip.compress(b"a 1\n") * 2, "200 OK", "Content-Encoding: gzip"),
            "format",
            "data after the end of its gzip",
        ),
    ],
)
def test_bad_answers(say: Say, reason: str, words: str) -> None:
    """Each is one error that says what is wrong."""
    found, message = failure(say)

    assert found == reason, message
    assert words in message
    assert "http://127.0.0.1:" in message


@pytest.mark.parametrize("say", [hang, trickle])
def test_slow_answers(say: Say) -> None:
    """The whole answer has one deadline, which single bytes do not move."""
    started = time.monotonic()

    reason, message = failure(say, timeout_s=0.3)

    assert (reason, "within 0.3 s" in message) == ("timeout", True)
    assert time.monotonic() - started < 3


def test_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the authorities that the system trusts; a server of another authority is refused."""
    certificate = copy_certificate(tmp_path)
    with upstream(page(body("whole")), certificate) as server:
        with pytest.raises(UpstreamError, match=r"the certificate of https://.* is not trusted: self.signed"):
            Page(parse_place(server.url), 5.0).read()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        found = Page(parse_place(server.url), 5.0).read()

    assert found.families == parsed(body("whole"))


def test_no_server() -> None:
    """A port without a server, and a name without a host."""
    with pytest.raises(UpstreamError, match=r"cannot reach .*; check whether the dcgm-exporter is running") as caught:
        Page(parse_place(f"http://127.0.0.1:{free_port()}/metrics"), 1.0).read()
    assert caught.value.kind == "unreachable"


@pytest.mark.parametrize("seed", [b"\0", b"a 1\n", bytes(range(256))])
@pytest.mark.parametrize("size", [1 << 18, (1 << 20) + 3])
def test_large_answers_as_gzip(seed: bytes, size: int) -> None:
    """Whole, though they come out in pieces."""
    data = (seed * size)[:size]

    assert b"".join(unzipped([gzip.compress(data)])) == data


@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_bytes_as_gzip(data: bytes, size: int) -> None:
    """Compressed ones come out as they were, however they are cut; of others comes an UpstreamError at most."""

    def cut(whole: bytes) -> list[bytes]:
        return [whole[start : start + size] for start in range(0, len(whole), size)]

    assert b"".join(unzipped(cut(gzip.compress(data)))) == data
    with suppress(UpstreamError):
        list(unzipped(cut(data)))


class Written:
    """A file, and the time at which it is looked at."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now_ns = time.time_ns()
        self.file = File(Place(path=str(path)), max_age_s=60.0, now_ns=lambda: self.now_ns)

    def write(self, data: bytes, age_s: float = 5.0) -> None:
        """As if that long ago."""
        self.path.write_bytes(data)
        when = self.now_ns - int(age_s * 1e9)
        os.utime(self.path, ns=(when, when))

    def failure(self) -> tuple[str, str]:
        """Of reading it now."""
        with pytest.raises(UpstreamError) as caught:
            self.file.read()
        return caught.value.kind, str(caught.value)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Not there yet."""
    return Written(tmp_path / "dcgm.prom")


def test_a_file_is_read_again_when_it_changes(written: Written) -> None:
    """By time, size or inode; an unchanged file is not parsed again. Its age is that of its content."""
    written.write(body("whole"))
    first = written.file.read()
    assert (first.families, round(first.age_s)) == (parsed(body("whole")), 5)
    assert written.file.read().families is None

    written.write(body("mig"), age_s=4)
    assert written.file.read().families == parsed(body("mig"))

    other = written.path.with_name("other")
    other.write_bytes(body("mig"))
    os.utime(other, ns=(written.path.stat().st_mtime_ns,) * 2)
    other.replace(written.path)
    assert written.file.read().families == parsed(body("mig"))
    assert written.file.read().families is None


def test_a_file_that_has_just_changed_is_read_again(written: Written) -> None:
    """It can change once more and look the same."""
    written.write(b"a 1\n", age_s=SETTLED_NS / 2e9)
    written.file.read()
    when = written.path.stat().st_mtime_ns
    written.path.write_bytes(b"a 2\n")
    os.utime(written.path, ns=(when, when))

    assert written.file.read().families == parsed(b"a 2\n")


def test_files_that_cannot_be_used(written: Written) -> None:
    """Missing, half written, old, or not a regular file: each has a message, and none hangs."""
    assert written.failure()[0] == "unreachable"
    written.write(b"a 1\nb")
    assert written.failure()[0] == "half"
    written.write(b"a 1\n", age_s=61)
    assert written.failure()[0] == "stale"
    written.path.unlink()
    os.mkfifo(written.path)
    assert "is not a regular file" in written.failure()[1]
    written.path.unlink()
    written.path.mkdir()
    assert written.failure()[0] == "unreachable"
    written.path.rmdir()
    written.write(b"a 1\n")
    assert written.file.read().families == parsed(b"a 1\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://localhost:9400/metrics", Place(Address(host="localhost", port=9400), "/metrics")),
        ("http://10.0.0.7:9400", Place(Address(host="10.0.0.7", port=9400), "/metrics")),
        ("http://dcgm.gpu-operator.svc:9400/", Place(Address(host="dcgm.gpu-operator.svc", port=9400), "/metrics")),
        ("http://h/x?y=1#z", Place(Address(host="h", port=80), "/x?y=1")),
        ("http://h:2376/metrics", Place(Address(host="h", port=2376), "/metrics")),
        ("https://[::1]/metrics", Place(Address(host="::1", port=443, tls=True), "/metrics")),
        ("/run/prometheus/dcgm.prom", Place(path="/run/prometheus/dcgm.prom")),
        ("file:///run/prometheus/dcgm.prom", Place(path="/run/prometheus/dcgm.prom")),
    ],
)
def test_places(text: str, expected: Place) -> None:
    """Pages and files."""
    assert parse_place(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("localhost:9400", "is neither a URL nor a path"),
        ("dcgm.prom", "is neither a URL nor a path"),
        ("ftp://h/metrics", "is neither a URL nor a path"),
        ("http://", "is neither a URL nor a path"),
        ("http://h:0/", "is neither a URL nor a path"),
        ("http://h:65536/", "is neither a URL nor a path"),
        ("http://h:9400/a b", "is neither a URL nor a path"),
        ("http://h:9400/a\r\nHost: x", "is neither a URL nor a path"),
        ("http://user:secret@h:9400/metrics", "contains a user name or password"),
    ],
)
def test_what_is_no_place(text: str, words: str) -> None:
    """Says what would be right, and repeats no password."""
    with pytest.raises(ValueError, match=words) as caught:
        parse_place(text)
    assert "secret" not in str(caught.value)


@given(st.text() | st.builds("http://{}:{}/{}".format, st.text(), st.integers(), st.text()))
def test_any_text(text: str) -> None:
    """A place that can be tried, or a ValueError; nothing that would break a request."""
    try:
        place = parse_place(text)
    except ValueError:
        return
    assert str(place)
    assert not {"\r", "\n", " "} & set(place.target)
