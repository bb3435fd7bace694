"""Asking an exporter for its picture."""

from __future__ import annotations

import json

from gpuledger.fleet.failure import PrometheusError
from gpuledger.fleet.prometheus import Access, login
from gpuledger.httpclient import Address, Client, HttpError, holds_login, parse_url
from gpuledger.top.feed import LostError
from gpuledger.view.codec import decode
from gpuledger.view.schema import Snapshot

PATH = "/api/v1/snapshot"
PORT = 9400
TIMEOUT_S = 5.0
LARGEST = 64 << 20
"""Bytes; a thousand processes are one megabyte."""
WRITTEN = "write it as http://host:9400, host:9400 or host"


def parse(text: str) -> tuple[Address, str]:
    """Address and path prefix of an exporter; ValueError says what would be right."""
    bare = "://" not in text
    if holds_login(text) or "@" in text.partition("/")[0]:
        raise ValueError("holds a user name or password; give --exporter.user and --exporter.password-file")
    found = parse_url(f"http://{text}", PORT) if bare else parse_url(text)
    address, prefix = found or (None, "")
    if address is None or any(c in prefix for c in "?#"):
        raise ValueError(f"is no address of an exporter; {WRITTEN}")
    return address, prefix.rstrip("/")


class Exporter:
    """One exporter. Calling it gives its picture as it is now."""

    def __init__(self, access: Access) -> None:
        self._access = access
        address, self._prefix = parse(access.url)
        self._client = Client(address, ca=access.ca_file, insecure=access.insecure)
        host = f"[{address.host}]" if ":" in address.host else address.host
        self.name = f"http{'s' * address.tls}://{host}:{address.port}{self._prefix}"

    def __call__(self) -> Snapshot:
        """Its snapshot; raises LostError or SnapshotError."""
        name, timeout_s = self.name, self._access.timeout_s
        try:
            headers = (*login(self._access), "Accept: application/json", "User-Agent: gpuledger")
            with self._client.stream(self._prefix + PATH, timeout_s, LARGEST, *headers) as answer:
                status, _, pieces = answer
                if status != 200:
                    raise LostError(self._refused(status))
                return decode(json.loads(b"".join(pieces)))
        except PrometheusError as error:  # of a secret that cannot be read
            raise LostError(str(error)) from error
        except HttpError as error:
            raise LostError(f"{name} {error}; is it a gpuledger?") from error
        except TimeoutError as error:
            raise LostError(f"no whole answer from {name} within {timeout_s:g} s") from error
        except OSError as error:  # before ValueError: a certificate that is not trusted is both
            raise LostError(self._unreachable(error)) from error
        except (ValueError, RecursionError) as error:
            raise LostError(f"{name} does not answer in JSON; is it a gpuledger?") from error

    def _refused(self, status: int) -> str:
        name = self.name
        if status in (401, 403):
            return f"{name} answers {status} and does not let us in; give --exporter.user or --exporter.token-file"
        if status == 404:
            return f"{name} answers 404: it is no gpuledger, or an older one without {PATH}"
        if status == 503:
            return f"{name} answers 503: it has read nothing yet"
        if status == 400 and name.startswith("http:"):
            return f"{name} answers 400; is it https?"
        return f"{name} answers {status}; is it a gpuledger?"

    def _unreachable(self, error: OSError) -> str:
        import ssl

        if isinstance(error, ssl.SSLCertVerificationError):
            return f"the certificate of {self.name} is not trusted: {error.verify_message}; give --exporter.ca-file"
        if isinstance(error, ssl.SSLError):
            return f"no TLS with {self.name}: {(error.reason or str(error)).replace('_', ' ').lower()}; is it https?"
        return f"cannot reach {self.name}: {error.strerror or error}; is it running?"
