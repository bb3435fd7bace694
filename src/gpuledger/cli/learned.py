"""What a running exporter has learned of a workload, for `explain`: it is in the exporter's memory, nowhere else."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Sequence
from typing import Any

from gpuledger.books.fingerprint import workload_of
from gpuledger.export.listen import parse_address
from gpuledger.model import Device, Facts, Owner

TIMEOUT_S = 1.0
LARGEST_BYTES = 8 << 20


def ask(addresses: Sequence[str]) -> list[dict[str, Any]] | None:
    """The fingerprints an exporter that listens on one of these has; None when none answers."""
    for address in addresses:
        host, port = parse_address(address)
        server = http.client.HTTPConnection(host or "127.0.0.1", port, timeout=TIMEOUT_S)
        try:
            server.request("GET", "/api/v1/fingerprints")
            answer = server.getresponse()
            told = json.loads(answer.read(LARGEST_BYTES)) if answer.status == http.client.OK else {}
            return list(told["fingerprints"])
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            continue  # another program, or none
        finally:
            server.close()
    return None


def is_guarded(address: str) -> bool:
    """Whether somebody answers there who wants TLS or a password first, as we do with a web configuration."""
    host, port = parse_address(address)
    server = http.client.HTTPConnection(host or "127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        server.request("GET", "/healthz")
        answer = server.getresponse()
        return answer.status == http.client.UNAUTHORIZED or b"to an HTTPS server" in answer.read(LARGEST_BYTES)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        server.close()


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
