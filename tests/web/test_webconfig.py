"""Web configuration files: their content, their mistakes, and what happens when they change."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.config import yamlfile
from gpuledger.errors import ConfigError
from gpuledger.web import webconfig
from gpuledger.web.webconfig import RETRY_S, ClientAuth, Reloaded, TlsConfig, WebConfig, WebFile, file_state

HASH = "$2y$10$" + "X0h1gDsPszWURQaxFh.zou" + "bFi6DXncSjhoQNJgRrnGs7EsimhC7zG"
PAIR = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
CLIENT_AUTH = "NoClientCert, VerifyClientCertIfGiven, RequireAndVerifyClientCert"


def parse(text: str, folder: str = "") -> WebConfig:
    """The configuration in a text."""
    return webconfig.parse(yamlfile.parse(text, "web.yml"), folder)


def tls(more: str) -> str:
    """A file with a certificate and these lines about TLS."""
    return PAIR + "".join(f"  {line}\n" for line in more.splitlines())


def test_everything_at_once() -> None:
    """Each field of the format arrives where it belongs; paths are relative to the file."""
    config = parse(
        tls(
            "client_auth_type: RequireAndVerifyClientCert\nclient_ca_file: /etc/ca.crt\nclient_allowed_sans: [a, b]\n"
            "min_version: TLS12\nmax_version: TLS12"
        )
        + f"http_server_config:\n  http2: false\nbasic_auth_users:\n  alice: {HASH}\n",
        "/etc/web",
    )

    assert config == WebConfig(
        tls=TlsConfig(
            cert_file="/etc/web/server.crt",
            key_file="/etc/web/server.key",
            client_auth=ClientAuth.REQUIRE_AND_VERIFY,
            client_ca_file="/etc/ca.crt",
            allowed_sans=("a", "b"),
            max_version="TLS12",
        ),
        http2=False,
        users={"alice": HASH},
    )


def test_defaults() -> None:
    """TLS 1.2 and 1.3, without client certificates."""
    expected = TlsConfig(cert_file="server.crt", key_file="server.key", min_version="TLS12", max_version="TLS13")

    assert parse(PAIR) == WebConfig(tls=expected)


@pytest.mark.parametrize(
    "text",
    ["", "# nothing\n", "{}", "null", "tls_server_config:\n", "tls_server_config: {min_version: TLS13}",
     "basic_auth_users:\n", "http_server_config: {http2: }"],
)  # fmt: skip
def test_files_without_content(text: str) -> None:
    """Empty files and sections are valid and enable nothing."""
    assert parse(text) == WebConfig()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("junk", "line 1: the web configuration is not a mapping; write lines such as `key: value`"),
        ("- a", "line 1: the web configuration is not a mapping; write lines such as `key: value`"),
        ("\nbasic_auth_user: {}", ("line 2: unknown field basic_auth_user in the web configuration; "
         "did you mean basic_auth_users?")),
        ("rate_limit: {interval: 1s}", ("line 1: unknown field rate_limit in the web configuration; "
         "use tls_server_config, http_server_config, basic_auth_users, own_view")),
        ("http_server_config: {headers: {X-Frame-Options: deny}}",
         "line 1: unknown field headers in http_server_config; use http2"),
        ("http_server_config: {http2: perhaps}", "line 1: http2 is neither true nor false; write true or false"),
        (tls("cert_fil: a"), "line 4: unknown field cert_fil in tls_server_config; did you mean cert_file?"),
        (tls("key_file: a"), "line 4: duplicate key key_file; remove it here or on line 3"),
        (tls("key: {a: b}"), "line 4: key takes one value"),
        ("tls_server_config: 5", "line 1: tls_server_config is not a mapping; write lines such as `key: value`"),
        (tls("min_version: TLS10"), "line 4: min_version TLS10 is not supported; use TLS12 or TLS13"),
        (tls("min_version: TLS13\nmax_version: TLS12"), "line 2: min_version is above max_version"),
        ("tls_server_config: {key_file: a}",
         "line 1: cert_file is missing; name the server's cert_file, or put its PEM in cert"),
        ("tls_server_config: {client_auth_type: x}",
         "line 1: cert_file is missing; name the server's cert_file, or put its PEM in cert"),
        ("tls_server_config: {cert_file: a}",
         "line 1: key_file is missing; name the server's key_file, or put its PEM in key"),
        (tls("client_auth_type: Always"),
         f"line 4: client_auth_type Always is not supported; use one of {CLIENT_AUTH}"),
        (tls("client_auth_type: RequireAnyClientCert"),
         f"line 4: client_auth_type RequireAnyClientCert is not supported; use one of {CLIENT_AUTH}"),
        (tls("client_ca_file: ca.crt"), ("line 4: client_ca_file has no effect without client_auth_type; "
         "set client_auth_type: RequireAndVerifyClientCert")),
        (tls("client_auth_type: NoClientCert\nclient_ca: x"), ("line 5: client_ca has no effect without "
         "client_auth_type; set client_auth_type: RequireAndVerifyClientCert")),
        (tls("client_allowed_sans: [a]"), ("line 4: client_allowed_sans has no effect without client_auth_type; "
         "set client_auth_type: RequireAndVerifyClientCert")),
        (tls("client_auth_type: RequireAndVerifyClientCert\nclient_allowed_sans: a"),
         "line 5: client_allowed_sans takes a list of values"),
        *[(f"basic_auth_users: {{john: {value}}}", ("line 1: the password of user john is not a bcrypt hash; "
           "create one with `htpasswd -nBC 10 USER`"))
          for value in ("doe", "", f"a{HASH}", HASH.replace("$2y$", "$6$y$"), HASH.replace("$10$", "$32$"))],
        (f"basic_auth_users: {{john: {HASH}, john: {HASH}}}",
         "line 1: duplicate key john; remove it here or on line 1"),
    ],
)  # fmt: skip
def test_mistakes(text: str, error: str) -> None:
    """Each mistake is one line that names the place."""
    with pytest.raises(ConfigError) as raised:
        parse(text)

    assert str(raised.value) == f"web.yml, {error}"


def test_secrets_are_not_shown() -> None:
    """Neither a key nor a hash appears in a log or a traceback."""
    config = parse(f"tls_server_config: {{cert: public, key: private}}\nbasic_auth_users: {{alice: {HASH}}}")

    assert config.tls is not None
    assert config.tls.key == "private"
    assert "private" not in repr(config)
    assert HASH not in repr(config)


_FIELDS = ("tls_server_config", "http_server_config", "basic_auth_users", "cert", "key", "cert_file", "key_file",
           "client_auth_type", "client_ca_file", "client_allowed_sans", "min_version", "max_version",
           "http2")  # fmt: skip
_WORDS = st.sampled_from([*_FIELDS, "RequireAndVerifyClientCert", "TLS13", HASH]) | st.text()
_SCALARS = _WORDS | st.none() | st.booleans() | st.integers() | st.floats() | st.binary()
_TREES = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4))


@given(_TREES)
def test_any_yaml(tree: Any) -> None:
    """Any tree is a configuration or a ConfigError."""
    with contextlib.suppress(ConfigError):
        parse(yaml.safe_dump(tree, allow_unicode=True))


def test_it_is_read_again(tmp_path: Path) -> None:
    """Users that are added or taken away count from the next request on."""
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users: {{alice: {HASH}}}")
    file = WebFile(str(path))
    assert list(file.get().users) == ["alice"]

    path.write_text(f"basic_auth_users: {{alice: {HASH}, bob: {HASH}}}")
    assert list(file.get().users) == ["alice", "bob"]
    path.write_text(f"basic_auth_users: {{bob: {HASH}}}")
    assert list(file.get().users) == ["bob"]


@pytest.mark.parametrize(
    "content", ["", " \n", "# soon\n", "basic_auth_users:\n", "junk", "basic_auth_users: {alice: wrong}", None]
)
def test_an_invalid_file_changes_no_user(tmp_path: Path, content: str | None) -> None:
    """A file that is empty, invalid or missing while it is written leaves the users unchanged."""
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users: {{alice: {HASH}}}")
    file = WebFile(str(path))

    if content is None:
        path.unlink()
    else:
        path.write_text(content)

    assert list(file.get().users) == ["alice"]


def test_an_empty_file_is_fine_at_the_start(tmp_path: Path) -> None:
    """It requires no password, as in other exporters."""
    path = tmp_path / "web.yml"
    path.write_text("")

    assert WebFile(str(path)).get().tls is None


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "cannot read {}: No such file or directory"),
        (b"\xff", "{} is not a text file in UTF-8"),
        (b"#" * 1_000_001, "{} has more than 1000000 characters"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | None, error: str) -> None:
    """Each error is one line."""
    path = tmp_path / "web.yml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError) as raised:
        WebFile(str(path))
    assert str(raised.value) == error.format(path)


@pytest.mark.parametrize(
    "text", ["[" * 5000, "&a [*a]", "basic_auth_users: &a {b: *a}", "<<: {}", "? [a]\n: b", "a: !!python/name:os 1"]
)
def test_vicious_yaml(tmp_path: Path, text: str) -> None:
    """Depth, cycles, merges and tags are errors too."""
    path = tmp_path / "web.yml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        WebFile(str(path))


def test_without_bcrypt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users need a package that is not always there; the error says which."""
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users: {{alice: {HASH}}}")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "bcrypt", raising=False)

    with pytest.raises(
        ConfigError, match=r"needs the bcrypt package; install it with `pip install '.\[auth\]'` in a checkout"
    ):
        WebFile(str(path))


