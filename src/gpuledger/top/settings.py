"""The settings of `gpuledger top`: the exporter's, for readings of its own, and how to reach an exporter."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuledger import checks
from gpuledger.config import OPTIONS as EXPORTER
from gpuledger.config import Config, Option
from gpuledger.errors import ConfigError
from gpuledger.fleet.prometheus import Access
from gpuledger.top.exporter import TIMEOUT_S, parse


def connect(text: str) -> str:
    """Where an exporter is, or nothing."""
    if text:
        parse(text)
    return text


OWN: tuple[Option, ...] = (
    Option("connect", "", "Exporter to show, as http://host:9400, host:9400 or host; this host's GPUs if not given.",
           connect),
    Option("exporter.user", "", "User for basic authentication there."),
    Option("exporter.password-file", "", "File with the password of that user."),
    Option("exporter.token-file", "", "File with a bearer token."),
    Option("exporter.ca-file", "", "File with the certificates to trust, in place of the system's."),
    Option("exporter.insecure-skip-verify", False, "Trust whatever certificate it shows.", checks.switch),
)  # fmt: skip

OPTIONS: tuple[Option, ...] = (
    *(replace(one, aliases=(*one.aliases, "interval")) if one.key == "tick.interval" else one for one in EXPORTER),
    *OWN,
)


@dataclass(frozen=True, slots=True)
class Settings(Config):
    """What the view is set to. It takes all settings of the exporter, so that both can have one file."""

    connect: str
    exporter_user: str
    exporter_password_file: str
    exporter_token_file: str
    exporter_ca_file: str
    exporter_insecure_skip_verify: bool

    def access(self) -> Access:
        """How to ask; ConfigError when some of it contradicts the rest."""
        if bool(self.exporter_user) != bool(self.exporter_password_file):
            raise ConfigError("--exporter.user and --exporter.password-file belong together; give both or none")
        if self.exporter_user and self.exporter_token_file:
            raise ConfigError("--exporter.user and --exporter.token-file are two ways to log in; give one of them")
        return Access(
            self.connect,
            self.exporter_user,
            self.exporter_password_file,
            self.exporter_token_file,
            self.exporter_ca_file,
            insecure=self.exporter_insecure_skip_verify,
            timeout_s=TIMEOUT_S,
        )
