"""Certificates: two that are part of the checkout, and others made by openssl, as a user makes them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
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
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.cert = folder / f"{name}.crt"
        self._config = folder / f"{name}.cnf"
        self._config.write_text(_CONFIG.format(folder=folder, name=name))
        (folder / f"{name}.index").touch()
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
        now = datetime.now(timezone.utc)
        end = now + timedelta(days=days)
        _openssl("ca", "-batch", "-notext", "-config", str(self._config), "-in", str(request),
                 "-startdate", _time(min(now, end) - timedelta(days=1)), "-enddate", _time(end),
                 "-extfile", str(extensions), "-out", str(pair.cert))  # fmt: skip
        return pair


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


_CONFIG = """
[ca]
default_ca = default
[default]
certificate = {folder}/{name}.crt
private_key = {folder}/{name}.key
database = {folder}/{name}.index
new_certs_dir = {folder}
rand_serial = yes
default_md = sha256
policy = policy
unique_subject = no
[policy]
commonName = supplied
"""
"""`openssl x509` takes no dates before 3.4, and 3.5 refuses a negative number of days."""


def _time(moment: datetime) -> str:
    return moment.strftime("%Y%m%d%H%M%SZ")


def _openssl(*words: str) -> None:
    subprocess.run([program("openssl"), *words], check=True, capture_output=True)


def encrypt_key(key: Path, encrypted: Path) -> None:
    """The same key behind a passphrase."""
    _openssl("pkey", "-in", str(key), "-aes256", "-passout", "pass:secret", "-out", str(encrypted))
