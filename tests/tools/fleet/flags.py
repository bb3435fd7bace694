"""FleetSettings of `gpuledger fleet` from flags."""

from __future__ import annotations

from gpuledger.config import load as config
from gpuledger.tools.fleet.settings import FleetSettings


def settings(*flags: str, environment: dict[str, str] | None = None) -> FleetSettings:
    """From flags such as `by=pod`."""
    given: dict[str, list[str]] = {}
    for flag in flags:
        key, _, text = flag.partition("=")
        given.setdefault(key, []).append(text)
    return config.load_as(FleetSettings, given, environment or {})
