"""What a running exporter has learned about a workload, for `explain`: only the exporter's memory contains it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from gpuledger.books.fingerprint import workload_of
from gpuledger.errors import HttpError
from gpuledger.export.listen import parse_address
from gpuledger.model import Device, Facts, Owner
from gpuledger.net.address import Address
from gpuledger.net.http import Client

TIMEOUT_S = 1.0
MAX_BYTES = 8 << 20


def fetch(addresses: Sequence[str]) -> list[dict[str, Any]] | None:
    """The fingerprints of the first exporter that responds at one of these addresses; None if none does."""
    for address in addresses:
        try:
            status, body = _client(address).get("/api/v1/fingerprints", TIMEOUT_S, MAX_BYTES)
            if status == 200:
                return list(json.loads(body)["fingerprints"])
        except (HttpError, ValueError, KeyError, TypeError):
            continue  # another program, or none
    return None


def is_guarded(address: str) -> bool:
    """Whether a server there requires TLS or a password, as an exporter with a web configuration does."""
    try:
        status, body = _client(address).get("/healthz", TIMEOUT_S, MAX_BYTES)
    except HttpError:
        return False
    return status == 401 or b"to an HTTPS server" in body


def _client(address: str) -> Client:
    host, port = parse_address(address)
    return Client(Address(host=host or "127.0.0.1", port=port))


def describe(
    facts: Facts, owner: Owner, devices: Iterable[Device], fingerprints: list[dict[str, Any]] | None
) -> list[str]:
    """Lines about how the workload of a process behaves when it is alone on a GPU."""
    if fingerprints is None:
        return ["unknown: no exporter responds at --web.listen-address, or it requires TLS or a password"]
    workloads = [dict(workload) for device in devices if (workload := workload_of(device, facts, owner)) is not None]
    matching = [fingerprint for fingerprint in fingerprints if fingerprint.get("workload") in workloads]
    lines = [_line(behaviour) for fingerprint in matching for behaviour in fingerprint["behaviours"]]
    return lines or ["the exporter has not observed it working alone on a GPU: energy is split by SM time"]


def _line(behaviour: dict[str, Any]) -> str:
    activity = ", ".join(f"{part} {share:.2f}" for part, share in behaviour["activity"].items() if share)
    watts, seconds = behaviour["power_watts"], behaviour["seconds"]
    return f"{watts:.0f} W above parked while working; {activity} (seen for {seconds:.0f} s)"
