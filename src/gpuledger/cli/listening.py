"""The server in front of the pages, as the settings of a command that serves say; shared by those commands."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gpuledger import __version__
from gpuledger.errors import ConfigError
from gpuledger.export.activation import passed_sockets
from gpuledger.export.server import Handler, Server, Wrap

if TYPE_CHECKING:
    from gpuledger.export.webfile import WebFile

log = logging.getLogger(__name__)


class Settings(Protocol):
    """What commands that serve are set to."""

    @property
    def web_listen_address(self) -> tuple[str, ...]:
        """Where to listen."""

    @property
    def web_max_connections(self) -> int:
        """How many clients at a time."""

    @property
    def web_config_file(self) -> str:
        """The file about TLS and passwords, if there is one."""

    @property
    def web_systemd_socket(self) -> bool:
        """Whether systemd has opened the sockets."""


def server(settings: Settings, pages: Handler) -> Server:
    """One that is not bound yet; ConfigError when its files cannot be used."""
    wrap, guard = None, None
    if settings.web_config_file:
        from gpuledger.export.auth import Logins  # memory that few need
        from gpuledger.export.gate import Gate

        file, wrap = web_file(settings.web_config_file)
        guard = partial(Gate, config=file.get, logins=Logins())
        config = file.get()
        log.info("TLS is %s; users: %d", "disabled" if wrap is None else "enabled", len(config.users))
        if config.http2:
            log.info("%s: http2 has no effect; clients are served over HTTP/1.1", file.path)
    sockets = passed_sockets(os.environ) if settings.web_systemd_socket else []
    addresses = () if settings.web_systemd_socket else settings.web_listen_address
    most = settings.web_max_connections
    return Server(addresses, pages, max_connections=most, wrap=wrap, guard=guard, sockets=sockets)


def web_file(path: str) -> tuple[WebFile, Wrap | None]:
    """The web configuration, and the TLS it asks for; ConfigError when it cannot be used."""
    from gpuledger.export.webfile import WebFile

    try:
        file = WebFile(path)
        if file.get().tls is None:
            return file, None
        from gpuledger.export.tls import Tls

        return file, Tls(path, file.get).wrap
    except ValueError as error:
        raise ConfigError(f"--web.config.file: {path}: {error}") from None


def announce(listening: Server) -> None:
    """Say in the log where it listens."""
    for host, port in listening.addresses:
        shown = f"[{host}]" if ":" in host else host
        log.info("gpuledger %s listens on %s:%d", __version__, shown, port)
