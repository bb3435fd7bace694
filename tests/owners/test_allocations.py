"""Who may hold memory of a device: from grants, from what a search found, and through the resolver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpuledger.config.exporter import Config
from gpuledger.model import Device, Facts, MemoryAccount, Owner
from gpuledger.owners.allocations import Ignored, find_allocations, holders_by_allocation, holders_by_clues
from gpuledger.owners.kernel.search import Clue
from gpuledger.owners.names import Container, DeviceShare, KubeletAllocation, Names, Pod
from gpuledger.owners.resolver import Resolver
from tests.owners.kernel.processes import DOCKER, GPU, IDLE, KUBE, UID, C, Source, facts, tick_of

MIGS = tuple(
    Device(1, f"MIG-0000000{n}-678c-87d1-df84-37094ad015c0", parent_uuid=IDLE.uuid, gpu_instance_id=n) for n in (1, 2)
)


def given(*names: Names, inventory: Sequence[Device] = (GPU, IDLE)) -> list[tuple[int, str, str, str]]:
    """Index, evidence, container id and name of every holder."""
    found = holders_by_allocation(find_allocations(names, inventory), names, lambda owner: owner)
    return [(h.device.index, h.evidence, h.owner.container_id, h.owner.container) for h in found]


def test_docker_requests_and_environment() -> None:
    """A request is an allocation; a mere NVIDIA_VISIBLE_DEVICES says less."""
    asked, hinted = Container(C, "a", device_ids=("0",)), Container("d" * 64, "b", visible_ids=("all",))

    assert given(Names(containers={asked.id: asked, hinted.id: hinted})) == [
        (0, "allocation", C, ""),
        (0, "environment", "d" * 64, ""),
        (1, "environment", "d" * 64, ""),
    ]


def test_pods_by_name_or_by_container() -> None:
    """With the container's id if a provider reports it; if containers are known, a pod without one has ended."""
    kubelet = Names(
        allocations=tuple(KubeletAllocation("ml", pod, "main", "nvidia.com/gpu", "0") for pod in ("old", "new"))
    )
    running = Container(C, "main", namespace="ml", pod="new", pod_uid=UID)

    assert given(kubelet) == [(0, "allocation", "", "main"), (0, "allocation", "", "main")]
    assert given(kubelet, Names(containers={C: running})) == [(0, "allocation", C, "main")]


THIRD = Device(2, "GPU-99999999-2222-4333-8444-555555555555")
RESERVATION = "kai-resource-reservation"


def to_pods(*names: Names) -> list[tuple[int, str, str, str]]:
    """Index, namespace, pod and container of every allocation to a pod."""
    found = find_allocations(names, (GPU, IDLE)).to_pods
    return sorted((a.device.index, a.owner.namespace, a.owner.pod, a.owner.container) for a in found)


def grouped(uid: str, name: str, *groups: str, namespace: str = "ml") -> Pod:
    """A pod of KAI Scheduler or Run:ai."""
    return Pod(uid, namespace, name, shares=tuple(DeviceShare("main", "", group, "kai", 0.25) for group in groups))


def test_fractional_pods_stand_for_their_reservation_pod() -> None:
    """Each pod of the group gets the GPU that the reservation pod holds; a pod may be in several groups."""
    kubelet = Names(
        allocations=(
            KubeletAllocation(RESERVATION, "gpu-reservation-a", "reservation", "nvidia.com/gpu", GPU.uuid),
            KubeletAllocation(RESERVATION, "gpu-reservation-b", "reservation", "nvidia.com/gpu", IDLE.uuid),
            KubeletAllocation("ml", "whole", "main", "nvidia.com/gpu", IDLE.uuid),
        )
    )
    pods = (
        grouped("1", "gpu-reservation-a", "a", namespace=RESERVATION),
        grouped("2", "gpu-reservation-b", "b", namespace=RESERVATION),
        grouped("3", "half", "a"),
        grouped("4", "both", "a", "b"),
        grouped("5", "elsewhere", "c"),
    )
    server = Names(pods={pod.uid: pod for pod in pods})

    assert to_pods(kubelet, server) == [
        (0, "ml", "both", "main"),
        (0, "ml", "half", "main"),
        (1, "ml", "both", "main"),
        (1, "ml", "whole", "main"),
    ]
    assert to_pods(kubelet) == [(1, "ml", "whole", "main")], "without the API server, nothing is guessed"


