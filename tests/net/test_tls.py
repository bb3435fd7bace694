"""PEM data for `ssl`, and TLS of clients."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuledger.net.tls import ClientTls, TlsFilesError, TlsSettings, pem_path
from tests.certificates import copy_certificate


def descriptors() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_pem_path() -> None:
    """A path stays a path; data is readable from memory until the stack closes; nothing is None."""
    before = descriptors()
    with ExitStack() as stack:
        path = pem_path(b"-----BEGIN", stack)
        assert path is not None
        assert Path(path).read_bytes() == b"-----BEGIN"
        assert pem_path("/a.pem", stack) == "/a.pem"
        assert pem_path("", stack) is None
        assert pem_path(b"", stack) is None
    assert descriptors() == before


def test_files(tmp_path: Path) -> None:
    """Files that cannot be used are named; secrets are not shown."""
    certificate, _ = copy_certificate(tmp_path)
    settings = TlsSettings(str(tmp_path / "none.pem"), certificate=certificate.read_bytes(), key=b"secret")

    assert settings.files == (str(tmp_path / "none.pem"),)
    assert "secret" not in repr(settings)
    with pytest.raises(TlsFilesError, match=r"the TLS files .*none\.pem cannot be used: No such file"):
        ClientTls(settings).wrap(None, "host")  # type: ignore[arg-type]
