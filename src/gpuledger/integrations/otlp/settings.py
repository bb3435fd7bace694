"""Builds the target of a push from the configuration, which may come from the OTEL_* variables."""

from __future__ import annotations

import os
from urllib.parse import unquote

from gpuledger import __version__
from gpuledger.config.exporter import Config
from gpuledger.errors import ConfigError
from gpuledger.integrations.otlp.points import Attributes
from gpuledger.integrations.otlp.push import Push, Target
from gpuledger.net.address import parse_url, redacted
from gpuledger.net.http import Client
from gpuledger.net.tls import TlsSettings

PORT = 4318
"""The default port of OTLP over HTTP."""


def create_push(settings: Config, hostname: str) -> Push | None:
    """The push of `--otlp.endpoint`; None without one."""
    if not settings.otlp_endpoint:
        return None
    place = parse_url(settings.otlp_endpoint, PORT)
    if place is None:
        shown = redacted(settings.otlp_endpoint)
        raise ConfigError(f"--otlp.endpoint: {shown!r} is not a URL", "write it as http://collector:4318/v1/metrics")
    address, path = place
    tls = TlsSettings(settings.otlp_ca_file, settings.otlp_cert_file, settings.otlp_key_file)
    target = Target(
        client=Client(address, name=f"the collector at {address}", tls=tls),
        path=path if path.strip("/") else "/v1/metrics",
        protocol=settings.otlp_protocol,
        headers=tuple(f"{key}: {value}" for key, value in pairs(settings.otlp_headers)),
        token_file=settings.otlp_token_file,
        timeout_s=settings.otlp_timeout,
        compressed=settings.otlp_compression == "gzip",
        resource=resource(settings, hostname),
    )
    return Push(target, settings.otlp_interval)


def resource(settings: Config, hostname: str) -> Attributes:
    """The attributes of this exporter; those of the user take precedence."""
    attributes: dict[str, str | int] = {
        "service.name": os.environ.get("OTEL_SERVICE_NAME", "") or "gpuledger",
        "service.version": __version__,
        "service.instance.id": hostname,
        "host.name": hostname,
    }
    if settings.kubernetes_node_name or "NODE_NAME" in os.environ:
        attributes["k8s.node.name"] = hostname
    attributes.update(pairs(settings.otlp_resource_attributes))
    return tuple(attributes.items())


def pairs(text: str) -> list[tuple[str, str]]:
    """`a=1,b=2` with percent-encoded values, as in OTEL_EXPORTER_OTLP_HEADERS."""
    found = [part.partition("=") for part in text.split(",") if part.strip()]
    return [(key.strip(), unquote(value.strip())) for key, _, value in found]
