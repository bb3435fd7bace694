"""Web configuration files: what is in them, and what is wrong with them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.export.tlsnames import CIPHERS, CLIENT_AUTH, ClientAuth
from gpuledger.export.webconfig import HEADERS, RateLimit, TlsConfig, WebConfig, parse

HASH = "$2y$10$" + "X0h1gDsPszWURQaxFh.zou" + "bFi6DXncSjhoQNJgRrnGs7EsimhC7zG"
PAIR = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"


def tls(more: str) -> str:
    """A file with a certificate and these lines about TLS."""
    return PAIR + "".join(f"  {line}\n" for line in more.splitlines())


def test_everything_at_once() -> None:
    """Each field of the format arrives where it belongs; paths are relative to the file."""
    config = parse(
        tls(
            "client_auth_type: RequireAndVerifyClientCert\nclient_ca_file: /etc/ca.crt\nclient_allowed_sans: [a, b]\n"
            "cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]\n"
            "prefer_server_cipher_suites: false\ncurve_preferences: [CurveP256]\nmin_version: TLS12\nmax_version: TLS12"
        )
        + "http_server_config:\n  http2: false\n  headers:\n    X-Frame-Options: deny\n    X-XSS-Protection: 1\n"
        + f"basic_auth_users:\n  alice: {HASH}\nrate_limit:\n  interval: 1m1.5s\n  burst: 20\n",
        "/etc/web",
    )

    assert config == WebConfig(
        TlsConfig(
            "/etc/web/server.crt",
            "/etc/web/server.key",
            client_auth=ClientAuth.REQUIRE_AND_VERIFY,
            client_ca_file="/etc/ca.crt",
            allowed_sans=("a", "b"),
            ciphers=("ECDHE-RSA-AES128-GCM-SHA256", ""),
            prefer_server_ciphers=False,
            curves=("prime256v1",),
            max_version=2,
        ),
        http2=False,
        headers={"X-Frame-Options": "deny", "X-XSS-Protection": "1"},
        users={"alice": HASH},
        rate_limit=RateLimit(61_500_000_000, 20),
    )


def test_defaults() -> None:
    """TLS 1.2 and 1.3, no client certificates, the server's ciphers first, no limit."""
    config = parse(PAIR, "")

    assert config == WebConfig(TlsConfig("server.crt", "server.key"))
    assert config.tls == TlsConfig("server.crt", "server.key", min_version=2, max_version=3, prefer_server_ciphers=True)


