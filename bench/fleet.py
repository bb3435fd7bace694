"""Cost of `gpuledger fleet` with a real Prometheus and 80,000 GPUs; standalone: `python -m bench.fleet`."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

from bench.processes import cpu_s, memory_mb
from bench.table import Budget, table
from tests.real.daemons import start, stop
from tests.real.prometheus import Prometheus
from tests.waiting import free_port

NODES, GPUS = 10_000, 8
PAUSE_S = 10.0
REFRESHES = 3
CASES = (
    ("the whole cluster", ["--in-use=resident"]),
    ("by namespace, and by model", ["--in-use=resident", "--by=namespace", "--by=model"]),
    ("by namespace and pod", ["--in-use=resident", "--by=namespace+pod"]),
    ("a query with all its labels", ["--query=gpu_utilization_ratio"]),
)


@dataclass(frozen=True, slots=True)
class Case:
    """Cost of the service for one grouping."""

    what: str
    cpu_s: float
    """CPU time of a refresh."""
    took_s: float
    scrape_cpu_s: float
    """CPU time of a compressed scrape."""
    rss_mb: float
    read: int
    state: int


def measure(*, quick: bool = False) -> list[Case]:
    """Measure all cases; `quick` uses a tenth of the cluster."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as name:
        folder = Path(name)
        _blocks(folder, NODES // 10 if quick else NODES)
        address = f"127.0.0.1:{free_port()}"
        server = Prometheus(f"http://{address}", 0)
        config = folder / "prometheus.yml"
        config.write_text(json.dumps({"scrape_configs": []}))
        flags = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", "--query.lookback-delta=1d"]
        daemon = start(
            ["prometheus", *flags, f"--web.listen-address={address}"], folder / "log", server.ready, timeout_s=120
        )
        try:
            return [_case(what, server.url, grouping) for what, grouping in CASES]
        finally:
            stop(daemon)


def budgets(cases: Sequence[Case]) -> list[Budget]:
    """Budgets of the default queries."""
    by_pod = "its own answer has 480,000 series"
    return [
        budget
        for case, most_mb, raised in zip(cases, (150, 150, 180), ("", "", by_pod), strict=False)
        for budget in (
            Budget(f"fleet, 80,000 GPUs, {case.what}: CPU of a refresh", 2, case.cpu_s, " s"),
            Budget(f"fleet, 80,000 GPUs, {case.what}: highest RSS", most_mb, case.rss_mb, " MB", raised),
        )
    ]


def report(cases: Sequence[Case]) -> str:
    """Section of RESULTS.md."""
    rows = [
        [
            case.what,
            f"{case.cpu_s:.2f}",
            f"{case.took_s:.2f}",
            f"{case.scrape_cpu_s:.2f}",
            f"{case.rss_mb:.0f}",
            f"{case.read:,}",
            f"{case.state:,}",
        ]
        for case in cases
    ]
    head = ("80,000 GPUs", "CPU of a refresh, s", "with Prometheus, s", "CPU of a scrape, s", "highest RSS, MB",
            "series read", "series state")  # fmt: skip
    return "\n".join(
        [
            "## Fleet",
            "",
            "`gpuledger fleet` with a real Prometheus: 10,000 nodes with 8 GPUs, one pod per GPU, 200 namespaces.",
            f"One refresh every {PAUSE_S:g} s; the last result is scraped once, compressed.",
            "",
            table(head, rows),
        ]
    )


def _blocks(folder: Path, nodes: int) -> None:
    """One sample per series, a minute old: two of three nodes in use, one pod per GPU."""
    when = int(time.time()) - 60
    path = folder / "fleet.om"
    gpus = [(node, gpu, f"GPU-{node:08x}-{gpu:04x}-4000-8000-{node * GPUS + gpu:012x}") for node in range(nodes)
            for gpu in range(GPUS)]  # fmt: skip
    families: dict[str, Callable[[int, int], tuple[str, float]]] = {
        "gpu_utilization_ratio": lambda node, gpu: ("", node % 3 and (node + gpu) % 100 / 100),
        "gpu_memory_utilization_ratio": lambda node, gpu: ("", node % 3 and (node * gpu) % 50 / 100),
        "gpu_in_use": lambda node, _: ("", int(node % 3 > 0)),
        "gpu_info": lambda *_: (',name="NVIDIA H200",architecture="hopper"', 1),
        "gpu_pod_allocation_info": lambda node, gpu: (_pod(node, gpu), 1),
        "container_gpu_detected": lambda node, gpu: (_pod(node, gpu) + ',evidence="process"', 1),
    }
    with path.open("w") as file:
        for family, row in families.items():
            file.write(f"# TYPE {family} gauge\n")
            for node, gpu, uuid in gpus:
                more, value = row(node, gpu)
                labels = f'gpu="{gpu}",uuid="{uuid}",instance="node-{node}.example:9400",job="gpuledger"{more}'
                file.write(f"{family}{{{labels}}} {value} {when}\n")
        file.write("# EOF\n")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(path), str(folder / "data")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _pod(node: int, gpu: int) -> str:
    return f',namespace="team-{node % 200}",pod="job-{node}-{gpu}",container="main"'


def _case(what: str, url: str, flags: list[str]) -> Case:
    argv = [sys.executable, "-m", "gpuledger", "fleet", f"--prometheus.url={url}", "--web.listen-address=127.0.0.1:0",
            "--prometheus.timeout=1m", "--max-age=1h", f"--refresh={PAUSE_S:g}s"]  # fmt: skip
    with subprocess.Popen([*argv, *flags], stderr=subprocess.PIPE, text=True) as service:
        try:
            assert service.stderr is not None
            listens = next(line for line in service.stderr if "listens on" in line)
            page = f"http://127.0.0.1:{re.search(r'127[.]0[.]0[.]1:([0-9]+)', listens)[1]}"  # type: ignore[index]
            count = _count(_wait(page, 1))
            before = cpu_s(service.pid)
            time.sleep(PAUSE_S * (REFRESHES - 0.5))  # no scrapes, so that the CPU time is that of refreshes
            refreshed = cpu_s(service.pid)
            text = _wait(page, count + 1)
            scraped = cpu_s(service.pid)
            numbers = dict(re.findall(r"^(gpu_fleet_refresh[a-z_]+) (.*)", text, re.MULTILINE))
            return Case(
                what,
                (refreshed - before) / (_count(text) - count),
                float(numbers["gpu_fleet_refresh_duration_seconds"]),
                scraped - refreshed,
                memory_mb(service.pid, "VmHWM"),
                sum(map(int, re.findall(r"^gpu_fleet_query_series{.*} ([0-9]+)", text, re.MULTILINE))),
                len(re.findall("^[a-zA-Z]", text, re.MULTILINE)),
            )
        finally:
            service.terminate()


def _wait(page: str, count: int) -> str:
    """Metrics after this many refreshes."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with urlopen(Request(f"{page}/metrics", headers={"Accept-Encoding": "gzip"}), timeout=60) as response:
            text = gzip.decompress(response.read()).decode()
        if _count(text) >= count and "\ngpu_fleet_up 1\n" in text:
            return text
        time.sleep(0.5)
    raise AssertionError(text)


def _count(text: str) -> int:
    """Number of refreshes so far."""
    return int(re.search(r"^gpu_fleet_refreshes_total ([0-9]+)", text, re.MULTILINE)[1])  # type: ignore[index]


if __name__ == "__main__":
    print(report(measure()))
