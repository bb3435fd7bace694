"""The settings of `gpuledger top`: those of the exporter, and how to connect to another exporter."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuledger import checks
from gpuledger.config import OPTIONS as EXPORTER
from gpuledger.config import Config, Option
from gpuledger.errors import ConfigError
from gpuledger.fleet.prometheus import Access
from gpuledger.top.exporter import TIMEOUT_S, parse


def connect(text: str) -> str:
    """Check the address of an exporter; may be empty."""
    if text:
        parse(text)
    return text


OWN: tuple[Option, ...] = (
    Option("connect", "", "Address of an exporter, as http://host:9400, host:9400 or host; if empty, this host.",
           connect, "URL"),
    Option("exporter.user", "", "User name for basic authentication.", metavar="NAME"),
    Option("exporter.password-file", "", "File with the password for basic authentication.", metavar="PATH"),
    Option("exporter.token-file", "", "File with a bearer token.", metavar="PATH"),
    Option("exporter.ca-file", "", "File with CA certificates to trust instead of the system's.", metavar="PATH"),
    Option("exporter.insecure-skip-verify", False, "Do not verify the exporter's TLS certificate.", checks.switch),
)  # fmt: skip

OPTIONS: tuple[Option, ...] = (
    *(
        replace(option, aliases=(*option.aliases, "interval")) if option.key == "tick.interval" else option
        for option in EXPORTER
    ),
    *OWN,
)


@dataclass(frozen=True, slots=True)
class Settings(Config):
    """All settings; those of the exporter are included, so that both can share one file."""

    connect: str
    exporter_user: str
    exporter_password_file: str
    exporter_token_file: str
    exporter_ca_file: str
    exporter_insecure_skip_verify: bool

    def access(self) -> Access:
        """How to connect; raises ConfigError for contradictory settings."""
        if bool(self.exporter_user) != bool(self.exporter_password_file):
            raise ConfigError("--exporter.user and --exporter.password-file belong together", "set both or neither")
        if self.exporter_user and self.exporter_token_file:
            raise ConfigError("--exporter.user and --exporter.token-file exclude each other", "set one of them")
        return Access(
            self.connect,
            self.exporter_user,
            self.exporter_password_file,
            self.exporter_token_file,
            self.exporter_ca_file,
            insecure=self.exporter_insecure_skip_verify,
            timeout_s=TIMEOUT_S,
        )
