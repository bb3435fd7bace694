"""Clients and servers that make an exporter hold much: resident memory, within the 256 MiB of the chart."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpuledger.integrations.exposition import MOST_METRICS
from tests import fakedriver
from tests.cli.running import Running, serving, surroundings
from tests.hostile.clients import busy_exporter, port
from tests.hostile.slow import slow_readers
from tests.integrations.dcgmexporter.server import page, upstream

EVENTS = b"GET /api/v1/events HTTP/1.1\r\nHost: a\r\n\r\n"
VALUES = Path("deploy/helm/gpuledger/values.yaml").read_text()
LIMIT_MB = min(int(size) for size in re.findall(r"^    memory: (\d+)Mi$", VALUES.partition("limits:")[2], re.MULTILINE))
"""Of the exporter's container."""


def memory_mb(exporter: Running, which: str) -> float:
    """`VmRSS`, or its peak, `VmHWM`."""
    status = Path(f"/proc/{exporter.process.pid}/status").read_text()
    return int(status.split(f"{which}:")[1].split()[0]) / 1024


def test_streams_that_are_not_read(tmp_path: Path) -> None:
    """16 clients do not read the events of 8 x 1,000 processes: the old ticks take less than 64 MB."""
    with busy_exporter(tmp_path, processes=1000, flags=("--process.max=8000",)) as exporter:
        exporter.get("/api/v1/snapshot")
        time.sleep(2)
        before_mb = memory_mb(exporter, "VmHWM")
        with slow_readers(port(exporter), "127.0.0.2", 16, EVENTS):
            time.sleep(12)
        after_mb = memory_mb(exporter, "VmHWM")

    assert after_mb - before_mb < 64
    assert after_mb < LIMIT_MB


def dcgm_exporter(series: int) -> Iterator[bytes]:
    """60 metrics of many instances, with long host names."""
    block = f'modelName="NVIDIA H200",Hostname="{"h" * 180}"'
    return (
        f'F{metric}{{gpu="{gpu % 8}",UUID="GPU-{gpu:032d}",{block},pod="p{gpu}"}} {gpu * 1.5}\n'.encode()
        for metric in range(60)
        for gpu in range(series // 60)
    )


def own_metrics(series: int) -> Iterator[bytes]:
    """As many metrics."""
    return (b'F%d{a="%d",%b} 1\n' % (n, n, b",".join(b'c%d=""' % label for label in range(30))) for n in range(series))


def own_labels(series: int) -> Iterator[bytes]:
    """As many blocks of labels, in the most metrics that are read."""
    return (line.replace(b"F%d{" % n, b"F%d{" % (n % MOST_METRICS)) for n, line in enumerate(own_metrics(series)))


@pytest.mark.parametrize("exposition", [dcgm_exporter, own_labels, own_metrics])
def test_a_dcgm_exporter_with_many_series(tmp_path: Path, exposition: Callable[[int], Iterator[bytes]]) -> None:
    """A dcgm-exporter has 99,000 series, also with as many blocks of labels or names: memory stays within the limit."""
    scenario = fakedriver.h200_node(gpus=8, processes=8).write(tmp_path / "scenario")
    body = b"".join(exposition(99_000))
    with (
        upstream(page(body)) as evil,
        serving(
            "serve", f"--dcgm-exporter.url={evil.url}", "--dcgm-exporter.interval=1s", env=surroundings(scenario)
        ) as exporter,
    ):
        deadline = time.monotonic() + 30
        while len(evil.asked) < 4 and time.monotonic() < deadline:  # an answer arrives while the last one is served
            with suppress(OSError):  # a 503 before the first answer
                exporter.get("/gpu/metrics")
            time.sleep(0.5)
        assert memory_mb(exporter, "VmHWM") < LIMIT_MB
