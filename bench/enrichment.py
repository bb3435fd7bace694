"""Cost of adding pod labels to 20,000 series of a dcgm-exporter, read over HTTP."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.exporters import run_json
from bench.processes import memory_mb
from bench.table import Budget, table

GPUS, INSTANCES, FIELDS = 8, 7, 358
ROUNDS = 11
SHAPES = {"shared": "as dcgm-exporter writes them", "own": "each with a label of its own"}


@dataclass(frozen=True, slots=True)
class Result:
    shape: str
    series: int
    megabytes: float
    read_ms: float
    label_ms: float
    before_mb: float
    peak_mb: float


def measure() -> list[Result]:
    """Measure each shape in its own process; this process serves as dcgm-exporter."""
    results = []
    for shape in SHAPES:
        body = _body(is_own=shape == "own")
        with _serving(body) as url:
            measured = run_json("bench.enrichment", url)
        results.append(Result(shape=shape, megabytes=len(body) / 1e6, **measured))
    return results


def _uuid(gpu: int) -> str:
    return f"GPU-{gpu:08x}-0000-4000-8000-{gpu:012x}"


def _body(*, is_own: bool) -> bytes:
    """Twelve labels per series, including three empty pod labels."""
    lines = []
    for number in range(FIELDS):
        name = f"DCGM_FI_DEV_FIELD_{number}"
        lines.append(f"# HELP {name} Some field of a GPU (in units).\n# TYPE {name} gauge\n")
        for gpu in range(GPUS):
            start = (
                f'{name}{{gpu="{gpu}",UUID="{_uuid(gpu)}",pci_bus_id="00000000:{gpu:02X}:00.0",device="nvidia{gpu}",'
                'modelName="NVIDIA H200",GPU_I_PROFILE="1g.18gb",GPU_I_ID="'
            )
            own = f',field="{number}"' if is_own else ""
            end = (
                ',hostname="node-17.example.com",DCGM_FI_DRIVER_VERSION="580.159.04",'
                f'container="",namespace="",pod=""{own}}}'
            )
            lines += [f'{start}{i}"{end} {number * gpu + i * 1.5}\n' for i in range(INSTANCES)]
    return "".join(lines).encode()


@contextmanager
def _serving(body: bytes) -> Iterator[str]:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # must not count as memory of the child

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
        server.shutdown()


def child(url: str) -> None:
    """Read and label repeatedly, like the exporter; print one line of JSON."""
    from gpuledger.cli import serve as _  # noqa: F401 - the memory of everything that `gpuledger serve` loads
    from gpuledger.driver import source as _source  # noqa: F401
    from gpuledger.integrations.dcgmexporter.poll import Poll, Polling
    from gpuledger.integrations.scrape import Page
    from gpuledger.model import Allocation, Device, Driver, Owner, Owners, Reading, Tick
    from gpuledger.net.address import parse_place
    from gpuledger.web.bodies import UpstreamBodies
    from gpuledger.web.http import parse_head
    from gpuledger.web.parts import Parts

    gpus = [Device(gpu, _uuid(gpu)) for gpu in range(GPUS)]
    instances = [
        Device(gpu.index, f"MIG-{gpu.index}-{i}", parent_uuid=gpu.uuid, gpu_instance_id=i)
        for gpu in gpus
        for i in range(INSTANCES)
    ]
    readings = tuple(Reading(device) for device in (*gpus, *instances))

    def tick(turn: int) -> Tick:
        owners = [Owner(namespace="ml", pod=f"pod-{turn}-{device.uuid}", container="main") for device in instances]
        granted = tuple(map(Allocation, instances, owners))
        return Tick(1, Driver(up=True), readings, owners=Owners(allocations=granted))

    now_s, held = [0.0], [tick(0)]
    poll = Poll(Page(parse_place(url), 60.0), lambda: held[0], Polling(1.0, 1000.0), monotonic=lambda: now_s[0])
    bodies = UpstreamBodies(lambda: poll.served.families if poll.served else None, Parts())
    before_mb = memory_mb(os.getpid())
    read: list[float] = []
    label: list[float] = []
    for turn in range(ROUNDS):
        now_s[0] += 1.0
        read.append(_cpu_ms(poll))  # read and label
        held[0] = tick(turn + 1)
        label.append(_cpu_ms(poll))  # other pods have the devices
        for encoding in ("identity", "gzip"):
            response = bodies.response(parse_head(f"GET / HTTP/1.0\r\nAccept-Encoding: {encoding}\r\n\r\n".encode()))
            assert response is not None
            body = response.body
            sum(len(piece) for piece in ([body] if isinstance(body, bytes) else body))
    assert poll.state.with_pod == GPUS * INSTANCES * FIELDS, poll.state
    print(json.dumps({
        "series": poll.state.series, "read_ms": sorted(read)[ROUNDS // 2], "label_ms": sorted(label)[ROUNDS // 2],
        "before_mb": before_mb, "peak_mb": memory_mb(os.getpid(), "VmHWM"),
    }))  # fmt: skip


def _cpu_ms(poll: object) -> float:
    started = time.process_time()
    poll.step()  # type: ignore[attr-defined]
    return (time.process_time() - started) * 1e3


def budgets(results: list[Result]) -> list[Budget]:
    usual = next(result for result in results if result.shape == "shared")
    return [
        Budget(f"CPU of reading and labelling {usual.series:,} series of a dcgm-exporter", 150, usual.read_ms, " ms"),
        Budget(f"peak RSS with {usual.series:,} series of a dcgm-exporter", 60, usual.peak_mb, " MB"),
    ]


def report(results: list[Result]) -> str:
    return "\n".join([
        "## Enrichment of dcgm-exporter",
        "",
        f"{GPUS} GPUs with {INSTANCES} MIG instances, {FIELDS} fields and twelve labels per series, over HTTP from",
        "another process. Every instance is allocated to a pod. CPU is the median of reading, parsing and labelling;",
        "*again*: only the pods change. Memory is that of a process with the modules of `gpuledger serve` over several",
        "readings, served plain and compressed. The second row is a worst case that no dcgm-exporter produces.",
        "",
        table(("", "MB of text", "CPU ms", "again, CPU ms", "RSS before MB", "peak RSS MB"), [
            [f"{result.series:,} series, {SHAPES[result.shape]}", f"{result.megabytes:.2f}", f"{result.read_ms:.0f}",
             f"{result.label_ms:.0f}", f"{result.before_mb:.1f}", f"{result.peak_mb:.1f}"]
            for result in results
        ]),
    ])  # fmt: skip


if __name__ == "__main__":
    child(sys.argv[1])
