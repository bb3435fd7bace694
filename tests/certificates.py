"""Certificates: two that are part of the checkout, and others made by openssl, as a user makes them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.components import TESTS, program

SHIPPED = TESTS / "data" / "tls"


def copy_certificate(folder: Path, name: str = "server") -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key: the one of the server, or another of the client."""
    certificate, key = folder / "tls.crt", folder / "tls.key"
    shutil.copy(SHIPPED / f"{name}.crt", certificate)
    shutil.copy(SHIPPED / f"{name}.key", key)
    return certificate, key


@dataclass(frozen=True)
class Pair:
    """Where a certificate and its key are."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates; its own is `cert`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder, self._name = folder, name
        folder.mkdir(parents=True, exist_ok=True)
        self.cert = folder / f"{name}.crt"
        _openssl("req", "-x509", *_NEW_KEY, "-nodes", "-days", "30", "-subj", f"/CN={name}",
                 "-addext", "keyUsage=critical,keyCertSign",
                 "-keyout", str(folder / f"{name}.key"), "-out", str(self.cert))  # fmt: skip

    def issue(self, name: str, sans: str = "DNS:localhost,IP:127.0.0.1,IP:::1", days: int = 30) -> Pair:
        """A certificate with these alternative names; one of -1 days has expired."""
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={sans}\nauthorityKeyIdentifier=keyid\n")  # Python 3.13 wants the latter
        _openssl("req", "-new", *_NEW_KEY, "-nodes", "-subj", f"/CN={name}", "-keyout", str(pair.key), "-out",
                 str(request))  # fmt: skip
        _openssl("x509", "-req", "-in", str(request), "-CA", str(self.cert), "-CAkey",
                 str(self._folder / f"{self._name}.key"), "-CAcreateserial", "-days", str(days),
                 "-extfile", str(extensions), "-out", str(pair.cert))  # fmt: skip
        return pair


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def _openssl(*words: str) -> None:
    subprocess.run([program("openssl"), *words], check=True, capture_output=True)


def encrypt_key(key: Path, encrypted: Path) -> None:
    """The same key behind a passphrase."""
    _openssl("pkey", "-in", str(key), "-aes256", "-passout", "pass:secret", "-out", str(encrypted))
