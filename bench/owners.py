"""Cost of owners: resolving many processes, and memory with all providers."""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from bench.exporters import gpuledger, node, running
from bench.processes import memory_mb, sleepers
from bench.scrape import Scraper
from bench.table import Budget, table

from gpuledger.model import Device, Driver, Facts, ProviderHealth, Reading, Resident, Tick
from gpuledger.owners.kernel.procfs import Procfs, raise_fd_limit
from gpuledger.owners.names import Container, Names
from gpuledger.owners.resolver import Resolver

PROCESSES, CONTAINERS, PODS = 1000, 200, 250
TICKS = 30


@dataclass(frozen=True, slots=True)
class Result:
    first_ms: float
    again_ms: float
    all_providers_mb: float


class _Known:
    health = ProviderHealth("bench", up=True, problem=None, since_ns=0, last_success_ns=0, fetches=1, failures=0)
    names = Names({f"{i:064x}": Container(f"{i:064x}", f"name-{i}", "image:1") for i in range(CONTAINERS)})

    def nudge(self) -> None:
        pass

    def stop(self) -> None:
        pass


class _InContainers(Procfs):
    """The real /proc, with every process assigned to a container."""

    def _read(self, pid: int, name: str, start_ticks: int) -> Facts | None:
        facts = super()._read(pid, name, start_ticks)
        group = f"0::/system.slice/docker-{pid % CONTAINERS:064x}.scope\n"
        return facts and replace(facts, cgroup=group)


def measure() -> Result:
    """CPU of the resolve stage, and RSS with Docker, CRI and pod-resources."""
    raise_fd_limit()  # like `gpuledger serve`
    with sleepers(PROCESSES) as pids:
        residents = tuple(Resident(pid, "compute", 1 << 30) for pid in pids)
        tick = Tick(1, Driver(up=True), (Reading(Device(0, "GPU-x"), residents=residents),))
        procfs, resolver = _InContainers(), Resolver([_Known()])

        def resolve() -> float:
            started = time.process_time()
            wanted = {resident.pid for resident in residents}
            resolved = resolver.resolve(replace(tick, facts=procfs.facts(wanted)))
            took = time.process_time() - started
            assert len(resolved.owners.by_pid) == PROCESSES
            return took * 1e3

        first = resolve()
        again = sorted(resolve() for _ in range(TICKS))[TICKS // 2]
    return Result(first, again, _all_providers())


def _all_providers() -> float:
    """RSS of an exporter whose providers run in this process."""
    from tests.owners.providers.docker_server import FakeDocker, http, listed
    from tests.owners.providers.kubelet_server import CriServer, KubeletServer, pod_labels

    with tempfile.TemporaryDirectory(prefix="bench-") as folder, node(8, 32) as host:
        place = Path(folder)
        kubelet, cri = KubeletServer(place / "kubelet.sock"), CriServer(place / "cri.sock")
        for i in range(PODS):
            kubelet.give("ml", f"pod-{i}", "main", "nvidia.com/gpu", f"GPU-{i:08x}-0000-4000-8000-000000000000")
            labels = pod_labels("ml", f"pod-{i}", f"{i:08x}-0000-4000-8000-000000000000", "main")
            cri.add(f"{i:064x}", image="vllm/vllm:1", labels=labels)
        containers = [listed(f"{i:064x}", f"name-{i}") for i in range(CONTAINERS)]
        inspected = {"Config": {"Image": "nginx:1", "Env": []}, "HostConfig": {}}
        docker = FakeDocker(place, {"/version": http({"ApiVersion": "1.41"}), "/containers/json": http(containers),
                                    "/containers/": http(inspected), "/events": http({}, 403)})  # fmt: skip
        with kubelet, cri, contextlib.closing(docker):
            flags = (
                "--environment=kubernetes",
                f"--cri.socket={place}/cri.sock",
                f"--pod-resources-socket={place}/kubelet.sock",
                f"--docker.host=unix://{docker.path}",
            )
            with running(gpuledger(*flags), "gpuledger", host) as exporter:
                time.sleep(25)  # each provider is polled again
                with contextlib.closing(Scraper(exporter.port, "text")) as scraper:
                    scraper.scrape()
                    up = [value for name, value in scraper.values().items() if name.startswith("gpuledger_provider_up")]
                assert up == [1.0] * 3, f"not all providers answer: {up}"
                return memory_mb(exporter.pid)


def budgets(result: Result) -> list[Budget]:
    return [
        Budget(
            f"CPU of resolving {PROCESSES} processes in {CONTAINERS} containers, nothing changed",
            5,
            result.again_ms,
            " ms",
        ),
        Budget("RSS at 8 x 4 with Docker, CRI and pod-resources on", 45, result.all_providers_mb, " MB"),
    ]


def report(result: Result) -> str:
    return "\n".join([
        "## Owners",
        "",
        f"{PROCESSES} real processes, assigned to {CONTAINERS} containers. *first*: all are new. Memory is that",
        f"of an exporter with three providers: {CONTAINERS} Docker containers, {PODS} pods in CRI and kubelet.",
        "",
        table(("", "measured"), [
            ["resolving, first, CPU ms", f"{result.first_ms:.1f}"],
            ["resolving, nothing changed, CPU ms", f"{result.again_ms:.2f}"],
            ["RSS with all three providers, MB", f"{result.all_providers_mb:.1f}"],
        ]),
    ])  # fmt: skip
