"""LabelValues reads what others wrote, real examples of it, and the one kind of error each may raise."""

from __future__ import annotations

import gzip
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpuledger.books import Books
from gpuledger.catalog.dialects import counters
from gpuledger.config import yamlfile
from gpuledger.config.durations import parse as parse_duration
from gpuledger.config.load import read_file
from gpuledger.errors import (
    AnswerError,
    ConfigError,
    HttpError,
    JournalError,
    PrometheusError,
    RecordingError,
    UpstreamError,
)
from gpuledger.integrations.exposition import Limits, Parser
from gpuledger.net.http import Response
from gpuledger.net.protobuf import Message
from gpuledger.owners.kernel import cgroup, devices
from gpuledger.owners.providers.dockerjson import Inspected, read_container, read_inspected, read_list
from gpuledger.owners.providers.kubepods import Pods
from gpuledger.recording.recording import load
from gpuledger.runtime.deadline import Deadline
from gpuledger.shares.fingerprint import Fingerprint
from gpuledger.shares.units import GPM, UNITS
from gpuledger.storage import fingerprints, journal
from gpuledger.tools.prometheus import answer
from gpuledger.web import http, webconfig
from gpuledger.web.connection import Connection
from tests.builders import World
from tests.owners.providers.kubelet_server import POD_RESOURCES

TESTS = Path(__file__).parents[1]
DEMO = TESTS.parent / "src" / "gpuledger" / "demo.jsonl.gz"
GPU = "GPU-00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True)
class Target:
    """A reader: `read` may raise `errors` and nothing else, soon, and without much memory. The first seed is good."""

    read: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    errors: tuple[type[Exception], ...] = ()


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


@cache
def _vectors(name: str) -> list[dict[str, str]]:
    tree = json.loads((TESTS / "owners" / "kernel" / "vectors" / f"{name}.json").read_text())
    return [one for group in tree.values() if isinstance(group, list) for one in group if isinstance(one, dict)]


def _cgroups() -> list[bytes]:
    return [f"0::{one['path']}\n".encode() for one in _vectors("cgroup") if "path" in one]


def _device_ids() -> list[bytes]:
    return [str(value).encode() for one in _vectors("device_ids") for value in one.values() if isinstance(value, str)]


def _recording() -> list[bytes]:
    lines = gzip.decompress(DEMO.read_bytes()).splitlines(keepends=True)
    return [gzip.compress(b"".join(lines[:3]), mtime=0), b"".join(lines[:4])]


def _read_recording(data: bytes) -> None:
    for packed in _as_it_is_and_packed(data):
        with suppress(RecordingError):
            for _ in load(packed, Path("recording")):
                pass


def _as_it_is_and_packed(data: bytes) -> tuple[bytes, bytes]:
    """Else the checksum of gzip finds all damage before the reader sees any."""
    return data, gzip.compress(data, mtime=0)


def _journal() -> list[bytes]:
    books, world = Books(), World(containers={7: "a" * 64}, names={7: "train"})
    for watts in (0, 100, 300):
        books.book(world.tick(7, 8, mj=watts * 1000, work={7: 60, 8: 20}))
    packed = journal.encode(books.state("boot", world.now_ns))
    return [packed, gzip.decompress(packed)]


def _read_journal(data: bytes) -> None:
    for packed in _as_it_is_and_packed(data):
        with suppress(JournalError):
            journal.decode(packed)


def _workloads() -> list[fingerprints.WorkloadState]:
    fingerprint = Fingerprint(weight=20.0, alone_s=20.0, deviations=[0.5] * 8, seconds=50.0, duty_s=30.0, duty2_s=15.0)
    program = GPM.deviations([0.1 * number for number in range(len(UNITS))], 0.7, 1.0)
    fingerprint.learn(1.0, program, 60.0, is_alone=True)
    labels = (("gpu_model", "NVIDIA H200"), ("process_name", "train"), ("image", "train:v1"))
    older = (*labels[:2], ("signals", "power"))
    return fingerprints.pack([(labels, fingerprint), (labels[:2], Fingerprint(weight=9.0)), (older, fingerprint)])