@pytest.mark.parametrize(
    "text",
    ["", "# nothing\n", "{}", "null", "tls_server_config:\n", "tls_server_config: {min_version: TLS13}",
     "rate_limit: {interval: 0, burst: 0}", "rate_limit: {interval: -1s, burst: 1}", "rate_limit: {burst: 7}",
     "basic_auth_users:\n", "http_server_config: {headers: {X-XSS-Protection: ''}}"],
)  # fmt: skip
def test_files_that_ask_for_nothing(text: str) -> None:
    """Empty files and sections are no error, and switch nothing on."""
    assert parse(text, "") == WebConfig()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("junk", "yaml: unmarshal errors: line 1: cannot unmarshal !!str `junk` into web.Config"),
        ("- a", "yaml: unmarshal errors: line 1: cannot unmarshal !!seq into web.Config"),
        ("a: b: c", "yaml: line 1: mapping values are not allowed here"),
        ("\nbasic_auth_user: {}", ("yaml: unmarshal errors: line 2: field basic_auth_user not found in type "
         "web.Config; did you mean basic_auth_users?")),
        ("rate_limit: {burst: 1, burst: 2}",
         "yaml: unmarshal errors: line 1: field burst already set in type web.RateLimiterConfig"),
        (tls("cert_fil: a"), ("yaml: unmarshal errors: line 4: field cert_fil not found in type web.TLSConfig; "
         "did you mean cert_file?")),
        (tls("key: {a: b}"), "yaml: unmarshal errors: line 4: cannot unmarshal !!map into string"),
        ("tls_server_config: 5", "yaml: unmarshal errors: line 1: cannot unmarshal !!int `5` into web.TLSConfig"),
        (tls("prefer_server_cipher_suites: perhaps"),
         "yaml: unmarshal errors: line 4: cannot unmarshal !!str `perhaps` into bool"),
        (tls("cipher_suites: TLS_AES_128_GCM_SHA256"),
         "yaml: unmarshal errors: line 4: cannot unmarshal !!str `TLS_AES...` into []web.Cipher"),
        (tls("cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA2048]"), ("line 4: unknown cipher: "
         "TLS_RSA_WITH_AES_128_CBC_SHA2048; did you mean TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA?")),
        (tls("curve_preferences: [P1]"),
         "line 4: unknown curve: P1; there are CurveP256, CurveP384, CurveP521, X25519"),
        (tls("min_version: SSL3"), "line 4: unknown TLS version: SSL3; there are TLS13, TLS12, TLS11, TLS10"),
        (tls("min_version: TLS10"), ("min_version TLS10 is not possible here: it is insecure, and OpenSSL has it "
         "switched off; choose TLS12 or TLS13")),
        (tls("min_version: TLS13\nmax_version: TLS12"),
         "tls: no supported versions satisfy MinVersion and MaxVersion"),
        (tls("cipher_suites: [TLS_AES_128_GCM_SHA256]\nmax_version: TLS12"),
         "cipher_suites has only suites of TLS 1.3, and max_version is TLS12; nobody could connect"),
        ("tls_server_config: {key_file: a}", "missing one of cert or cert_file"),
        ("tls_server_config: {client_auth_type: x}", "missing one of cert or cert_file"),
        ("tls_server_config: {cert_file: a}", "missing one of key or key_file"),
        (tls("client_auth_type: Always"), ("invalid ClientAuth: Always; there are NoClientCert, RequestClientCert, "
         "RequireAnyClientCert, VerifyClientCertIfGiven, RequireAndVerifyClientCert")),
        (tls("client_ca_file: ca.crt"), "client CA's have been configured without a Client Auth Policy"),
        (tls("client_auth_type: NoClientCert\nclient_ca: x"),
         "client CA's have been configured without a Client Auth Policy"),
        (tls("client_allowed_sans: [a]"), ("client_allowed_sans has no effect without a client_auth_type; "
         "choose RequireAndVerifyClientCert")),
        (tls("client_auth_type: RequireClientCert"), ("client_auth_type RequireAnyClientCert is not possible here: "
         "Python's ssl cannot take a certificate without verifying it; choose RequireAndVerifyClientCert")),
        ("http_server_config: {headers: {Server: x}}", ('HTTP header "Server" can not be configured; there are '
         "Strict-Transport-Security, X-Content-Type-Options, X-Frame-Options, X-XSS-Protection, "
         "Content-Security-Policy")),
        ("http_server_config: {headers: {x-frame-options: deny}}", ('HTTP header "x-frame-options" can not be '
         "configured; there are Strict-Transport-Security, X-Content-Type-Options, X-Frame-Options, X-XSS-Protection, "
         "Content-Security-Policy")),
        ("http_server_config: {headers: {X-Frame-Options: allow}}",
         'invalid value for X-Frame-Options. Expected one of: ["deny" "sameorigin"], but got: "allow"'),
        ('http_server_config: {headers: {X-XSS-Protection: "1\\r\\nSet-Cookie: a"}}',
         "invalid value for X-XSS-Protection. Expected one line of ASCII"),
        ("basic_auth_users: {john: doe}",
         'basic_auth_users: user "john": crypto/bcrypt: hashedSecret too short to be a bcrypted password'),
        ("basic_auth_users: {john: }",
         'basic_auth_users: user "john": crypto/bcrypt: hashedSecret too short to be a bcrypted password'),
        (f"basic_auth_users: {{john: a{HASH}}}",
         "basic_auth_users: user \"john\": crypto/bcrypt: bcrypt hashes must start with '$'"),
        (f"basic_auth_users: {{john: {HASH.replace('$2y$', '$6$y$')}}}",
         'basic_auth_users: user "john": this is no bcrypt hash; one looks like $2y$10$ and 53 characters more'),
        (f"basic_auth_users: {{john: {HASH.replace('$10$', '$32$')}}}",
         'basic_auth_users: user "john": crypto/bcrypt: cost 32 is outside allowed inclusive range 4..31'),
        (f"basic_auth_users: {{john: {HASH}, john: {HASH}}}",
         'yaml: unmarshal errors: line 1: key "john" already set in map'),
        ("rate_limit: {interval: 1}", "line 1: interval: 1 would be nanoseconds; write it with a unit, as in 1s"),
        ("rate_limit: {interval: often}",
         "yaml: unmarshal errors: line 1: cannot unmarshal !!str `often` into time.Duration"),
        ("rate_limit: {interval: 1s, burst: many}",
         "yaml: unmarshal errors: line 1: cannot unmarshal !!str `many` into int"),
    ],
)  # fmt: skip
def test_mistakes(text: str, error: str) -> None:
    """Each is told in one line, in the words that users of other exporters know and search for."""
    with pytest.raises(ValueError, match=r".") as raised:
        parse(text, "")

    assert str(raised.value) == error


