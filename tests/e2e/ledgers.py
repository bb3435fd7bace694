"""The exporter on a node, compared with the containers that run there."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cli.running import Running, serving, surroundings
from tests.e2e.nodes import GIB, Container, Node, place

ANSWERED_S = 45
"""Timeout: a provider is polled every 15 s, and after a failure at most 30 s later."""
SCRAPES_S = 0.25
OF_OWNERS = ("gpu_process_memory_used_bytes{", "container_gpu_memory_bytes{", "gpu_pod_allocation_info{")
JOULES = ("gpu_process_energy_joules_total{", "container_gpu_energy_joules_total{")


class Ledger:
    """A running exporter on a node."""

    def __init__(self, node: Node, server: Running) -> None:
        self._node, self._server = node, server

    def shows(self, *containers: Container) -> str:
        """Wait until exactly these containers, processes and devices are exposed; return the metrics."""
        wanted = {line for container in containers for line in self._lines(container)}
        last_scrape = [""]

        def shown() -> bool:
            last_scrape[0] = self._server.get("/metrics")
            return of_owners(last_scrape[0]) == wanted

        try:
            self._node.wait(shown, "the metrics show these containers", ANSWERED_S)
        except AssertionError as error:
            raise AssertionError(f"{_difference(wanted, of_owners(last_scrape[0]))}\n{error}") from None
        return last_scrape[0]

    def shows_lines(self, *lines: str) -> str:
        """Wait until all these lines are in one scrape; return that scrape."""
        body = [""]

        def shown() -> bool:
            body[0] = self._server.get("/metrics")
            return set(lines) <= set(body[0].splitlines())

        try:
            self._node.wait(shown, "the metrics show " + " and ".join(lines), ANSWERED_S)
        except AssertionError as error:
            names = tuple(line.partition("{")[0] for line in lines)
            like = [line for line in body[0].splitlines() if line.startswith(names)]
            raise AssertionError("\n".join(["shown:", *like, str(error)])) from None
        return body[0]

    def text(self) -> str:
        """The metrics."""
        return str(self._server.get("/metrics"))

    def snapshot(self) -> dict[str, Any]:
        """The snapshot of the JSON API."""
        return dict(json.loads(self._server.get("/api/v1/snapshot")))

    def log(self) -> str:
        """Log output so far."""
        return self._server.log.read_text()

    def waits_for_answers(self, provider: str, count: int) -> None:
        """Wait until a provider has answered this many more times."""
        series = f'gpuledger_provider_requests_total{{provider="{provider}"}}'

        def requests() -> float:
            return _values(self._server.get("/metrics"), (series,))[series]

        until = requests() + count
        self._node.wait(lambda: requests() >= until, f"{provider} answers {count} more times", ANSWERED_S)

    @contextmanager
    def always_shows(self, *containers: Container) -> Iterator[None]:
        """Check that during the block no process is missing, no name changes and no counter decreases."""
        wanted = {line for container in containers for line in self._lines(container)}
        theirs = tuple(f'container_id="{container.id}"' for container in containers)
        wrong: list[str] = []
        scrapes = 0
        ended = threading.Event()

        def scrape() -> None:
            nonlocal scrapes
            joules: dict[str, float] = {}
            while not ended.wait(SCRAPES_S):
                body = self._server.get("/metrics")
                if lost := wanted - of_owners(body):
                    wrong.append(_difference(lost, set()))
                newer = {
                    series: value
                    for series, value in _values(body, JOULES).items()
                    if any(container_id in series for container_id in theirs)
                }
                wrong.extend(f"{series} fell" for series, value in joules.items() if newer.get(series, 0) < value)
                residuals = _values(body, ("gpuledger_ledger_residual_joules{",))
                wrong.extend(f"{series} is {value}" for series, value in residuals.items() if value)
                joules = newer
                scrapes += 1

        thread = threading.Thread(target=scrape)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        assert not wrong, f"in {scrapes} scrapes: " + "\n".join(wrong[:5]) + f"\n{self._node.logs()}"
        assert scrapes > 1

    def _lines(self, container: Container) -> Iterator[str]:
        for device in container.given:
            yield from uses(container, device)
            yield has(container, device, self._node.resource_of(device))


def uses(container: Container, device: str) -> tuple[str, str]:
    """Metric lines of a container with a process on a device."""
    c, on = container, _on(device)
    ids = f'pod_uid="{c.pod_uid}",container_id="{c.id}"'
    owner = f'container="{c.name}",container_id="{c.id}",namespace="{c.namespace}",pod="{c.pod}",pod_uid="{c.pod_uid}"'
    return (
        f'gpu_process_memory_used_bytes{{pid="{c.pid}",{on},process_name="sleep",{_names(c)},{ids}}} {GIB}',
        f'container_gpu_memory_bytes{{{owner},{on},method="nvml"}} {GIB}',
    )


def has(container: Container, device: str, resource: str) -> str:
    """Metric line of a container with an allocated device."""
    replica = device.partition("::")[2]
    return f'gpu_pod_allocation_info{{{_on(device)},{_names(container)},resource="{resource}",replica="{replica}"}} 1'


def _names(container: Container) -> str:
    return f'namespace="{container.namespace}",pod="{container.pod}",container="{container.name}"'


def _on(device: str) -> str:
    gpu, uuid = place(device)
    return f'gpu="{gpu}",uuid="{uuid}"'


def sockets(node: Node) -> tuple[str, ...]:
    """Flags for a node without a cluster."""
    return f"--cri.socket={node.containerd.socket}", f"--pod-resources-socket={node.kubelet.pod_resources}"


@contextmanager
def ledger(node: Node, *flags: str) -> Iterator[Ledger]:
    """A running exporter with these flags."""
    words = ("serve", "--environment=kubernetes", "--tick.interval=200ms", *flags)
    with serving(*words, env=surroundings(node.scenario_path)) as server:
        server.metrics("^gpuledger_up 1$")
        node.log_paths.append(server.log)
        try:
            yield Ledger(node, server)
        finally:
            node.log_paths.remove(server.log)


def of_owners(body: str) -> set[str]:
    """Metric lines with owners of processes, memory and devices."""
    return {line for line in body.splitlines() if line.startswith(OF_OWNERS)}


def _values(body: str, names: tuple[str, ...]) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in body.splitlines() if line.startswith(names))
    return {series: float(value) for series, _, value in lines}


def _difference(wanted: set[str], lines: set[str]) -> str:
    missing = [f"missing: {line}" for line in sorted(wanted - lines)]
    return "\n".join([*missing, *(f"too much: {line}" for line in sorted(lines - wanted))])
