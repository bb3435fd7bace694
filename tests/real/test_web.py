"""TLS, passwords and client certificates with the programs people use: curl and Prometheus; and floods of clients."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import bcrypt
import pytest
import yaml

from tests.certificates import Authority
from tests.cli.running import Running, serving, surroundings
from tests.components import program
from tests.real.prometheus import prometheus
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("prometheus", "victoria-metrics", "curl", "openssl")

DOCS = Path(__file__).parents[2] / "docs" / "web.md"
PASSWORD = "correct horse"
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(10)).decode()
TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
CLIENTS = TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"
USERS = f"basic_auth_users:\n  prometheus: {HASH}\n"


@dataclass(frozen=True)
class Answer:
    """What curl got: the status is 0 when there was no HTTP at all."""

    status: int
    text: str
    error: str


class Exporter:
    """The demo with a web configuration, and a folder with all certificates."""

    def __init__(self, server: Running, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.address = server.url.removeprefix("http://")

    def curl(self, path: str, *words: str, scheme: str = "https") -> Answer:
        """A page by curl, which trusts our authority. A client without `--user` has no password."""
        done = subprocess.run(
            [program("curl"), "--silent", "--show-error", "--max-time", "10", "--cacert", str(self.folder / "ca.crt"),
             "--include", *words, f"{scheme}://{self.address}{path}"],
            capture_output=True, text=True, check=False, cwd=self.folder,
        )  # fmt: skip
        found = re.match(r"HTTP/1\.[01] (\d+)", done.stdout)
        return Answer(int(found[1]) if found else 0, done.stdout, done.stderr)

    def ticks(self, *words: str, scheme: str = "https") -> int:
        """How many there were."""
        answer = self.curl("/metrics", *words, scheme=scheme)
        found = re.search(r"^gpuledger_ticks_total (\d+)$", answer.text, re.MULTILINE)
        return int(found[1]) if found else -1


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with those of a server, of clients good and bad, and of their authorities."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(folder)
    authority.issue("server")
    authority.issue("renewed")
    authority.issue("client", "DNS:prometheus")
    authority.issue("expired", "DNS:prometheus", days=-1)
    Authority(folder, "stranger").issue("strange", "DNS:prometheus")
    return folder


Start = Callable[[str], contextlib.AbstractContextManager[Exporter]]


@pytest.fixture
def demo(certificates: Path, tmp_path: Path) -> Start:
    """Start one with this web configuration."""

    @contextlib.contextmanager
    def run(text: str) -> Iterator[Exporter]:
        folder = Path(shutil.copytree(certificates, tmp_path / "web"))
        (folder / "web.yml").write_text(text)
        flags = ("--tick.interval=200ms", f"--web.config.file={folder}/web.yml")
        with serving("demo", *flags, env=surroundings()) as server:
            yield Exporter(server, folder)

    return run


def _pair(name: str) -> tuple[str, ...]:
    return ("--cert", f"{name}.crt", "--key", f"{name}.key")


def test_curl_with_a_password(demo: Start) -> None:
    """The right one gets in, on every page; a wrong one, an unknown user and none do not; plain HTTP is told off."""
    with demo(TLS + USERS) as exporter:
        right = ("--user", f"prometheus:{PASSWORD}")
        wait_until(lambda: exporter.curl("/readyz", *right).status == 200)
        good = exporter.curl("/metrics", *right)
        assert (good.status, good.error) == (200, "")
        assert "\ngpuledger_up 1\n" in good.text
        for user in ("prometheus:wrong", f"nobody:{PASSWORD}", "prometheus:", ":"):
            refused = exporter.curl("/metrics", "--user", user)
            assert refused.status == 401
            assert "WWW-Authenticate: Basic\n" in refused.text
        for path in ("/", "/healthz", "/readyz", "/api/v1/fingerprints", "/nowhere"):
            assert exporter.curl(path).status == 401
        plain = exporter.curl("/metrics", scheme="http")
        assert (plain.status, plain.text.splitlines()[-1]) == (400, "Client sent an HTTP request to an HTTPS server.")
        untrusting = exporter.curl("/metrics", "--cacert", "stranger.crt")
        assert (untrusting.status, "certificate" in untrusting.error) == (0, True)


def test_curl_with_a_certificate(demo: Start) -> None:
    """One of our authority gets in; none, an expired one and a stranger's do not, and curl can say why."""
    with demo(CLIENTS + "  client_allowed_sans: [prometheus]\n") as exporter:
        wait_until(lambda: exporter.curl("/metrics", *_pair("client")).status == 200)  # 503 before the first tick
        for words, why in (
            ((), "certificate required"),
            (_pair("expired"), "certificate expired"),
            (_pair("strange"), "unknown ca"),
            (_pair("server"), ""),  # a good certificate of somebody who is not listed
        ):
            refused = exporter.curl("/metrics", *words)
            assert (refused.status, why in refused.error) == (0, True), refused
        assert exporter.curl("/metrics", *_pair("client"), "--tls-max", "1.2").status == 200


