"""Processes in cgroups, and a provider that knows the names that a test gives it."""

from __future__ import annotations

from gpuledger.model import Device, Driver, Facts, ProviderHealth, Reading, Resident, Tick
from gpuledger.owners.names import Names

C = "4be1" * 16
UID = "7f2c1a9e-3b64-4d0f-9a51-c8e20d7b4f13"
GPU = Device(index=0, uuid="GPU-589eca37-678c-87d1-df84-37094ad015c0", minor=0)
IDLE = Device(index=1, uuid="GPU-00000000-678c-87d1-df84-37094ad015c0", minor=1)
KUBE = f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{C}.scope\n"
DOCKER = f"0::/system.slice/docker-{C}.scope\n"


class Source:
    """A provider that knows what the test says."""

    def __init__(self, **names: object) -> None:
        self.names = Names(**names)  # type: ignore[arg-type]  # the fields of Names
        self.health = ProviderHealth(
            "test", up=True, problem=None, since_ns=0, last_success_ns=0, fetches=1, failures=0
        )
        self.nudges = 0

    def nudge(self) -> None:
        """Counted."""
        self.nudges += 1

    def stop(self) -> None:
        """Nothing runs."""


def facts(cgroup: str, pid: int = 7, start_ticks: int = 1) -> Facts:
    """A process in a cgroup."""
    return Facts(pid, start_ticks, 1000, "python3", 1000, cgroup)


def tick_of(*known: Facts, devices: tuple[Device, ...] = (GPU,), gone: tuple[int, ...] = ()) -> Tick:
    """All of them on the first device."""
    pids = (*(f.pid for f in known), *gone)
    residents = tuple(Resident(pid, "compute", 100) for pid in pids)
    readings = tuple(Reading(device, residents=residents if i == 0 else ()) for i, device in enumerate(devices))
    return Tick(1, Driver(up=True), readings, facts={f.pid: f for f in known})
