"""Web configuration files, as all exporters of Prometheus's exporter-toolkit take them: parsed and checked.

Field names, defaults, rules and errors are the toolkit's. What it can do and Python's `ssl` cannot is an error too,
never a setting that silently does nothing. Pure: no file is opened here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuledger.export import yamlfields
from gpuledger.export.tlsnames import CIPHERS, CLIENT_AUTH, CURVES, VERSIONS, ClientAuth
from gpuledger.export.yamlfields import Fields

HEADERS: dict[str, tuple[str, ...]] = {
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
    "Content-Security-Policy": (),
}
"""Those that may be set, with the values each may have; none stands for any."""

_DURATION = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_UNITS_NS = {"ns": 1, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}
_LONGEST_NS = 1 << 63
_HASH = re.compile(r"\$2[abxy]\$[0-9]{2}\$[./A-Za-z0-9]{53}")


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """How to speak TLS. A file wins over the same thing inline; paths are complete."""

    cert_file: str = ""
    key_file: str = ""
    cert: str = ""
    key: str = field(default="", repr=False)
    client_auth: ClientAuth = ClientAuth.NONE
    client_ca_file: str = ""
    client_ca: str = ""
    allowed_sans: tuple[str, ...] | None = None
    ciphers: tuple[str, ...] = ()
    """OpenSSL's names; an empty one stands for those of TLS 1.3."""
    prefer_server_ciphers: bool = True
    curves: tuple[str, ...] = ()
    min_version: int = VERSIONS["TLS12"]
    max_version: int = VERSIONS["TLS13"]

    @property
    def files(self) -> tuple[str, ...]:
        """Those it is made of."""
        return tuple(path for path in (self.cert_file, self.key_file, self.client_ca_file) if path)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A request each interval, and `burst` at once after a rest."""

    interval_ns: int
    burst: int


@dataclass(frozen=True, slots=True)
class WebConfig:
    """What a file says."""

    tls: TlsConfig | None = None
    http2: bool | None = None
    """None when the file does not say."""
    headers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Their bcrypt hashes."""
    rate_limit: RateLimit | None = None


def parse(text: str, folder: str) -> WebConfig:
    """A file of this folder. Raises ValueError with what is wrong, and nothing else."""
    root = Fields(yamlfields.compose(text), "web.Config")
    tls = _tls(Fields(root.node("tls_server_config"), "web.TLSConfig"), folder)
    http = Fields(root.node("http_server_config"), "web.HTTPConfig")
    http2, headers = http.boolean("http2"), _headers(http.node("headers"))
    http.done()
    limit = _rate_limit(Fields(root.node("rate_limit"), "web.RateLimiterConfig"))
    users = yamlfields.texts(root.node("basic_auth_users"), "map[string]config.Secret")
    root.done()
    for name, secret in users.items():
        _check_hash(name, secret)
    return WebConfig(tls, http2, headers, users, limit)


def _tls(fields: Fields, folder: str) -> TlsConfig | None:
    paths = {name: fields.string(name) for name in ("cert_file", "key_file", "client_ca_file")}
    inline = {name: fields.string(name) for name in ("cert", "key", "client_ca")}
    auth = fields.string("client_auth_type")
    sans = fields.strings("client_allowed_sans")
    ciphers = fields.choices("cipher_suites", "unknown cipher", CIPHERS, "[]web.Cipher")
    curves = fields.choices("curve_preferences", "unknown curve", CURVES, "[]web.Curve")
    oldest = fields.choice("min_version", "unknown TLS version", VERSIONS, VERSIONS["TLS12"])
    newest = fields.choice("max_version", "unknown TLS version", VERSIONS, VERSIONS["TLS13"])
    prefer = fields.boolean("prefer_server_cipher_suites")
    fields.done()
    if not (auth or any(paths.values()) or any(inline.values())):
        return None
    if not (paths["cert_file"] or inline["cert"]):
        raise ValueError("missing one of cert or cert_file")
    if not (paths["key_file"] or inline["key"]):
        raise ValueError("missing one of key or key_file")
    if auth not in CLIENT_AUTH:
        raise ValueError(f"invalid ClientAuth: {auth}; there are {', '.join(kind.value for kind in ClientAuth)}")
    if CLIENT_AUTH[auth] is ClientAuth.NONE and (paths["client_ca_file"] or inline["client_ca"]):
        raise ValueError("client CA's have been configured without a Client Auth Policy")
    config = TlsConfig(
        **{name: os.path.join(folder, path) if path else "" for name, path in paths.items()},  # noqa: PTH118 - texts
        **inline,
        client_auth=CLIENT_AUTH[auth],
        allowed_sans=sans,
        ciphers=tuple(ciphers),
        prefer_server_ciphers=prefer is not False,
        curves=tuple(curves),
        min_version=oldest,
        max_version=newest,
    )
    _check_possible(config)
    return config