@pytest.mark.parametrize("kind", ["prometheus", "victoria-metrics"])
def test_scraped_as_the_docs_say(kind: str, tmp_path: Path) -> None:
    """Each example of docs/web.md, run as it stands but for host and port: certificates, hash, file, scrape, curl."""
    certificates, _, password, by_hand = _blocks("sh")
    web, scrape, probe = _blocks("yaml")
    _shell(certificates.replace("DNS:gpu-node-1", "IP:127.0.0.1"), tmp_path)
    hashed = _shell(password, tmp_path, stdin=f"{PASSWORD}\n").splitlines()[-1].removeprefix("Password: ")
    (tmp_path / "web.yml").write_text(web.replace("HASH", hashed))
    (tmp_path / "gpuledger.password").write_text(PASSWORD)
    with serving("demo", f"--web.config.file={tmp_path}/web.yml", env=surroundings()) as server:
        exporter = Exporter(server, tmp_path)
        (job,) = yaml.safe_load(scrape)["scrape_configs"]
        assert (job.pop("job_name"), job.pop("static_configs")) == ("gpuledger", [{"targets": ["gpu-node-1:9400"]}])
        job["basic_auth"]["password_file"] = str(tmp_path / job["basic_auth"]["password_file"])
        job["tls_config"] = {name: str(tmp_path / file) for name, file in job["tls_config"].items()}
        with prometheus(
            {"gpuledger": (exporter.address, "/metrics")}, kind=kind, extras={"gpuledger": job}
        ) as server_2:
            assert server_2.wait_until_scraped(2).query("gpuledger_up")[0][1] == 1.0
        by_hand = by_hand.replace("gpu-node-1:9400", exporter.address)
        by_hand = by_hand.replace("--user prometheus", f"--user 'prometheus:{PASSWORD}'")
        assert "\ngpuledger_up 1\n" in _shell(by_hand, tmp_path)

        (tmp_path / "web.yml").write_text(f"{TLS}basic_auth_users:\n  prometheus: {_hash('secret')}\n")
        http = yaml.safe_load(probe)["livenessProbe"]["httpGet"]
        (header,) = http["httpHeaders"]
        words = ("--insecure", "--header", f"{header['name']}: {header['value']}")
        assert exporter.curl(http["path"], *words, scheme=http["scheme"].lower()).status == 200


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)


