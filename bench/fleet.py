"""`python -m bench.fleet`: what a refresh of `gpuledger fleet` costs on a real Prometheus that holds 80,000 GPUs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

from bench.processes import memory_mb
from bench.table import table
from tests.real.daemons import start, stop
from tests.real.prometheus import Prometheus, free_port

NODES, GPUS = 10_000, 8
REFRESHES = 3
PAUSE_S = 8.0
CASES = (
    ("the whole cluster", ["--in-use=resident"]),
    ("by namespace, model", ["--in-use=resident", "--by=namespace", "--by=model"]),
    ("by namespace and pod", ["--in-use=resident", "--by=namespace+pod"]),
    ("every label of its own query", ["--query=gpu_utilization_ratio"]),
)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="fleet-") as name:
        folder = Path(name)
        _blocks(folder)
        address = f"127.0.0.1:{free_port()}"
        server = Prometheus(f"http://{address}", 0)
        config = folder / "prometheus.yml"
        config.write_text(json.dumps({"scrape_configs": []}))
        flags = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", "--query.lookback-delta=1d"]
        daemon = start(
            ["prometheus", *flags, f"--web.listen-address={address}"], folder / "log", server.ready, timeout_s=120
        )
        try:
            rows = [[name, *_case(server.url, flags)] for name, flags in CASES]
        finally:
            stop(daemon)
    print(table(["80,000 GPUs", "CPU of a refresh", "whole refresh", "highest RSS", "series read"], rows))


def _blocks(folder: Path) -> None:
    """One sample a series, an hour ago: two nodes of three in use, a pod a GPU."""
    when = int(time.time()) - 3600
    path = folder / "fleet.om"
    gpus = [(node, gpu, f"GPU-{node:08x}-{gpu:04x}-4000-8000-{node * GPUS + gpu:012x}") for node in range(NODES)
            for gpu in range(GPUS)]  # fmt: skip
    families = {
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


def _case(url: str, flags: list[str]) -> list[str]:
    """Of the service: CPU time and wall time of a refresh, the most memory it had, and what it read."""
    argv = [sys.executable, "-m", "gpuledger", "fleet", f"--prometheus.url={url}", "--web.listen-address=127.0.0.1:0",
            "--prometheus.timeout=1m", f"--refresh={PAUSE_S:g}s"]  # fmt: skip
    with subprocess.Popen([*argv, *flags], stderr=subprocess.PIPE, text=True) as service:
        try:
            assert service.stderr is not None
            listens = next(line for line in service.stderr if "listens on" in line)
            port = re.search(r"127\.0\.0\.1:(\d+)", listens)[1]  # type: ignore[index]
            before = 0.0
            for count in range(1, REFRESHES + 1):
                page = _wait(f"http://127.0.0.1:{port}/metrics", count)
                if count == 1:
                    before = _cpu_s(service.pid)
            cpu_s = (_cpu_s(service.pid) - before) / (REFRESHES - 1)
            took_s = float(re.search(r"^gpu_fleet_refresh_duration_seconds (.*)", page, re.MULTILINE)[1])  # type: ignore[index]
            series = sum(map(int, re.findall(r"^gpu_fleet_query_series\{.*\} (\d+)", page, re.MULTILINE)))
            return [f"{cpu_s:.2f} s", f"{took_s:.2f} s", f"{memory_mb(service.pid, 'VmHWM'):.0f} MB", f"{series:,}"]
        finally:
            service.terminate()


def _wait(url: str, count: int) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with urlopen(url, timeout=10) as response:
            page = str(response.read().decode())
        if f"\ngpu_fleet_refreshes_total {count}\n" in page and "\ngpu_fleet_up 1\n" in page:
            return page
        time.sleep(2)  # 80,000 groups are written out anew each time
    raise AssertionError(page)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
