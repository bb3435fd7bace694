"""What `explain` says of a workload that a running exporter has seen alone."""

from __future__ import annotations

import json

import pytest

from gpuledger.cli import explain
from gpuledger.model import Device, Facts, Owner
from gpuledger.web.http import Request, Response
from gpuledger.web.server import Server

FACTS = Facts(7, 1, 0, "train", 0)
KNOWN = {
    "workload": {"gpu_model": "H200", "process_name": "train", "uid": "0"},
    "behaviours": [{"seconds": 12.4, "power_watts": 570.4, "activity": {"sm": 0.951, "tensor": 0.9, "fp64": 0.0}}],
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


def test_no_exporter_responds() -> None:
    """There is no exporter: that is said, and is no error."""
    assert explain.fetch_fingerprints(["127.0.0.1:1"]) is None
    assert explain._describe_fingerprint(FACTS, Owner(), [Device(0, "x", name="H200")], None) == [
        "unknown: no exporter responds at --web.listen-address, or it requires TLS or a password"
    ]


def test_a_known_workload_is_told() -> None:
    """Power and what it uses; parts it does not use are left out. Another program is not this one."""
    devices = [Device(0, "x", name="H200")]

    assert explain._describe_fingerprint(FACTS, Owner(), devices, [KNOWN]) == [
        "570 W above parked while working; sm 0.95, tensor 0.90 (seen for 12 s)"
    ]
    (line,) = explain._describe_fingerprint(Facts(7, 1, 0, "other", 0), Owner(), devices, [KNOWN])
    assert line.startswith("the exporter has not observed it working alone")