def _fingerprints() -> list[bytes]:
    packed = fingerprints.encode(_workloads())
    return [packed, gzip.decompress(packed)]


def _read_fingerprints(data: bytes) -> None:
    for packed in _as_it_is_and_packed(data):
        with suppress(JournalError):
            fingerprints.unpack(fingerprints.decode(packed))


@contextmanager
def _said(data: bytes) -> Iterator[socket.socket]:
    """Our end of a connection whose other end sent this and closed."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        with suppress(BlockingIOError):
            theirs.send(data)
        theirs.shutdown(socket.SHUT_WR)
        yield ours


def _converse(data: bytes) -> None:
    with _said(data) as ours:
        connection = Connection(ours, http.DEFAULT_LIMITS, time.monotonic())
        while connection.read_request() is not None:
            pass


def _answered(data: bytes) -> None:
    with _said(data) as ours:
        Response(ours, Deadline(5), "a server", 1 << 20).body()


def _exposition(data: bytes) -> None:
    parser = Parser(Limits())
    parser.feed(data)
    parser.end()


def _pod_resources() -> list[bytes]:
    listed = POD_RESOURCES.ListPodResourcesResponse()
    pod = listed.pod_resources.add(name="train", namespace="ml", cpu_ids=[0, 1])
    main = pod.containers.add(name="main")
    main.devices.add(resource_name="nvidia.com/gpu", device_ids=[f"{GPU}::0", GPU])
    return [listed.SerializeToString()]


def _wire(data: bytes) -> None:
    """All that the readers of the kubelet and of the CRI do with a message."""
    for pod in Message(data).messages(1):
        pod.text(1), pod.text_map(5)
        for container in pod.messages(3):
            container.texts(2)
            for device in container.messages(2):
                device.texts(2)


def _docker() -> list[bytes]:
    listed = [{"Id": "a" * 64, "Names": ["/web"], "Image": "web:1", "Labels": {"com.docker.compose.project": "shop"}}]
    host = {
        "DeviceRequests": [{"Driver": "nvidia", "DeviceIDs": [GPU], "Capabilities": [["gpu"]]}],
        "Runtime": "nvidia",
    }
    return [json.dumps(tree).encode() for tree in (listed, {"HostConfig": host, "Config": {"Env": ["A=b"]}})]


def _read_docker(data: bytes) -> None:
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return
    read_inspected(tree)
    for container_id, entry in read_list(tree if isinstance(tree, list) else [tree]).items():
        read_container(container_id, entry, Inspected())


def _pods() -> list[bytes]:
    status = {"containerStatuses": [{"name": "main", "containerID": f"containerd://{'b' * 64}", "image": "x:1"}]}
    about = {"name": "train-0", "namespace": "ml", "uid": "u-1", "labels": {"app": "train"}, "resourceVersion": "7"}
    pod = {"metadata": about, "spec": {"nodeName": "n1"}, "status": status}
    page = {"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": [pod]}
    return [json.dumps(tree).encode() for tree in (page, {"type": "ADDED", "object": pod})]


def _read_pods(data: bytes) -> None:
    pods = Pods("n1", bool)
    for read in (pods.put_page, pods.apply):
        with suppress(AnswerError):
            read(data)


def _prometheus() -> list[bytes]:
    series = [{"metric": {"uuid": GPU, "namespace": "ml"}, "value": [1700000000.5, "0.5"]}] * 3
    whole = {"status": "success", "data": {"resultType": "vector", "result": series}, "warnings": ["partial"]}
    return [json.dumps(whole).encode(), b'{"status":"error","errorType":"bad_data","error":"parse error"}', b"<html>"]


def _prometheus_range() -> list[bytes]:
    points = [[1700000000 + step, "0.5"] for step in range(3)]
    mixed = {"values": points, "histograms": [[1700000000.5, {"count": "1", "sum": "2", "buckets": []}]]}
    series = [{"metric": {"uuid": GPU, "namespace": "ml"}, **some} for some in ({"values": points}, mixed)]
    whole = {"status": "success", "data": {"resultType": "matrix", "result": series}, "warnings": ["partial"]}
    return [json.dumps(whole).encode(), b'{"status":"error","errorType":"timeout","error":"too long"}']


def _web_config() -> list[bytes]:
    """Every section and every kind of value."""
    tls = b"tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
    clients = b"  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n  client_allowed_sans: [a]\n"
    versions = b"  min_version: TLS12\n  max_version: TLS13\n"
    users = b"basic_auth_users:\n  prometheus: $2y$10$%b\n" % (b"a" * 53)
    http = b"http_server_config:\n  http2: false\n"
    inline = b"tls_server_config: {cert: PEM, key: &a x, client_ca: *a, client_auth_type: VerifyClientCertIfGiven}\n"
    return [tls + clients + versions + users + http, inline, tls + users]


def _read_web_config(data: bytes) -> None:
    webconfig.parse(yamlfile.parse(_text(data), "web.yml"), "/etc")


def _read_settings(data: bytes) -> None:
    path = Path(f"/dev/shm/gpuledger-fuzz-{os.getpid()}.yml")
    path.write_bytes(data)
    try:
        read_file(str(path), "--config.file")
    finally:
        path.unlink()


TARGETS: dict[str, Target] = {
    "cgroup": Target(lambda data: cgroup.parse(_text(data)), _cgroups),
    "device id": Target(lambda data: devices.parse(_text(data)), _device_ids),
    "recording": Target(_read_recording, _recording),
    "journal": Target(_read_journal, _journal),
    "fingerprints": Target(_read_fingerprints, _fingerprints),
    "exported fingerprints": Target(
        lambda data: fingerprints.export(fingerprints.parse_export(data)),
        lambda: [fingerprints.export(_workloads())],
        (ValueError, TypeError),
    ),
    "http request": Target(
        _converse,
        lambda: [b"GET /metrics?dialect=dcgm HTTP/1.1\r\nHost: a:9400\r\nAccept-Encoding: gzip\r\n\r\n" * 2],
        (http.BadRequest, OSError),
    ),
    "http answer": Target(
        _answered,
        lambda: [
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        ],
        (HttpError,),
    ),
    "dcgm-exporter": Target(
        _exposition,
        lambda: [
            b"# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).\n# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n"
            b'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="%b",modelName="NVIDIA H200"} 31\n' % GPU.encode()
        ],
        (UpstreamError,),
    ),
    "protobuf": Target(_wire, _pod_resources, (ValueError,)),
    "docker": Target(_read_docker, _docker),
    "kubernetes": Target(_read_pods, _pods),
    "prometheus": Target(lambda data: answer.parse(data, "q"), _prometheus, (PrometheusError,)),
    "prometheus over time": Target(lambda data: answer.parse_range(data, "q"), _prometheus_range, (PrometheusError,)),
    "web config": Target(_read_web_config, _web_config, (ConfigError,)),
    "settings": Target(
        _read_settings,
        lambda: [b"tick.interval: 1s\nenvironment: [docker, kubernetes]\nweb:\n  listen-address: ':9400'\n"],
        (ConfigError,),
    ),
    "counters": Target(
        lambda data: counters.parse(_text(data)),
        lambda: [b"# comment\nDCGM_FI_DEV_SM_CLOCK, gauge, SM clock frequency (in MHz).\n"],
        (ValueError,),
    ),
    "duration": Target(lambda data: parse_duration(_text(data)), lambda: [b"1h30m", b"250ms"], (ValueError,)),
}
