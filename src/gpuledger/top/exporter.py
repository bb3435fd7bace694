"""The snapshot of another exporter, for `top --connect`."""

from __future__ import annotations

import json

from gpuledger.errors import HttpError, LostError, PrometheusError
from gpuledger.fleet.prometheus import Access, login
from gpuledger.net.address import Address, has_credentials, parse_url
from gpuledger.net.http import Client
from gpuledger.view.codec import decode
from gpuledger.view.schema import Snapshot

PATH = "/api/v1/snapshot"
PORT = 9400
TIMEOUT_S = 5.0
LARGEST = 64 << 20
"""Bytes; a thousand processes are one megabyte."""
ACCEPTED = "write it as http://host:9400, host:9400 or host"
OTHER_SERVER = "is it a gpuledger?"
FIXES = {
    "timeout": "is it overloaded?",
    "tls": "give --exporter.ca-file",
    **dict.fromkeys(("permission", "missing", "refused", "unreachable"), "is it running?"),
}
REFUSALS = {
    401: ("it requires a login", "give --exporter.user or --exporter.token-file"),
    403: ("it requires a login", "give --exporter.user or --exporter.token-file"),
    404: (f"it is no gpuledger, or an older one without {PATH}", "update it, or correct the URL"),
    503: ("it has read nothing yet", ""),
}


def parse(text: str) -> tuple[Address, str]:
    """Address and path prefix of an exporter; ValueError says what is accepted."""
    is_bare = "://" not in text
    if has_credentials(text) or "@" in text.partition("/")[0]:
        raise ValueError("holds a user name or password; give --exporter.user and --exporter.password-file")
    address, prefix = (parse_url(f"http://{text}", PORT) if is_bare else parse_url(text)) or (None, "")
    if address is None or any(c in prefix for c in "?#"):
        raise ValueError(f"is no address of an exporter; {ACCEPTED}")
    return address, prefix.rstrip("/")


class Exporter:
    """One exporter. A call returns its snapshot."""

    def __init__(self, access: Access) -> None:
        self._access = access
        address, self._prefix = parse(access.url)
        self.name = f"http{'s' * address.tls}://{address.authority}{self._prefix}"
        self._client = Client(address, name=self.name, tls=access.tls)

    def __call__(self) -> Snapshot:
        """The current snapshot. Raises LostError or SnapshotError."""
        try:
            headers = (*login(self._access), "Accept: application/json")
            with self._client.stream(self._prefix + PATH, self._access.timeout_s, LARGEST, *headers) as response:
                if response.status != 200:
                    raise self._refused(response.status)
                return decode(json.loads(response.body()))
        except PrometheusError as error:  # a secret that cannot be read
            raise LostError(error.problem.what, error.problem.fix, error.kind) from error
        except HttpError as error:
            raise LostError(error.problem.what, FIXES.get(error.kind, OTHER_SERVER), error.kind) from error
        except (ValueError, RecursionError) as error:
            raise LostError(f"{self.name} does not answer in JSON", OTHER_SERVER, "format") from error

    def _refused(self, status: int) -> LostError:
        what = f"{self.name} answers {status}"
        if status == 400 and self.name.startswith("http:"):
            return LostError(what, "is it https?", "http")
        reason, fix = REFUSALS.get(status, ("", OTHER_SERVER))
        return LostError(f"{what}{reason and f': {reason}'}", fix, "auth" if status in (401, 403) else "http")