def _check_possible(config: TlsConfig) -> None:
    """What would be accepted by others, and could only be pretended here."""
    if config.client_auth in (ClientAuth.REQUEST, ClientAuth.REQUIRE_ANY):
        raise ValueError(f"client_auth_type {config.client_auth.value} is not possible here: Python's ssl cannot take "
                         "a certificate without verifying it; choose RequireAndVerifyClientCert")  # fmt: skip
    if config.allowed_sans is not None and config.client_auth is ClientAuth.NONE:
        raise ValueError("client_allowed_sans has no effect without a client_auth_type; "
                         "choose RequireAndVerifyClientCert")  # fmt: skip
    for name, version in (("min_version", config.min_version), ("max_version", config.max_version)):
        if version < VERSIONS["TLS12"]:
            raise ValueError(f"{name} TLS1{version} is not possible here: it is insecure, and OpenSSL has it switched "
                             "off; choose TLS12 or TLS13")  # fmt: skip
    if config.min_version > config.max_version:
        raise ValueError("tls: no supported versions satisfy MinVersion and MaxVersion")
    if config.ciphers and not any(config.ciphers) and config.max_version < VERSIONS["TLS13"]:
        raise ValueError("cipher_suites has only suites of TLS 1.3, and max_version is TLS12; nobody could connect")


def _headers(node: Any) -> dict[str, str]:
    headers = yamlfields.texts(node, "map[string]string")
    for name, value in headers.items():
        if name not in HEADERS:
            raise ValueError(f'HTTP header "{name}" can not be configured; there are {", ".join(HEADERS)}')
        allowed = HEADERS[name]
        if allowed and value not in allowed:
            one_of = " ".join(f'"{one}"' for one in allowed)
            raise ValueError(f'invalid value for {name}. Expected one of: [{one_of}], but got: "{value}"')
        if not value.isascii() or (value and not value.isprintable()):
            raise ValueError(f"invalid value for {name}. Expected one line of ASCII")
    return {name: value for name, value in headers.items() if value}


def _rate_limit(fields: Fields) -> RateLimit | None:
    node, burst = fields.node("interval"), fields.integer("burst")
    fields.done()
    if node is not None and node.id == "scalar" and re.fullmatch("[+-]?[0-9]+", node.value) and int(node.value):
        raise ValueError(f"{yamlfields.line_of(node)}: interval: {node.value} would be nanoseconds; "
                         "write it with a unit, as in 1s")  # fmt: skip
    interval_ns = yamlfields.duration_ns(node, _duration)
    return RateLimit(interval_ns, burst) if interval_ns > 0 else None


def _duration(text: str) -> int | None:
    """Nanoseconds of a duration such as 1.5s or 1m30s, signed; None for anything else."""
    digits = text.lstrip("+-") if len(text) - len(text.lstrip("+-")) <= 1 else ""
    parts = _DURATION.findall(digits)
    if digits.strip("0") == "" and digits:
        return 0
    if not parts or "".join(number + unit for number, unit in parts) != digits:
        return None
    total = sum(float(number) * _UNITS_NS[unit] for number, unit in parts)
    return int(-total if text.startswith("-") else total) if total < _LONGEST_NS else None


def _check_hash(user: str, secret: str) -> None:
    """Says what is wrong as Go's bcrypt does, and never shows the secret."""
    where = f'basic_auth_users: user "{user}": '
    if len(secret) < 59:
        raise ValueError(f"{where}crypto/bcrypt: hashedSecret too short to be a bcrypted password")
    if not secret.startswith("$"):
        raise ValueError(f"{where}crypto/bcrypt: bcrypt hashes must start with '$'")
    if _HASH.fullmatch(secret) is None:
        raise ValueError(f"{where}this is no bcrypt hash; one looks like $2y$10$ and 53 characters more")
    cost = int(secret[4:6])
    if not 4 <= cost <= 31:
        raise ValueError(f"{where}crypto/bcrypt: cost {cost} is outside allowed inclusive range 4..31")