class World:
    """A file whose state and text a test sets, and a clock."""

    def __init__(self) -> None:
        self.state, self.text, self.now, self.loads = 0, "first", 0.0, 0

    def load(self) -> str:
        """The content of the file; `bad` is invalid."""
        self.loads += 1
        if self.text == "bad":
            raise ValueError("it is bad")
        return self.text

    def reloaded(self) -> Reloaded[str]:
        """The value that is reloaded."""
        return Reloaded("web.yml", lambda: self.state, self.load, lambda: self.now)

    def change(self, text: str) -> None:
        """Write the file."""
        self.state, self.text = self.state + 1, text


def test_changes_are_seen(caplog: pytest.LogCaptureFixture) -> None:
    """The next call returns the new value; without a change nothing is loaded."""
    caplog.set_level(logging.INFO)
    world = World()
    thing = world.reloaded()
    assert [thing.get(), thing.get()] == ["first", "first"]
    assert world.loads == 1

    world.change("second")

    assert [thing.get(), thing.get()] == ["second", "second"]
    assert world.loads == 2
    assert caplog.messages == ["web.yml changed and was reloaded"]


def test_a_bad_one_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The last good thing stays; the log says it once for each reason, and once when it is good again."""
    caplog.set_level(logging.INFO)
    world = World()
    thing = world.reloaded()

    for _ in range(3):
        world.change("bad")
        assert [thing.get(), thing.get()] == ["first", "first"]
    assert world.loads == 4
    world.change("second")
    assert thing.get() == "second"

    assert caplog.messages == [
        "reloading web.yml failed: it is bad; the last valid version is still used",
        "web.yml is valid again and was reloaded",
    ]


def test_a_failure_is_tried_again() -> None:
    """What failed for another reason than the file is not given up."""
    world = World()
    thing = world.reloaded()
    world.change("bad")
    thing.get()
    world.text = "second"  # the same file: this process could not read it

    world.now = RETRY_S - 1
    assert thing.get() == "first"
    world.now = RETRY_S
    assert thing.get() == "second"


def test_a_bad_start() -> None:
    """There is nothing to keep, so the caller hears of it."""
    world = World()
    world.change("bad")

    with pytest.raises(ValueError, match="it is bad"):
        world.reloaded()


def test_no_thread_waits() -> None:
    """While one thread loads, others get what there was before."""
    begun, go_on = threading.Event(), threading.Event()
    world = World()

    def load() -> str:
        if world.state:
            begun.set()
            assert go_on.wait(10)
        return f"state {world.state}"

    thing = Reloaded("web.yml", lambda: world.state, load)
    world.change("")
    loading = threading.Thread(target=thing.get)
    loading.start()
    assert begun.wait(10)

    assert thing.get() == "state 0"
    go_on.set()
    loading.join()
    assert thing.get() == "state 1"


def test_every_kind_of_change_is_seen(tmp_path: Path) -> None:
    """Written, replaced by another with the same size and time, removed, made unreadable; also behind a link."""
    file, other, link = tmp_path / "file", tmp_path / "other", tmp_path / "link"
    file.write_text("one")
    link.symlink_to(file)
    states = [file_state([str(link)])]

    file.write_text("more")
    states.append(file_state([str(link)]))
    other.write_text("than")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.rename(file)
    states.append(file_state([str(link)]))
    time.sleep(0.02)  # some kernels have timestamps of 10 ms
    file.chmod(0o600)
    states.append(file_state([str(link)]))
    file.unlink()
    states.append(file_state([str(link)]))

    assert len(set(states)) == len(states)
    assert file_state([str(link)]) == states[-1]
