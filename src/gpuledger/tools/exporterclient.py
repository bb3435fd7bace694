"""The snapshot of a running exporter, and the settings of the commands that connect to one or to a Prometheus."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.config import parsers
from gpuledger.config.settings import in_group, redeclared
from gpuledger.errors import ConfigError, HttpError, LostError, PrometheusError
from gpuledger.net.address import Address, has_credentials, parse_url
from gpuledger.net.answers import ElementsError, load_json, refused, with_fix
from gpuledger.net.http import Client
from gpuledger.tools.prices import Prices, amount, currency
from gpuledger.tools.prometheus.client import Access, login, parse_place
from gpuledger.tools.prometheus.settings import PrometheusSettings, check_login
from gpuledger.web.snapshot.codec import decode
from gpuledger.web.snapshot.schema import Snapshot

_exporter, _prices = in_group("another exporter"), in_group("prices and carbon")

LOCAL = "localhost:9400"

PATH = "/api/v1/snapshot"
PORT = 9400
TIMEOUT_S = 5.0
MAX_BYTES = 16 << 20
"""A thousand processes take one megabyte."""
OTHER_SERVER = "check whether it is a gpuledger"
FIXES = {
    "timeout": "check whether it is overloaded",
    "tls": "set --exporter.ca-file",
    **dict.fromkeys(("permission", "missing", "refused", "unreachable"), "check whether it is running"),
}
REFUSALS = {
    401: ("authentication failed", "set --exporter.user or --exporter.token-file"),
    403: ("authentication failed", "set --exporter.user or --exporter.token-file"),
    404: (f"not a gpuledger, or an older version without {PATH}", "update it, or correct the URL"),
    503: ("its first tick is not finished", ""),
}


def parse(text: str) -> tuple[Address, str]:
    """Address and path prefix of an exporter. Raises ValueError."""
    is_bare = "://" not in text
    if has_credentials(text) or "@" in text.partition("/")[0]:
        raise ValueError("contains a user name or password; set --exporter.user and --exporter.password-file")
    address, prefix = (parse_url(f"http://{text}", PORT) if is_bare else parse_url(text)) or (None, "")
    if address is None or any(c in prefix for c in "?#"):
        raise ValueError("is not the address of an exporter; write it as http://host:9400, host:9400 or host")
    return address, prefix.rstrip("/")


# fmt: off
@dataclass(frozen=True)
class ExporterSettings:
    """How to reach an exporter."""

    connect: str = _exporter("connect", "",
        "Address of an exporter, as http://host:9400, host:9400 or host; if empty, this host.",
        parsers.checked(parse, optional=True), "URL")
    exporter_user: str = _exporter("exporter.user", "", "User name for basic authentication.", metavar="NAME")
    exporter_password_file: str = _exporter("exporter.password-file", "",
        "File with the password for basic authentication.", metavar="PATH")
    exporter_token_file: str = _exporter("exporter.token-file", "", "File with a bearer token.", metavar="PATH")
    exporter_ca_file: str = _exporter("exporter.ca-file", "",
        "File with CA certificates to trust instead of the system's.", metavar="PATH")
    exporter_insecure_skip_verify: bool = _exporter("exporter.insecure-skip-verify", False,
        "Do not verify the exporter's TLS certificate.", parsers.switch)
    # fmt: on

    def exporter_access(self) -> Access:
        """How to connect to the exporter. Raises ConfigError for contradictory settings."""
        check_login("--exporter", self.exporter_user, self.exporter_password_file, self.exporter_token_file)
        return Access(
            self.connect,
            self.exporter_user,
            self.exporter_password_file,
            self.exporter_token_file,
            self.exporter_ca_file,
            insecure=self.exporter_insecure_skip_verify,
            timeout_s=TIMEOUT_S,
        )


# fmt: off
@dataclass(frozen=True)
class PriceSettings:
    """Prices of energy and GPU-hours."""

    price: str = _prices("price", "", "Price per kWh.", amount, "AMOUNT")
    price_gpu_hour: str = _prices("price-gpu-hour", "", "Price per GPU-hour.", amount, "AMOUNT")
    currency: str = _prices("currency", "", "Currency to show.", currency, "NAME")
    # fmt: on

    def prices(self) -> Prices:
        """The prices that were given."""
        return Prices.of(self.price, self.price_gpu_hour, self.currency)


# fmt: off
@dataclass(frozen=True)
class CostSettings(PriceSettings, PrometheusSettings, ExporterSettings):
    """An exporter or a Prometheus, and prices."""

    prometheus_url: str = redeclared(PrometheusSettings, "prometheus_url", default="",
        parse=parsers.checked(parse_place, optional=True),
        help="URL of a Prometheus, for all nodes instead of one.")
    connect: str = redeclared(ExporterSettings, "connect", default=LOCAL)
    # fmt: on

    def for_fleet(self) -> bool:
        """Whether to query a Prometheus. Raises ConfigError if an exporter is given too."""
        if self.prometheus_url and self.connect != LOCAL:
            raise ConfigError("--connect and --prometheus.url exclude each other", "set one of them")
        return bool(self.prometheus_url)


class ExporterClient:
    """A client of one exporter."""

    def __init__(self, access: Access) -> None:
        self._access = access
        address, self._prefix = parse(access.url)
        self.name = f"http{'s' * address.tls}://{address.authority}{self._prefix}"
        self._client = Client(address, name=self.name, tls=access.tls)

    def __call__(self) -> Snapshot:
        """Fetch the current snapshot. Raises LostError or SnapshotError."""
        try:
            headers = (*login(self._access), "Accept: application/json")
            with self._client.stream(self._prefix + PATH, self._access.timeout_s, MAX_BYTES, *headers) as response:
                if response.status != 200:
                    raise self._refused(response.status)
                return decode(load_json(response.body()))
        except PrometheusError as error:  # a secret that cannot be read
            raise LostError(error.problem.what, error.problem.fix, error.kind) from error
        except HttpError as error:
            raise with_fix(LostError, error, FIXES, OTHER_SERVER) from error
        except ElementsError as error:
            raise LostError(f"{self.name} responds with {error}", OTHER_SERVER, "size") from None
        except (ValueError, RecursionError) as error:
            raise LostError(f"{self.name} does not respond with JSON", OTHER_SERVER, "format") from error

    def _refused(self, status: int) -> LostError:
        other = "check whether it requires https" if status == 400 and self.name.startswith("http:") else OTHER_SERVER
        return refused(LostError, self.name, status, REFUSALS, other)
