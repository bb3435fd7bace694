"""A node with four GPUs, one of them cut by MIG, and what a dcgm-exporter says about it.

The files in `data/` are written as dcgm-exporter writes: whole GPUs without --kubernetes, MIG with it, time-slicing
with and without virtual GPUs, NVLink with one family in two places, and the names of 1.x.
"""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from gpuledger.integrations.dcgmexporter.enrich import Enriched, enrich
from gpuledger.integrations.exposition import Parser, ScrapedFamily
from gpuledger.model import Allocation, Device, Driver, Owner, Owners, Reading, Resident, Tick
from gpuledger.model.holders import device_pods

DATA = Path(__file__).parent / "data"
NAMES = ("whole", "mig", "timeslicing", "nvlink", "old")


def uuid(gpu: int) -> str:
    """As the fake driver gives them."""
    return f"GPU-{gpu:08x}-0000-4000-8000-{gpu:012x}"


GPUS = [Device(i, uuid(i), pci_bus_id=f"00000000:{0x10 + i:02X}:00.0", minor=i) for i in range(4)]
MIGS = [
    Device(2, f"MIG-2-{gi}-{ci}", parent_uuid=uuid(2), gpu_instance_id=gi, compute_instance_id=ci)
    for gi, ci in ((1, 0), (2, 0), (9, 0), (9, 1))
]
Sample = tuple[str, frozenset[tuple[str, str]]]


def body(name: str) -> bytes:
    """What the dcgm-exporter says."""
    return (DATA / f"{name}.prom").read_bytes()


def given(device: Device, *pods: str) -> list[Allocation]:
    """To each of `namespace/pod/container`."""
    return [Allocation(device, _owner(pod), replica=str(i)) for i, pod in enumerate(pods)]


def tick(
    *granted: Allocation, residents: dict[str, list[int]] | None = None, by_pid: dict[int, str] | None = None
) -> Tick:
    """A tick in which these were given to pods, and processes run where `residents` says."""
    there = residents or {}
    readings = tuple(
        Reading(device, residents=tuple(Resident(pid, "compute") for pid in there.get(device.uuid, ())))
        for device in (*GPUS, *MIGS)
    )
    owners = {pid: _owner(owner) for pid, owner in (by_pid or {}).items()}
    return Tick(1, Driver(up=True), readings, owners=Owners(by_pid=owners, allocations=tuple(granted)))


def _owner(pod: str) -> Owner:
    namespace, _, rest = pod.partition("/")
    name, _, container = rest.partition("/")
    return Owner(namespace=namespace, pod=name, container=container)


def parsed(data: bytes) -> list[ScrapedFamily]:
    """All at once."""
    parser = Parser()
    parser.feed(data)
    return parser.end()


def labelled(data: bytes, now: Tick, *, copied: bool = False) -> Enriched:
    """With pods on it."""
    return enrich(parsed(data), device_pods(now), copied=copied)


def text(enriched: Enriched) -> str:
    """As it is served."""
    return b"".join(lines for _, lines in enriched.families).decode()


def samples(page: str) -> dict[Sample, float]:
    """As Prometheus's own client reads them; an empty label is none. A series that is there twice is an error."""
    found: dict[Sample, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            key = (sample.name, frozenset((name, value) for name, value in sample.labels.items() if value))
            assert key not in found
            found[key] = sample.value
    return found


def pods(page: str, metric: str, *about: str) -> list[tuple[str, ...]]:
    """The values of these labels on each series of a metric, and its value."""
    rows = []
    for (name, labels), value in samples(page).items():
        if name in (metric, f"{metric}_total"):  # what the client makes of a counter
            said = dict(labels)
            rows.append((*(said.get(label, "") for label in about), f"{value:g}"))
    return sorted(rows)