def test_a_reservation_pod_holds_no_memory() -> None:
    """Its process opens the driver, as a monitor does."""
    clue = Clue(Facts(7, 1, 0), (0,), "all")

    assert holders_by_clues([clue], (GPU, IDLE), lambda _: Owner(container_id=C, namespace=RESERVATION)) == ()


def test_the_annotation_of_hami_replaces_the_slots() -> None:
    """A slot may be of another GPU than the plugin gave to the pod; a device that is no slot stays."""
    listed = (f"{THIRD.uuid}-3", IDLE.uuid)
    kubelet = Names(allocations=tuple(KubeletAllocation("ml", "a", "main", "nvidia.com/gpu", i) for i in listed))
    pod = Pod("1", "ml", "a", shares=(DeviceShare("main", GPU.uuid, "", "hami", 0.5),))
    found = find_allocations((kubelet, Names(pods={"1": pod})), (GPU, IDLE, THIRD)).to_pods

    assert [(a.device.index, a.entitlement.source if a.entitlement else "") for a in found] == [
        (0, "hami"),
        (1, "device"),
    ]


def suspects(clue: Clue, *inventory: Device) -> list[tuple[str, str, int | None]]:
    """Uuid, evidence and pid."""
    found = holders_by_clues([clue], inventory, lambda _: Owner(container_id=C))
    return [(h.device.uuid, h.evidence, h.pid) for h in found]


DEFAULTS = Config().owners_ignore


@pytest.mark.parametrize(
    ("owner", "patterns", "is_ignored"),
    [
        (Owner(namespace="gpu-operator", pod="nvidia-dcgm-exporter-x7k2p"), DEFAULTS, True),
        (Owner(namespace="ml", pod="nvidia-dcgm-exporter-x7k2p", image="nvcr.io/dcgm-exporter"), DEFAULTS, False),
        (Owner(namespace="gpu-operator-of-mine", pod="train"), DEFAULTS, False),
        (Owner(container="gpu-operator/train"), DEFAULTS, False),
        (Owner(container="dcgm-exporter", container_id=C), ("dcgm-exporter",), True),
        (Owner(container="1000/dcgm-exporter", container_id=C), ("dcgm-exporter",), False),
        (Owner(namespace="ml", pod="dcgm-exporter", container="dcgm-exporter"), ("dcgm-exporter",), False),
        (Owner(namespace="dcgm", pod="x"), ("dcgm*",), False),
    ],
)
def test_who_is_ignored(owner: Owner, patterns: tuple[str, ...], is_ignored: bool) -> None:
    """Pods by their namespace, containers by a name of root's daemon; never by an image, or by the name of a pod."""
    assert (owner in Ignored(patterns=patterns)) == is_ignored
    clue = Clue(Facts(7, 1, 0), (0,), "all")
    assert (not holders_by_clues([clue], (GPU,), lambda _: owner, Ignored(patterns=patterns))) == is_ignored


def test_an_exporter_in_docker_is_no_allocation() -> None:
    """It was started with all GPUs. What the kubelet gave to a pod counts, whatever its namespace is."""
    exporter = Names(containers={C: Container(C, "dcgm-exporter", device_ids=("all",))})
    pod = KubeletAllocation("gpu-operator", "train", "main", "nvidia.com/gpu", GPU.uuid)
    ignored = Ignored(patterns=("dcgm-exporter", *DEFAULTS))
    found = find_allocations((exporter, Names(allocations=(pod,))), (GPU, IDLE), ignored)

    assert found.to_containers == ()
    assert [allocation.owner.pod for allocation in found.to_pods] == ["train"]


def test_clues_name_devices() -> None:
    """A map names minors, an environment anything; `void` and `none` are no devices."""
    process = Facts(7, 1, 0)

    assert suspects(Clue(process, (0,)), GPU, IDLE) == [(GPU.uuid, "maps", 7)]
    assert suspects(Clue(process, visible=f"1, {GPU.uuid}"), GPU, IDLE) == [
        (IDLE.uuid, "environment", None),
        (GPU.uuid, "environment", None),
    ]
    assert suspects(Clue(process, visible="all"), GPU, IDLE) == [
        (GPU.uuid, "environment", None),
        (IDLE.uuid, "environment", None),
    ]
    for nothing in ("void", "none", "", "what?"):
        assert suspects(Clue(process, visible=nothing), GPU) == []


