"""What a running exporter has learned of a workload, for `explain`: it is in the exporter's memory, nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from gpuledger.books.workloads import workload_of
from gpuledger.errors import HttpError
from gpuledger.export.listen import parse_address
from gpuledger.model import Device, Facts, Owner
from gpuledger.net.address import Address
from gpuledger.net.http import Client

TIMEOUT_S = 1.0
LARGEST_BYTES = 8 << 20


def ask(addresses: Sequence[str]) -> list[dict[str, Any]] | None:
    """The fingerprints of an exporter that listens on one of these addresses; None if none answers."""
    for address in addresses:
        try:
            status, body = _client(address).get("/api/v1/fingerprints", TIMEOUT_S, LARGEST_BYTES)
            if status == 200:
                return list(json.loads(body)["fingerprints"])
        except (HttpError, ValueError, KeyError, TypeError):
            continue  # another program, or none
    return None


def is_guarded(address: str) -> bool:
    """Whether a server there requires TLS or a password, as an exporter with a web configuration does."""
    try:
        status, body = _client(address).get("/healthz", TIMEOUT_S, LARGEST_BYTES)
    except HttpError:
        return False
    return status == 401 or b"to an HTTPS server" in body


def _client(address: str) -> Client:
    host, port = parse_address(address)
    return Client(Address(host=host or "127.0.0.1", port=port))


def tell(facts: Facts, owner: Owner, devices: Iterable[Device], learned: list[dict[str, Any]] | None) -> list[str]:
    """Lines about how this workload works when it is alone."""
    if learned is None:
        return ["not known: no exporter answers at --web.listen-address, or it wants TLS or a password"]
    wanted = [dict(workload) for device in devices if (workload := workload_of(device, facts, owner)) is not None]
    lines = [_line(one) for known in learned if known.get("workload") in wanted for one in known["behaviours"]]
    return lines or ["the exporter has not seen it alone at work: shares are by SM time"]


def _line(one: dict[str, Any]) -> str:
    busy = ", ".join(f"{part} {amount:.2f}" for part, amount in one["activity"].items() if amount)
    return f"{one['power_watts']:.0f} W above parked while it has the engine; {busy} (seen for {one['seconds']:.0f} s)"
