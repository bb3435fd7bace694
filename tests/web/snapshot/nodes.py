"""A made-up host of any size, with everything on it that the page can show."""

from __future__ import annotations

from dataclasses import replace

from gpuledger.books import Books
from gpuledger.model import (
    Device,
    Driver,
    Facts,
    Health,
    Holder,
    Owner,
    Owners,
    ProviderHealth,
    Reading,
    Resident,
    Sample,
    Tick,
)
from gpuledger.model.problem import Problem

GIB = 1 << 30
HOSTILE = '<img src=x onerror="document.title=1"></td><script>document.title=2</script>&amp;\u202e'
"""A name that wants to be markup."""
DRIVER = Driver(up=True, driver_version="580.159.04", nvml_version="13.580", cuda_version="13.0")
FIX = "`sudo usermod -aG docker USER` for the user that runs gpuledger"
DENIED = Problem("cannot open /var/run/docker.sock: permission denied", FIX, "permission")
DOWN = ProviderHealth("docker", False, DENIED, 0, 0, 9, 9)
UP = ProviderHealth("cri", True, None, 1_700_000_000 * 10**9, 1_700_000_000 * 10**9, 9, 0)


class Node:
    """GPUs with processes, whose time goes on from tick to tick.

    `troubled`: the last GPU is off the bus, the one before is cut by MIG, the first holds memory of
    an unlisted process, and one provider of names is down.
    """

    def __init__(
        self,
        gpus: int,
        processes: int,
        *,
        troubled: bool = False,
        names: tuple[str, ...] = (),
        books: Books | None = None,
    ) -> None:
        self._devices = [Device(i, f"GPU-{i:08x}", name="NVIDIA H200") for i in range(gpus)]
        self._troubled = troubled
        self._pids = range(1000, 1000 + processes)
        self._facts = {pid: Facts(pid, pid * 100, 1_700_000_000_000 + pid, f"worker-{pid}") for pid in self._pids}
        self._owners = {pid: _owner(pid, names) for pid in self._pids}
        self._books = books or Books()
        self._now_ns = 1_700_000_000 * 10**9
        self._ticks = 0
        self._energy_mj = [5_000_000] * gpus

    def tick(self) -> Tick:
        """What the next second brings."""
        self._now_ns += 10**9
        self._ticks += 1
        readings = tuple(reading for device in self._devices for reading in self._read(device))
        holders: tuple[Holder, ...] = ()
        providers: tuple[ProviderHealth, ...] = (UP,)
        if self._troubled:
            notebook = Owner(container="notebook", container_id="d" * 64, runtime="docker")
            holders, providers = (Holder(self._devices[0], notebook, "allocation"),), (UP, DOWN)
        owners = Owners(by_pid=self._owners, holders=holders, providers=providers, host_pid_namespace=True)
        tick = Tick(self._now_ns, DRIVER, readings, facts=self._facts, owners=owners)
        health = Health(interval_ns=10**9, duration_ns=5 * 10**6, ticks=self._ticks)
        return replace(self._books.book(tick), health=health)

    def _read(self, device: Device) -> list[Reading]:
        pids = list(self._pids)[device.index :: len(self._devices)]
        if self._troubled and device.index == len(self._devices) - 1:
            return [Reading(device, up=False, problem=Problem("GPU is lost"))]
        working = (device.index * 7 + self._ticks) % 10
        power_mw = 80_000 + 60_000 * working
        self._energy_mj[device.index] += power_mw  # in a second
        hot = self._troubled and device.index == 0
        held = {pid: GIB // 4 + pid % 7 * (GIB // 2) for pid in pids}
        whole = Reading(
            device,
            memory_total_bytes=140 * GIB,
            memory_used_bytes=sum(held.values()) + (9 * GIB if hot else 0),
            memory_free_bytes=max(0, 139 * GIB - sum(held.values())),
            memory_reserved_bytes=GIB // 2,
            utilization_pct=10 * working,
            power_mw=power_mw,
            power_limit_mw=700_000,
            energy_mj=self._energy_mj[device.index],
            temperatures_c=(("gpu", 40 + 4 * working), ("memory", 45)),
            temperature_limits_c=(("slowdown", 89),),
            clock_events=(("sw_power_cap", int(working > 7)), ("hw_thermal_slowdown", int(hot))),
            residents=tuple(Resident(pid, "compute", size) for pid, size in held.items()),
            samples=tuple(Sample(pid, self._now_ns // 1000, (pid + self._ticks) % 30, 1) for pid in pids[:5]),
        )  # fmt: skip
        if self._troubled and device.index == len(self._devices) - 2:
            return [replace(whole, mig_enabled=True, residents=(), samples=None), *self._instances(device, held)]
        return [whole]

    def _instances(self, device: Device, held: dict[int, int]) -> list[Reading]:
        instances = []
        for number in (1, 2):
            mig = Device(
                device.index, f"MIG-{device.index}-{number}", parent_uuid=device.uuid, mig_profile="3g.71gb",
                gpu_instance_id=number, multiprocessors=60,
            )  # fmt: skip
            mine = {pid: size for pid, size in held.items() if pid % 2 == number - 1}
            instances.append(
                Reading(
                    mig,
                    memory_total_bytes=70 * GIB,
                    memory_used_bytes=sum(mine.values()),
                    memory_free_bytes=70 * GIB - sum(mine.values()),
                    residents=tuple(Resident(pid, "compute", size, number) for pid, size in mine.items()),
                )
            )
        return instances


def _owner(pid: int, names: tuple[str, ...]) -> Owner:
    """A pod, a container of Docker, a Slurm job, a service, or one of these names."""
    if names and pid % 5 == 0:
        name = names[pid // 5 % len(names)]
        return Owner(container=name, container_id=f"{pid:064x}", pod=name, namespace=name, image=name, user=name)
    if pid % 5 == 1:
        return Owner(container=f"redis-{pid // 50}", container_id=f"{pid // 50:064x}", runtime="docker")
    if pid % 5 == 2:
        return Owner(job=f"slurm/{pid // 25}", user=f"user{pid % 3}", unit="slurmstepd.scope")
    if pid % 5 == 3:
        return Owner(unit="ollama.service", reason="not in a container")
    number = pid // 20
    return Owner(
        container="main", container_id=f"a{number:063x}", namespace=f"team-{number % 4}", pod=f"train-{number}",
        pod_uid=f"u{number}", runtime="containerd", image="ml/trainer:2.4", workload_kind="Job",
        workload_name=f"train-{number}",
    )  # fmt: skip
