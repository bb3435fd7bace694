"""What `explain` says of a workload whose fingerprint a running exporter has."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpuledger.cli import explain
from gpuledger.model import Device, Facts, Owner
from gpuledger.web.http import Request, Response
from gpuledger.web.server import Server

FACTS = Facts(7, 1, 0, "train", 0, program="0a1b2c3d")
KNOWN: dict[str, Any] = {
    "workload": {"gpu_model": "H200", "process_name": "train", "program": "0a1b2c3d", "uid": "0"},
    "seconds": 12.4,
    "power_ratio": 0.814,
    "activity": {"sm": 0.951, "tensor": 0.9, "fp64": 0.0},
}


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, json.dumps({"fingerprints": [KNOWN]}), [KNOWN]),
        (200, "no JSON", None),
        (200, "[]", None),
        (404, json.dumps({"fingerprints": []}), None),
    ],
)
def test_an_exporter_is_asked(status: int, body: str, expected: object) -> None:
    """One that answers is believed; another program on that port is as good as none."""

    def app(request: Request) -> Response:
        assert request.path == "/api/v1/fingerprints"
        return Response.text(status, body)

    server = Server(("127.0.0.1:0",), app)
    server.bind()
    server.start()
    try:
        ours = [f"{host}:{port}" for host, port in server.addresses]
        assert explain.fetch_fingerprints(["127.0.0.1:1", *ours]) == expected
    finally:
        server.stop()


def test_no_exporter_answers() -> None:
    """Without an exporter the command says so, and it is no error."""
    assert explain.fetch_fingerprints(["127.0.0.1:1"]) is None
    assert explain._describe_fingerprint(FACTS, Owner(), [Device(0, "x", name="H200")], None) == [
        "unknown: no exporter responds at --web.listen-address, or it requires TLS or a password"
    ]


def test_a_known_workload_is_told() -> None:
    """Power and what it uses; parts it does not use are left out. Another program is not this one."""
    devices = [Device(0, "x", name="H200")]

    assert explain._describe_fingerprint(FACTS, Owner(), devices, [KNOWN]) == [
        "81 % of the power limit above parked while working; sm 0.95, tensor 0.90 (seen for 12 s)"
    ]
    for facts in (replace(FACTS, name="other"), replace(FACTS, program="5f3a9c01")):
        assert explain._describe_fingerprint(facts, Owner(), devices, [KNOWN]) == [
            "the exporter has learned nothing of it yet"
        ]


def test_a_workload_on_a_gpu_without_gpm_is_told() -> None:
    """Its fingerprint has another key, because it contains other signals."""
    older = {**KNOWN, "workload": {**KNOWN["workload"], "signals": "power"}, "power_ratio": 0.5}
    other = {**KNOWN, "workload": {**KNOWN["workload"], "gpu_model": "L4"}}
    lines = explain._describe_fingerprint(FACTS, Owner(), [Device(0, "x", name="H200")], [older, other])

    assert [line.partition(" above")[0] for line in lines] == ["50 % of the power limit"]
