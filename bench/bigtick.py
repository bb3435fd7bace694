"""Ticks of any size from the real books, and the same series for prometheus_client."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from gpuledger.books import Books
from gpuledger.catalog import CATALOG, Type
from gpuledger.model import Device, Driver, Facts, Reading, Resident, Sample, Tick
from gpuledger.owners.resolver import Resolver
from gpuledger.web.negotiate import Format
from gpuledger.web.text import Renderer

GPUS = 8
PROCESSES_OF_A_CONTAINER = 50
SUFFIXES = {Type.COUNTER: "_total", Type.INFO: "_info", Type.GAUGE: ""}


class BigNode:
    """A host with many processes. Data from the kernel is constant; data from the driver changes with every tick."""

    def __init__(self, processes: int) -> None:
        self._devices = [Device(index=i, uuid=f"GPU-0000000{i}-0000-4000-8000-00000000000{i}") for i in range(GPUS)]
        self._facts = {pid: _facts(pid) for pid in range(1000, 1000 + processes)}
        self._owners = Resolver()
        self._books = Books()

    def tick(self) -> Tick:
        """The next tick."""
        now_ns = time.time_ns()
        pids = list(self._facts)
        readings = tuple(
            Reading(
                device=device,
                residents=tuple(Resident(pid, "compute", (pid << 20) + 4096) for pid in pids[device.index :: GPUS]),
                samples=tuple(Sample(pid, now_ns // 1000, pid % 100, pid % 37) for pid in pids[device.index :: GPUS]),
            )
            for device in self._devices
        )
        driver = Driver(up=True, driver_version="580.159.04", nvml_version="13.580.159.04", cuda_version="13.0")
        tick = Tick(time_ns=now_ns, driver=driver, readings=readings, facts=self._facts)
        return self._books.book(self._owners.resolve(tick))


def _facts(pid: int) -> Facts:
    number = pid // PROCESSES_OF_A_CONTAINER + 1
    container = f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC834 % 2**256:064x}"[::-1]  # hashlib would load OpenSSL
    pod = f"{container[:8]}_{container[8:12]}_{container[12:16]}_{container[16:20]}_{container[20:32]}"
    group = f"0::/kubepods.slice/kubepods-pod{pod}.slice/cri-containerd-{container}.scope\n"
    return Facts(
        pid=pid,
        start_ticks=pid * 100,
        start_time_ms=1_700_000_000_000 + pid * 10,
        name=f"worker-{pid}",
        cgroup=sys.intern(group),
    )


def node_of(series: int) -> BigNode:
    """A node whose ticks have about this many series, mostly of processes."""
    few, more = (count_series(b"".join(Renderer().chunks(BigNode(n).tick(), Format.TEXT))) for n in (8, 16))
    each = (more - few) // 8
    return BigNode(max(GPUS, (series - (few - 8 * each)) // each))


def count_series(body: bytes) -> int:
    return sum(1 for line in body.split(b"\n") if line and not line.startswith(b"#"))


class Collector:
    """The same series as prometheus_client metrics, created for each collection as its documentation recommends."""

    def __init__(self, tick: Tick) -> None:
        self._tick = tick

    def collect(self) -> Iterator[object]:
        from prometheus_client.core import Metric

        rows = {family.of: list(family.of.things(self._tick)) for family in CATALOG}
        for family in CATALOG:
            of_labels = family.of.labels
            metric = Metric(family.name.removesuffix(SUFFIXES[family.type]), family.help, family.type.value)
            for values, thing in rows[family.of]:
                if family.value is not None:
                    value = family.value(thing)
                    if value is not None:
                        metric.add_sample(family.name, dict(zip(of_labels, values, strict=True)), value)
                elif family.series is not None:
                    for more, value in family.series(thing):
                        labels = dict(zip((*of_labels, *family.labels), (*values, *more), strict=True))
                        metric.add_sample(family.name, labels, value)
            if metric.samples:
                yield metric