@pytest.mark.parametrize(
    ("written", "interval_ns"),
    [("1s", 10**9), ("1.5s", 15 * 10**8), (".5s", 5 * 10**8), ("1h1m1s1ms1us1ns", 3_661_001_001_001), ("+2µs", 2000)],
)
def test_durations_are_written_as_in_go(written: str, interval_ns: int) -> None:
    """All units that other exporters take."""
    config = parse(f"rate_limit: {{interval: {written}, burst: 1}}", "")

    assert config.rate_limit == RateLimit(interval_ns, 1)


@pytest.mark.parametrize("written", ["1", "1d", "s", "1s2", "--1s", "1 s", "1e3s", "9999999999999h"])
def test_no_durations(written: str) -> None:
    """What only looks like one is an error."""
    with pytest.raises(ValueError, match=r"line 1: (interval|cannot unmarshal)|yaml: unmarshal errors: line 1"):
        parse(f"rate_limit: {{interval: {written!r}, burst: 1}}", "")


def test_secrets_are_not_shown() -> None:
    """Neither key nor hashes are in what a log or a traceback would show."""
    config = parse(f"tls_server_config: {{cert: public, key: private}}\nbasic_auth_users: {{alice: {HASH}}}", "")

    assert config.tls is not None
    assert config.tls.key == "private"
    assert "private" not in repr(config)
    assert HASH not in repr(config)


_SECTIONS = ("tls_server_config", "http_server_config", "rate_limit", "basic_auth_users", "headers")
_FIELDS = ("cert", "key", "cert_file", "key_file", "client_auth_type", "client_ca_file", "client_allowed_sans",
           "cipher_suites", "curve_preferences", "min_version", "max_version", "prefer_server_cipher_suites", "http2",
           "interval", "burst")  # fmt: skip
_WORDS = st.sampled_from([*_SECTIONS, *_FIELDS, *HEADERS, *CIPHERS, *CLIENT_AUTH, "TLS13", "1s", HASH]) | st.text()
_SCALARS = _WORDS | st.none() | st.booleans() | st.integers() | st.floats() | st.binary()
_TREES = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4))


@given(_TREES)
def test_any_yaml(tree: Any) -> None:
    """Whatever a file holds, it is a configuration or a ValueError."""
    with contextlib.suppress(ValueError):
        parse(yaml.safe_dump(tree, allow_unicode=True), "")


@given(st.text())
def test_any_text(text: str) -> None:
    """The same for what is no YAML at all."""
    with contextlib.suppress(ValueError):
        parse(text, "")


@pytest.mark.parametrize(
    "text", ["[" * 5000, "&a [*a]", "basic_auth_users: &a {b: *a}", "<<: {}", "? [a]\n: b", "a: !!python/name:os 1"]
)
def test_vicious_yaml(text: str) -> None:
    """Depth, circles, merges and tags are errors too."""
    with pytest.raises(ValueError, match=r"yaml|bcrypt"):
        parse(text, "")