def test_a_map_does_not_say_which_part_of_a_cut_gpu() -> None:
    """It counts where there is one part only."""
    clue = Clue(Facts(7, 1, 0), (1,))

    assert suspects(clue, GPU, IDLE, MIGS[0]) == [(MIGS[0].uuid, "maps", 7)]
    assert suspects(clue, GPU, IDLE, *MIGS) == []


class Searched:
    """A search with the clues of the test."""

    def __init__(self, *clues: Clue) -> None:
        self.clues = clues
        self.searches = 0

    def start(self) -> None:
        """Counted."""
        self.searches += 1


def test_the_resolver_names_them() -> None:
    """What a search found gets the owner its cgroup and the runtimes say, and loses it with the next search."""
    source = Source(containers={C: Container(C, "ollama", "ollama/ollama", device_ids=("1",))})
    search = Searched(Clue(facts(DOCKER, 99), (0,)))
    resolver = Resolver([source], search=search)  # type: ignore[arg-type]  # as far as the resolver knows it

    def held() -> list[tuple[int, str, str, str]]:
        found = resolver.resolve(tick_of(devices=(GPU, IDLE))).owners.holders
        return [(h.device.index, h.evidence, h.owner.container, h.owner.image) for h in found]

    granted = (1, "allocation", "ollama", "ollama/ollama")
    assert held() == [granted, (0, "maps", "ollama", "ollama/ollama")]
    source.names = Names(containers={C: Container(C, "renamed", device_ids=("1",))})
    assert held() == [(1, "allocation", "renamed", ""), (0, "maps", "renamed", "")]
    search.clues = ()
    assert held() == [(1, "allocation", "renamed", "")]


def test_own_container_is_left_out() -> None:
    """The exporter's own container is neither a holder nor allocated a device; other containers stay."""
    other = "d" * 64
    source = Source(containers={i: Container(i, device_ids=("0",), visible_ids=("1",)) for i in (C, other)})
    clues = [Clue(facts(text, 99), (0,), "0") for text in (DOCKER, DOCKER.replace(C, other))]
    resolver = Resolver([source], search=Searched(*clues), ignored=Ignored(frozenset({C})))  # type: ignore[arg-type]  # as above

    tick = resolver.resolve(tick_of(facts(DOCKER), devices=(GPU, IDLE)))

    assert {allocation.owner.container_id for allocation in tick.owners.allocations} == {other}
    assert {(holder.owner.container_id, holder.evidence) for holder in tick.owners.holders} == {
        (other, "allocation"),
        (other, "environment"),
        (other, "maps"),
    }
    assert tick.owners.by_pid[7].container_id == C, "its processes are still listed"


def test_unknown_memory_of_the_last_tick_starts_a_search() -> None:
    """And nothing else does."""
    search = Searched()
    resolver = Resolver(search=search)  # type: ignore[arg-type]  # as far as the resolver knows it
    known = replace(tick_of(), memory={GPU.uuid: MemoryAccount(1, unknown_bytes=0)})
    unknown = replace(tick_of(), memory={GPU.uuid: MemoryAccount(1, unknown_bytes=1 << 30)})

    for previous, searches in ((None, 0), (known, 0), (unknown, 1), (known, 1)):
        resolver.resolve(unknown, previous)
        assert search.searches == searches


def test_suspects_leave_with_the_unknown_memory() -> None:
    """A container that was removed is not detected any more once all memory is known, though no new search runs."""
    search = Searched(Clue(facts(DOCKER, 99), (0,)))
    resolver = Resolver(search=search)  # type: ignore[arg-type]  # as far as the resolver knows it
    known, unknown = (
        replace(tick_of(), memory={GPU.uuid: MemoryAccount(1, unknown_bytes=size)}) for size in (0, 1 << 30)
    )

    for previous, holders in ((unknown, 1), (known, 0), (unknown, 1)):
        assert len(resolver.resolve(unknown, previous).owners.holders) == holders


def test_new_names_make_no_old_suspects() -> None:
    """Names that change after a search without results do not restore earlier holders."""
    source, search = Source(), Searched(Clue(facts(KUBE, 99), (0,)))
    resolver = Resolver([source], search=search)  # type: ignore[arg-type]  # as far as the resolver knows it
    assert resolver.resolve(tick_of()).owners.holders
    search.clues = ()
    source.names = Names(containers={C: Container(C, "x")})

    assert resolver.resolve(tick_of()).owners.holders == ()
