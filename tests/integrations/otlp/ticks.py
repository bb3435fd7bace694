"""A tick with one GPU and one process of a pod."""

from __future__ import annotations

from gpuledger.model import Account, Device, Driver, Facts, Health, Owner, ProcessUse, Reading, Resident, Tick

GPU = Device(0, "GPU-1", name="NVIDIA H200")
POD = Owner(container="main", container_id="c" * 64, namespace="ml", pod="train", pod_uid="u1")
S = 10**9


def tick(second: int, energy_j: int, *, owner: Owner = POD, start_ms: int = 1000) -> Tick:
    """One GPU with one process."""
    reading = Reading(GPU, utilization_pct=40, memory_used_bytes=5, power_mw=200_000)
    use = ProcessUse(GPU, Resident(7, "compute", 5), Facts(7, 1, 0, "python3"), owner=owner)
    return Tick(
        second * S,
        Driver(up=True),
        (reading,),
        accounts={GPU.uuid: Account(energy_mj=energy_j * 1000)},
        processes=(use,),
        health=Health(start_time_ms=start_ms),
    )