def _hash(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def _shell(script: str, folder: Path, stdin: str = "") -> str:
    """What a script prints; in a session of its own, so that a question for a password is answered by `stdin`."""
    env = surroundings(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=env, input=stdin, text=True, capture_output=True,
        check=False, start_new_session=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_scrapes_that_are_refused(demo: Start) -> None:
    """Prometheus without the right password or certificate has up 0, beside one that has both and up 1."""
    with demo(CLIENTS + USERS) as exporter:
        ours = {"ca_file": f"{exporter.folder}/ca.crt"}
        client = ours | {"cert_file": f"{exporter.folder}/client.crt", "key_file": f"{exporter.folder}/client.key"}
        right = {"username": "prometheus", "password": PASSWORD}
        wrong = {"username": "prometheus", "password": "wrong"}
        extras: dict[str, dict[str, object]] = {
            "good": {"scheme": "https", "basic_auth": right, "tls_config": client},
            "wrong password": {"scheme": "https", "basic_auth": wrong, "tls_config": client},
            "no certificate": {"scheme": "https", "basic_auth": right, "tls_config": ours},
            "plain": {"basic_auth": right},
        }
        with prometheus(dict.fromkeys(extras, (exporter.address, "/metrics")), extras=extras) as server:
            wait_until(lambda: len(server.query("count_over_time(up[1h]) >= 2")) == len(extras), 60)
            found = {labels["job"]: value for labels, value in server.query("max_over_time(up[1h])")}
        assert found == {"good": 1.0, "wrong password": 0.0, "no certificate": 0.0, "plain": 0.0}


def test_a_new_certificate_while_it_is_scraped(demo: Start) -> None:
    """No scrape is lost when certificate and file change under a running exporter, for better and for worse."""
    with demo(TLS) as exporter:
        job = {
            "scheme": "https",
            "tls_config": {"ca_file": f"{exporter.folder}/ca.crt"},
            "basic_auth": {"username": "prometheus", "password": PASSWORD},
        }
        with prometheus({"gpuledger": (exporter.address, "/metrics")}, "2s", extras={"gpuledger": job}) as server:
            server.wait_until_scraped(2)
            before = _serial(exporter)
            for kind in ("crt", "key"):
                (exporter.folder / f"renewed.{kind}").replace(exporter.folder / f"server.{kind}")
            assert _serial(exporter) != before
            (exporter.folder / "web.yml").write_text(TLS + USERS)
            assert exporter.curl("/metrics").status == 401
            (exporter.folder / "web.yml").write_text("junk")
            assert exporter.curl("/metrics").status == 401
            server.wait_until_scraped(5)
            assert server.query("min_over_time(up[1h])")[0][1] == 1.0
        log = exporter.server.log.read_text()
        assert log.count("the last valid version is still used") <= 2  # the junk, and perhaps half a certificate
        assert "write lines such as `key: value`; the last valid version is still used" in log


def _serial(exporter: Exporter) -> str:
    """Of the certificate that the server shows."""
    host, port = exporter.address.split(":")
    trusting = ssl.create_default_context(cafile=str(exporter.folder / "ca.crt"))
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        trusting.wrap_socket(plain, server_hostname=host) as sock,
    ):
        certificate = sock.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


FLOOD = 1000


@pytest.fixture
def _many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2 * FLOOD), max(before[1], 2 * FLOOD)))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.usefixtures("_many_files")
def test_a_thousand_silent_connections(demo: Start, *, tls: bool) -> None:
    """Clients that connect and say nothing: health checks are answered at once, and ticks go on."""
    scheme = "https" if tls else "http"
    with demo(TLS if tls else "") as exporter, contextlib.ExitStack() as stack:
        host, port = exporter.address.split(":")
        for _ in range(FLOOD):
            sock = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            with contextlib.suppress(OSError):  # it has lost its place already
                sock.sendall(b"\x16\x03\x01" if tls else b"GET /metrics")
        before = exporter.ticks(scheme=scheme)
        assert [exporter.curl("/healthz", scheme=scheme).status for _ in range(5)] == [200] * 5
        wait_until(lambda: exporter.ticks(scheme=scheme) >= before + 5, 30)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.usefixtures("_many_files")
def test_a_thousand_scrapes_at_once(demo: Start, *, tls: bool) -> None:
    """A thousand clients that scrape, again and again: health checks get through, and ticks go on.

    With TLS a quarter of them, because their handshakes take the CPU time of this test.
    """
    scheme, clients = ("https", FLOOD // 4) if tls else ("http", FLOOD)
    enough = threading.Event()
    served = []
    with demo(TLS if tls else "") as exporter:
        host, port = exporter.address.split(":")
        trusting = ssl.create_default_context(cafile=f"{exporter.folder}/ca.crt") if tls else None

        def scrape() -> None:
            while not enough.is_set():
                with contextlib.suppress(OSError):  # when all places are taken some are sent away
                    served.append(_scrape(host, int(port), trusting))

        crowd = [threading.Thread(target=scrape, daemon=True) for _ in range(clients)]
        try:
            before = exporter.ticks(scheme=scheme)
            for thread in crowd:
                thread.start()
            # One probe may lose its place; a kubelet restarts nothing before three in a row.
            wait_until(lambda: exporter.curl("/healthz", scheme=scheme).status == 200, 60)
            wait_until(lambda: exporter.ticks(scheme=scheme) >= before + 5, 60)
            wait_until(lambda: sum(served) >= clients, 60)
        finally:
            enough.set()
            for thread in crowd:
                if thread.ident is not None:
                    thread.join(30)
        assert exporter.curl("/healthz", scheme=scheme).status == 200


def _scrape(host: str, port: int, trusting: ssl.SSLContext | None) -> bool:
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.create_connection((host, port), timeout=30))
        if trusting is not None:
            sock = stack.enter_context(trusting.wrap_socket(sock, server_hostname=host))
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = b""
        while data := sock.recv(65536):
            received += data
    return b"\ngpuledger_up 1\n" in received


def test_silent_handshakes(demo: Start) -> None:
    """Fifty clients in the middle of a handshake: others are served beside them, without one of the fifty being cut."""
    with demo(TLS) as exporter, contextlib.ExitStack() as stack:
        host, port = exporter.address.split(":")
        silent = [stack.enter_context(socket.create_connection((host, int(port)), timeout=10)) for _ in range(50)]
        for sock in silent:
            sock.sendall(b"\x16\x03\x01")

        assert exporter.curl("/healthz").status == 200
        for sock in silent:
            sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                sock.recv(1)
