"""`python -m bench.report`: cost of a report over 30 days, with a real Prometheus and 80,000 GPUs.

Two samples at the end of each cell represent all others. A report reads one sum per cell and group, regardless of the
number of samples behind it. A second case therefore reads results of full size: 200 namespaces in cells of 15 minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import Process
from pathlib import Path

from bench.fleet import GPUS, NODES
from bench.table import table
from tests.real.daemons import start, stop
from tests.real.prometheus import Prometheus, command
from tests.waiting import free_port

from gpuledger.tools.prometheus.answer import RangeVector, parse_range
from gpuledger.tools.report.gather import Gatherer
from gpuledger.tools.report.queries import GROUPINGS
from gpuledger.tools.report.rows import create_rows
from gpuledger.tools.report.span import Span

DAYS, NAMESPACES = 30, 200
END = int(time.time()) // 3600 * 3600 - 3600
STEP_S = 10 * 86400
"""Length of the cells in Prometheus. With cells of 15 minutes, as in a report, samples would fill the disk."""
PER_FILE_S = 7200
"""Length of a block, because promtool reads a file once per block in it."""


def main() -> None:
    rows = [
        ["80,000 GPUs in Prometheus, 3 cells", *_case(NODES, STEP_S)],
        ["answers of full size, 2,880 cells", *_measured([sys.executable, "-m", "bench.report", "read"])],
    ]
    print(table(["30 days by namespace", "our CPU", "highest RSS", "whole report"], rows))


class FullSize:
    """A server that answers every query with a value for each namespace and cell."""

    def query_range(self, promql: str, first_s: float, last_s: float, step_s: float) -> RangeVector:
        """Parsed range response; parsing is part of the cost."""
        moments = [first_s + n * step_s for n in range(round((last_s - first_s) / step_s) + 1)]
        values = ",".join(f'[{moment},"8640000.123"]' for moment in moments)
        names = [f'"namespace":"team-{n}"' for n in range(NAMESPACES)] if "sum by (namespace)" in promql else [""]
        result = ",".join(f'{{"metric":{{{name}}},"values":[{values}]}}' for name in names)
        return parse_range(
            f'{{"status":"success","data":{{"resultType":"matrix","result":[{result}]}}}}'.encode(), promql
        )


def read() -> None:
    """Report from responses to rows, without Prometheus."""
    span, grouping = Span(0, DAYS * 86_400_000, 900_000), GROUPINGS["namespace"]
    create_rows(Gatherer(FullSize().query_range).gather(grouping, span, 3_600_000), grouping)


def _case(nodes: int, step_s: int) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="report-") as name:
        folder = Path(name)
        made = Process(target=_blocks, args=(folder, nodes, step_s))  # otherwise its memory counts for the report
        made.start()
        made.join()
        assert made.exitcode == 0
        config = folder / "prometheus.yml"
        config.write_text(json.dumps({"scrape_configs": []}))
        address = f"127.0.0.1:{free_port()}"
        server = Prometheus(f"http://{address}", 0)
        more = ["--storage.tsdb.retention.time=100y", "--query.timeout=10m"]
        words = [*command("prometheus", config, folder / "data", address), *more]
        daemon = start(words, folder / "log", server.ready, timeout_s=300)
        try:
            return _report(server.url, step_s)
        finally:
            stop(daemon)


def _report(url: str, step_s: int) -> list[str]:
    """Cost of one report."""
    argv = [sys.executable, "-m", "gpuledger", "report", f"--prometheus.url={url}", "--prometheus.timeout=10m",
            f"--from={_text(END - DAYS * 86400)}", f"--to={_text(END)}", f"--step={step_s}s", "--by=namespace",
            "--price=0.30", "--currency=EUR", "--carbon=250", "--pue=1.3", "--format=html"]  # fmt: skip
    return _measured(argv)


def _measured(argv: list[str]) -> list[str]:
    """Measure CPU time, memory and wall time of a program."""
    began = time.monotonic()
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    took_s = time.monotonic() - began
    return [f"{used.ru_utime + used.ru_stime:.2f} s", f"{used.ru_maxrss / 1024:.0f} MB", f"{took_s:.0f} s"]


def _text(moment_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment_s))


def _blocks(folder: Path, nodes: int, step_s: int) -> None:
    ends = list(range(END - DAYS * 86400, END + 1, step_s))
    path = folder / "report.om"
    while ends:
        now = [end for end in ends if (end - 1) // PER_FILE_S == (ends[0] - 1) // PER_FILE_S]
        del ends[: len(now)]
        with path.open("w") as file:
            for lines in _families(nodes, [moment for end in now for moment in (end - 61, end - 1)]):
                file.writelines(lines)
            file.write("# EOF\n")
        words = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(path), str(folder / "data")]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    path.unlink()


def _families(nodes: int, moments: list[int]) -> Iterator[Iterator[str]]:
    """One pod per GPU with 300 W since the epoch, and 60 W idle power, so that the books balance."""
    gpu: dict[str, Callable[[int], int]] = {
        "gpu_up": lambda _: 1,
        "gpu_energy_joules_total": lambda s: 360 * s,
        "gpu_idle_energy_joules_total": lambda s: 60 * s,
        "gpu_busy_seconds_total": lambda s: s // 2,
        "gpu_in_use_seconds_total": lambda s: s,
        "gpu_memory_used_bytes": lambda _: 1 << 36,
    }
    pod: dict[str, Callable[[int], int]] = {
        "container_gpu_energy_joules_total": lambda s: 300 * s,
        "container_gpu_busy_seconds_total": lambda s: s // 2,
        "container_gpu_memory_bytes": lambda _: 1 << 35,
        "container_gpu_detected": lambda _: 1,
        "gpu_pod_allocation_info": lambda _: 1,
    }
    yield iter(["# TYPE gpuledger_tick_timestamp_seconds unknown\n"])
    targets = [f'instance="node-{node}.example:9400",job="gpuledger"' for node in range(nodes)]
    yield (f"gpuledger_tick_timestamp_seconds{{{t}}} {s} {s}\n" for t in targets for s in moments)
    devices = [
        f'{targets[node]},gpu="{g}",uuid="GPU-{node:08x}-{g:04x}-4000-8000-{node * GPUS + g:012x}"'
        for node in range(nodes)
        for g in range(GPUS)
    ]
    pods = [
        f'{device},namespace="team-{n % NAMESPACES}",pod="job-{n}",container="main",container_id="{n:064x}",'
        'method="exclusive",evidence="process"'
        for n, device in enumerate(devices)
    ]
    for names, labels in ((gpu, devices), (pod, pods)):
        for name, value in names.items():
            yield iter([f"# TYPE {name} unknown\n"])
            yield (f"{name}{{{label}}} {value(s)} {s}\n" for label in labels for s in moments)


if __name__ == "__main__":
    read() if sys.argv[1:] == ["read"] else main()
