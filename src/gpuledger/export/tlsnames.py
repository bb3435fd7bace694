"""The names of TLS in web configuration files, which are Go's, and what OpenSSL calls the same things."""

from __future__ import annotations

from enum import Enum

TLS13_CIPHERS = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""All of them are always on, in Go as in OpenSSL: a list neither adds nor takes away one."""

_KEYS = ("ECDSA", "RSA")
_CODES = {
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
    "AES_128_CBC_SHA": "AES128-SHA",
    "AES_256_CBC_SHA": "AES256-SHA",
}
CIPHERS: dict[str, str] = {
    **dict.fromkeys(TLS13_CIPHERS, ""),
    **{f"TLS_ECDHE_{key}_WITH_{go}": f"ECDHE-{key}-{code}" for key in _KEYS for go, code in _CODES.items()},
}
"""The suites that Go calls secure; an empty name is one of TLS 1.3."""

CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}

VERSIONS = {"TLS13": 3, "TLS12": 2, "TLS11": 1, "TLS10": 0}
"""The minor version of TLS 1."""


class ClientAuth(Enum):
    """What is done about certificates of clients."""

    NONE = "NoClientCert"
    REQUEST = "RequestClientCert"
    REQUIRE_ANY = "RequireAnyClientCert"
    VERIFY_IF_GIVEN = "VerifyClientCertIfGiven"
    REQUIRE_AND_VERIFY = "RequireAndVerifyClientCert"


CLIENT_AUTH = {
    "": ClientAuth.NONE,
    **{kind.value: kind for kind in ClientAuth},
    "RequireClientCert": ClientAuth.REQUIRE_ANY,  # as older files have it
}
