"""Creates the HTTP server of `serve`, `demo` and `fleet`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger import __version__
from gpuledger.errors import ConfigError
from gpuledger.model.problem import Problem
from gpuledger.web.connection import Handler
from gpuledger.web.hosts import HostCheck, own_domains
from gpuledger.web.listen import passed_sockets
from gpuledger.web.server import Server, Wrap

if TYPE_CHECKING:
    from gpuledger.config.exporter import Config
    from gpuledger.tools.fleet.settings import FleetSettings
    from gpuledger.web.webconfig import WebFile

log = logging.getLogger(__name__)

RESOLV_CONF = Path("/etc/resolv.conf")


def create_server(
    settings: Config | FleetSettings, pages: Handler, report: Callable[[Problem | None], None] = lambda _: None
) -> Server:
    """A server that is not bound yet; `report` gets why tokens are not reviewed. Raises ConfigError."""
    wrap, middleware = None, None
    pages = HostCheck(pages, (*settings.web_allowed_hosts, *own_domains(os.uname().nodename, _resolv_conf())))
    if settings.web_config_file:
        from gpuledger.web.access import Access  # memory that few users need
        from gpuledger.web.auth import Logins

        file, wrap = load_web_file(settings.web_config_file)
        middleware = partial(Access, config=file.get, logins=Logins(), report=report)
        config = file.get()
        own_view = "" if config.own_view is None else "; users without the role all have an own view"
        log.info("TLS is %s; users: %d%s", "disabled" if wrap is None else "enabled", len(config.users), own_view)
        if config.http2:
            log.info("%s: http2 has no effect; clients are served over HTTP/1.1", file.path)
    return Server(
        () if settings.web_systemd_socket else settings.web_listen_address,
        pages,
        max_connections=settings.web_max_connections,
        wrap=wrap,
        middleware=middleware,
        sockets=passed_sockets(os.environ) if settings.web_systemd_socket else [],
    )


def _resolv_conf() -> str:
    try:
        return RESOLV_CONF.read_text()
    except (OSError, ValueError):
        return ""


def load_web_file(path: str) -> tuple[WebFile, Wrap | None]:
    """The web configuration file, and the TLS wrapper if it configures TLS. Raises ConfigError."""
    from gpuledger.web.webconfig import WebFile

    try:
        file = WebFile(path)
        if file.get().tls is None:
            return file, None
        from gpuledger.web.tls import Tls

        return file, Tls(path, file.get).wrap
    except ConfigError as error:
        raise ConfigError(f"--web.config.file: {error.problem.what}", error.problem.fix) from None


def log_addresses(server: Server) -> None:
    """Log the addresses that the server listens on."""
    for host, port in server.addresses:
        log.info("gpuledger %s listens on %s:%d", __version__, f"[{host}]" if ":" in host else host, port)
