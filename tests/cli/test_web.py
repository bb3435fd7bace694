"""Web configuration and sockets of systemd, as a user sets them."""

from __future__ import annotations

import base64
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import bcrypt
import pytest

from tests.certificates import Authority
from tests.cli.examinations import examined, healthy, only
from tests.cli.running import COMMAND, gpuledger, serving, surroundings

NOBODY: dict[str, str] = {}
ALICE = {"Authorization": "Basic " + base64.b64encode(b"alice:wonder").decode()}
HASH = bcrypt.hashpw(b"wonder", bcrypt.gensalt(4)).decode()


@pytest.mark.parametrize("command", ["serve", "demo", "fleet"])
@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, "cannot read {0}: No such file or directory"),
        ("tls_config: {}",
         "{0}, line 1: unknown field tls_config in the web configuration; did you mean tls_server_config?"),
        ("tls_server_config: {cert_file: a, key_file: b}",
         "cannot read {1}/a: No such file or directory"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used(tmp_path: Path, command: str, text: str | None, error: str) -> None:
    """Every command that serves ends at once, with exit code 2 and one line."""
    path = tmp_path / "web.yml"
    if text is not None:
        path.write_text(text)

    done = gpuledger(command, f"--web.config.file={path}", "--web.listen-address=127.0.0.1:0")

    assert (done.returncode, done.stderr.count("gpuledger: ")) == (2, 1)
    assert done.stderr.splitlines()[-1] == f"gpuledger: --web.config.file: {error.format(path, tmp_path)}"


def _status(
    url: str, headers: Mapping[str, str] = NOBODY, context: ssl.SSLContext | None = None, body: bytes | None = None
) -> int:
    """Of an answer; with a body it is one to a POST."""
    try:
        with urlopen(Request(url, body, dict(headers)), timeout=10, context=context) as response:
            return int(response.status)
    except HTTPError as error:
        error.close()
        return error.code


@pytest.mark.needs("openssl")
@pytest.mark.parametrize("command", ["demo", "fleet"])
def test_all_pages_are_protected(tmp_path: Path, command: str) -> None:
    """TLS and passwords are before every page of every server, health checks included."""
    authority = Authority(tmp_path)
    authority.issue("server")
    text = "tls_server_config: {cert_file: server.crt, key_file: server.key}\n" + f"basic_auth_users: {{alice: {HASH}}}"
    (tmp_path / "web.yml").write_text(text)
    trusting = ssl.create_default_context(cafile=str(authority.cert))
    flags = (f"--web.config.file={tmp_path}/web.yml", "--log.level=info")

    with serving(command, *flags, env=surroundings()) as server:
        url = server.url.replace("http:", "https:")
        for path in ("/", "/metrics", "/healthz", "/readyz", "/nowhere"):
            assert _status(url + path, NOBODY, trusting) == 401
        assert _status(url + "/healthz", ALICE, trusting) == 200
        assert [_status(url + "/metrics", who, trusting, b"body") for who in (NOBODY, ALICE)] == [401, 405]
        code, _, log = server.stop()

    assert code == 0
    assert 'msg="TLS is enabled; users: 1"' in log


@pytest.mark.needs("openssl")
def test_the_demo_says_https(tmp_path: Path) -> None:
    """The address it prints is one that works."""
    Authority(tmp_path).issue("server")
    (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: server.crt, key_file: server.key}")

    flags = (f"--web.config.file={tmp_path}/web.yml", "--web.listen-address=127.0.0.1:0")
    with subprocess.Popen([*COMMAND, "demo", *flags], env=surroundings(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = b"".join(process.stdout.readline() for _ in range(3))
        process.kill()

    assert re.search(rb"at https://localhost:\d+/, the metrics are at https://localhost:\d+/metrics", lines)


@pytest.mark.parametrize("command", ["demo", "fleet"])
def test_systemd_socket(tmp_path: Path, command: str) -> None:
    """A real listening socket, passed as systemd passes it: as file descriptor 3, for the pid that is told."""
    # exec keeps the pid, so the shell can tell it
    script = 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" "$@"'
    with socket.create_server(("127.0.0.1", 0)) as listener, (tmp_path / "log").open("wb") as log:
        url = "http://{}:{}".format(*listener.getsockname())
        words = ["bash", "-c", f"exec 3<&{listener.fileno()}; {script}", *COMMAND, command, "--web.systemd-socket"]
        process = subprocess.Popen(
            words, env=surroundings(), pass_fds=[listener.fileno()], stdout=subprocess.DEVNULL, stderr=log
        )
    with process:
        try:
            assert _status(f"{url}/healthz") == 200
        finally:
            process.terminate()
    said = (tmp_path / "log").read_text()
    assert f"listens on {url.removeprefix('http://')}" in said


def test_without_systemd() -> None:
    """Exit code 2 and one line."""
    done = gpuledger("demo", "--web.systemd-socket")

    assert done.returncode == 2
    assert "gpuledger: --web.systemd-socket: no socket activation file descriptors found" in done.stderr


def test_guesses_do_not_stop_ticks(tmp_path: Path) -> None:
    """While clients guess passwords without end, ticks continue and a client with the right password is served."""
    slow = bcrypt.hashpw(b"wonder", bcrypt.gensalt(12)).decode()
    (tmp_path / "web.yml").write_text(f"basic_auth_users: {{alice: {slow}}}")
    flags = ("--tick.interval=100ms", f"--web.config.file={tmp_path}/web.yml")
    with serving("demo", *flags, env=surroundings()) as server:
        assert _status(f"{server.url}/healthz", ALICE) == 200
        before = _ticks(server.url)
        guessing = [_guess(server.url, str(guess)) for guess in range(40)]
        deadline = time.monotonic() + 20
        while _ticks(server.url) < before + 10:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for sock in guessing:
            answer = sock.recv(1000)
            assert answer.startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 503 "))
            sock.close()


def _guess(url: str, password: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=20)
    credentials = base64.b64encode(f"alice:{password}".encode())
    sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Basic " + credentials + b"\r\n\r\n")
    return sock


def _ticks(url: str) -> int:
    with urlopen(Request(f"{url}/metrics", headers=ALICE), timeout=10) as response:
        found = re.search(r"^gpuledger_ticks_total (\d+)$", response.read().decode(), re.MULTILINE)
    assert found is not None
    return int(found[1])


@pytest.mark.needs("openssl")
def test_what_the_doctor_finds(tmp_path: Path) -> None:
    """A file that serve would refuse is a problem; an exporter behind TLS or a password is no stranger on our port."""
    path = tmp_path / "web.yml"
    path.write_text("tls_server_config: {cert_file: gone.crt, key_file: gone.key}")
    name, level, text, _ = only(examined(healthy(), tmp_path, f"--web.config.file={path}")[1])
    assert (name, level) == ("settings", "problem")
    assert "gone.crt: No such file or directory" in text

    Authority(tmp_path).issue("server")
    for content in (
        f"basic_auth_users: {{alice: {HASH}}}",
        "tls_server_config: {cert_file: server.crt, key_file: server.key}",
    ):
        path.write_text(content)
        with serving("demo", f"--web.config.file={path}", env=surroundings()) as running:
            address = running.url.removeprefix("http://")
            flags = (f"--web.listen-address={address}", f"--web.config.file={path}")
            assert examined(healthy(), tmp_path, *flags)[1] == {}
            assert set(examined(healthy(), tmp_path, flags[0])[1]) == {f"listen {address}"}


def test_http2_is_said_to_have_no_effect(tmp_path: Path) -> None:
    """A file that enables http2 is logged; other files are not."""
    path = tmp_path / "web.yml"
    for content, said in (("http_server_config: {http2: true}", True), ("http_server_config: {http2: false}", False)):
        path.write_text(content)
        with serving("demo", f"--web.config.file={path}", env=surroundings()) as running:
            log = running.stop()[2]
        assert ("http2 has no effect; clients are served over HTTP/1.1" in log) is said
