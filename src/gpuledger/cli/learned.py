"""What a running exporter has learned about a workload, for `explain`: only the exporter's memory contains it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Sequence
from typing import Any

from gpuledger.books.fingerprint import workload_of
from gpuledger.export.listen import parse_address
from gpuledger.model import Device, Facts, Owner

TIMEOUT_S = 1.0
MAX_BYTES = 8 << 20


def fetch(addresses: Sequence[str]) -> list[dict[str, Any]] | None:
    """The fingerprints of the first exporter that responds at one of these addresses; None if none does."""
    for address in addresses:
        host, port = parse_address(address)
        connection = http.client.HTTPConnection(host or "127.0.0.1", port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", "/api/v1/fingerprints")
            response = connection.getresponse()
            content = json.loads(response.read(MAX_BYTES)) if response.status == http.client.OK else {}
            return list(content["fingerprints"])
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            continue  # another program, or none
        finally:
            connection.close()
    return None


def is_guarded(address: str) -> bool:
    """Whether a server requires TLS or a password there, as gpuledger does with a web configuration."""
    host, port = parse_address(address)
    connection = http.client.HTTPConnection(host or "127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        response = connection.getresponse()
        return response.status == http.client.UNAUTHORIZED or b"to an HTTPS server" in response.read(MAX_BYTES)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def describe(
    facts: Facts, owner: Owner, devices: Iterable[Device], fingerprints: list[dict[str, Any]] | None
) -> list[str]:
    """Lines about how the workload of a process behaves when it is alone on a GPU."""
    if fingerprints is None:
        return ["unknown: no exporter responds at --web.listen-address, or it requires TLS or a password"]
    workloads = [dict(workload) for device in devices if (workload := workload_of(device, facts, owner)) is not None]
    matching = [fingerprint for fingerprint in fingerprints if fingerprint.get("workload") in workloads]
    lines = [_line(behaviour) for fingerprint in matching for behaviour in fingerprint["behaviours"]]
    return lines or ["the exporter has not seen it alone on a GPU while working: energy is split by SM time"]


def _line(behaviour: dict[str, Any]) -> str:
    activity = ", ".join(f"{part} {share:.2f}" for part, share in behaviour["activity"].items() if share)
    watts, seconds = behaviour["power_watts"], behaviour["seconds"]
    return f"{watts:.0f} W above parked while working; {activity} (seen for {seconds:.0f} s)"
