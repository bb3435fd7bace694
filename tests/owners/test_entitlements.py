"""What an owner asked for of each device: by device, part, replica and scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.model import Device, Entitlement
from gpuledger.owners.allocations import find_allocations
from gpuledger.owners.names import Container, DeviceShare, KubeletAllocation, Names, Pod
from tests.owners.kernel.processes import GPU, IDLE, C

GIB = 1 << 30
MEMORY = {GPU.uuid: 80 * GIB, IDLE.uuid: 80 * GIB}
RESERVATION = "kai-resource-reservation"


def listed(namespace: str, pod: str, device_id: str, container: str = "main") -> KubeletAllocation:
    """A device that the kubelet allocated."""
    return KubeletAllocation(namespace, pod, container, "nvidia.com/gpu", device_id)


def asked(*names: Names, inventory: tuple[Device, ...] = (GPU, IDLE)) -> dict[tuple[str, int], Entitlement | None]:
    """The entitlement of each pod, container or job on each device."""
    memory = {device.uuid: MEMORY.get(device.uuid, 10 * GIB) for device in inventory}
    found = find_allocations(names, inventory, memory_bytes=memory).all()
    return {(a.owner.pod or a.owner.container or a.owner.job, a.device.index): a.entitlement for a in found}


def test_a_whole_device() -> None:
    """Pods, containers and jobs ask for all of it."""
    names = Names(
        containers={C: Container(C, name="main", device_ids=("1",))},
        allocations=(listed("ml", "a", GPU.uuid),),
        jobs={(1, None): ("7",)},
    )
    whole = Entitlement("device", 1.0, 80 * GIB)

    assert asked(names) == {("a", 0): whole, ("main", 1): whole, ("7", 1): whole}


def test_a_mig_instance_is_its_part_of_the_multiprocessors() -> None:
    """16 of 132 are an eighth; without their number, only the memory is known."""
    gpu = replace(GPU, multiprocessors=132)
    mig = Device(0, "MIG-11111111-2222-4333-8444-555555555555", parent_uuid=gpu.uuid, multiprocessors=16)
    names = Names(allocations=(listed("ml", "a", mig.uuid),))

    assert asked(names, inventory=(gpu, mig)) == {("a", 0): Entitlement("mig", 16 / 132, 10 * GIB, 16 / 132)}
    unknown = replace(mig, multiprocessors=None)
    assert asked(names, inventory=(gpu, unknown)) == {("a", 0): Entitlement("mig", None, 10 * GIB)}


def test_a_replica_is_one_of_all_parts() -> None:
    """Of those that the node offers; without that number, the part is not known."""
    allocations = (listed("ml", "a", f"{GPU.uuid}::0"),)
    offered = tuple(f"{GPU.uuid}::{n}" for n in range(4))

    assert asked(Names(allocations=allocations, replicas=offered)) == {("a", 0): Entitlement("replica", 0.25, 20 * GIB)}
    assert asked(Names(allocations=allocations)) == {("a", 0): None}


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (DeviceShare("main", group="g", source="kai", compute=0.5), Entitlement("kai", 0.5, 40 * GIB)),
        (DeviceShare("main", group="g", source="kai", memory_bytes=20 * GIB), Entitlement("kai", 0.25, 20 * GIB)),
    ],
)
def test_a_fraction_of_a_reserved_gpu(share: DeviceShare, expected: Entitlement) -> None:
    """KAI Scheduler and Run:ai count memory and compute as the same part."""
    kubelet = Names(allocations=(listed(RESERVATION, "gpu-reservation", GPU.uuid),))
    pods = (
        Pod("1", RESERVATION, "gpu-reservation", shares=(DeviceShare("", group="g"),)),
        Pod("2", "ml", "a", shares=(share,)),
    )

    assert asked(kubelet, Names(pods={pod.uid: pod for pod in pods})) == {("a", 0): expected}


def test_a_part_of_hami() -> None:
    """Memory and cores are separate; cores may be unlimited. The slot alone tells nothing."""
    kubelet = Names(allocations=(listed("ml", "a", f"{GPU.uuid}-3"), listed("ml", "b", f"{GPU.uuid}-4")))
    share = DeviceShare("main", GPU.uuid, "", "hami", None, GIB)
    pod = Pod("1", "ml", "a", shares=(share,))

    assert asked(kubelet, Names(pods={"1": pod})) == {("a", 0): Entitlement("hami", None, GIB), ("b", 0): None}


def problems(*names: Names) -> list[str]:
    """All problems, as text."""
    return [f"{problem.about}: {problem.what}" for problem in find_allocations(names, (GPU, IDLE)).malformed]


def test_pods_whose_annotations_are_malformed() -> None:
    """Each is named once, and at most 20 of them."""
    pods = {str(n): Pod(str(n), "ml", f"p{n:02}", shares_problem="has gpu-fraction '2'") for n in range(30)}

    assert problems(Names(pods=pods))[0] == "pod ml/p00: has gpu-fraction '2'"
    assert len(problems(Names(pods=pods))) == 20


def reserved(*pods: Pod, containers: dict[str, Container] | None = None) -> list[str]:
    """All problems of pods beside a pod that reserves a GPU for group g."""
    kubelet = Names(allocations=(listed(RESERVATION, "gpu-reservation", GPU.uuid),))
    placeholder = Pod("0", RESERVATION, "gpu-reservation", shares=(DeviceShare("", group="g"),))
    return problems(kubelet, Names(containers or {}, {pod.uid: pod for pod in (placeholder, *pods)}))


def in_group(uid: str, compute: float | None, group: str = "g") -> Pod:
    """A pod of KAI Scheduler; without a fraction, only its label says so."""
    share = DeviceShare("main", group=group, source="kai" if compute else "", compute=compute)
    return Pod(uid, "ml", f"p{uid}", shares=(share,))


def test_a_group_without_a_reservation() -> None:
    """Named if the kubelet's allocations are known, which then lack the pod that holds the GPU."""
    server = Names(pods={"2": in_group("2", 0.5)})
    kubelet = Names(allocations=(listed("ml", "other", GPU.uuid),))

    assert problems(server) == []
    assert problems(kubelet, server) == [
        "pod ml/p2: is in GPU group g, for which no pod reserves a GPU of this node",
    ]


def test_a_group_that_adds_up_to_more_than_a_gpu() -> None:
    """All of its pods are named, because any of them may not belong there. A pod that has ended does not count."""
    more = "is in GPU group g, whose fractions add up to more than 1"
    running = Container(C, "main", namespace="ml", pod="p1")

    assert reserved(in_group("1", 1 / 3), in_group("2", 2 / 3)) == []
    assert reserved(in_group("1", 0.5), in_group("2", 1.0)) == [f"pod ml/p1: {more}", f"pod ml/p2: {more}"]
    assert reserved(in_group("1", 0.5), in_group("2", 1.0), containers={C: running}) == []


def test_a_reservation_without_a_known_pod() -> None:
    """As without the API server: the GPU is allocated, but no idle ledger has it."""
    nothing = "reserves a GPU, but no pod with a part of it is known: the idle ledger lacks the GPU"
    kubelet = Names(allocations=(listed(RESERVATION, "gpu-reservation", GPU.uuid),))

    assert problems(kubelet) == reserved() == [f"pod {RESERVATION}/gpu-reservation: {nothing}"]
