"""Names of pods from their devices, where the kubelet is the only provider."""

from __future__ import annotations

from dataclasses import replace

from gpuledger.model import Device, Driver, Facts, Owner, Reading, Resident, Tick
from gpuledger.owners.names import Container, KubeletAllocation
from gpuledger.owners.podmatch import START_SLACK_NS, certainty
from gpuledger.owners.resolver import NO_NAME, NO_POD, Resolver
from tests.owners.kernel.processes import GPU, IDLE, UID, C, Source

OTHER = "0b6c6b3e-2f0a-4d38-9d0e-0a4f3a1f8c11"
STARTED_NS = 1_700_000_000_000_000_000
READ_NS = STARTED_NS + START_SLACK_NS


def process(pid: int, uid: str = UID, container: str = C) -> Facts:
    """A process of a pod."""
    return Facts(pid, 1, STARTED_NS // 1_000_000, "python3", 0, f"0::/kubepods/burstable/pod{uid}/{container}\n")


def kubelet(*allocated: tuple[Device, str, str], read_ns: int = READ_NS) -> Source:
    """A kubelet that allocated devices to containers of pods."""
    rows = (KubeletAllocation("ml", pod, container, "nvidia.com/gpu", gpu.uuid) for gpu, pod, container in allocated)
    source = Source(allocations=tuple(rows))
    source.health = replace(source.health, last_success_ns=read_ns)
    return source


def tick_of(**residents: tuple[Facts, ...]) -> Tick:
    """A tick with these processes on the devices `gpu` and `idle`."""
    devices = {"gpu": GPU, "idle": IDLE}
    readings = tuple(
        Reading(device, residents=tuple(Resident(facts.pid, "compute") for facts in residents.get(name, ())))
        for name, device in devices.items()
    )
    return Tick(STARTED_NS, Driver(up=True), readings, facts={f.pid: f for group in residents.values() for f in group})


def owners(tick: Tick, *sources: Source) -> dict[int, Owner]:
    """The owner of each process."""
    return dict(Resolver(sources).resolve(tick).owners.by_pid)


def test_only_pod_of_the_device() -> None:
    """The pod that alone holds the device has the uid of the process; the owner says how it was found."""
    owner = owners(tick_of(gpu=(process(7),)), kubelet((GPU, "train-0", "main"), (IDLE, "other", "main")))[7]

    assert (owner.namespace, owner.pod, owner.container, owner.pod_uid) == ("ml", "train-0", "main", UID)
    assert (owner.pod_match, owner.reason) == ("device", "")


def test_two_containers_of_the_pod() -> None:
    """The pod is certain, the container is not."""
    owner = owners(tick_of(gpu=(process(7),)), kubelet((GPU, "train-0", "main"), (GPU, "train-0", "side")))[7]

    assert (owner.pod, owner.container, owner.reason) == ("train-0", "", NO_NAME)


def test_two_pods_on_the_device() -> None:
    """Time-slicing: without another device that tells them apart, neither is named."""
    owner = owners(tick_of(gpu=(process(7),)), kubelet((GPU, "a", "main"), (GPU, "b", "main")))[7]

    assert (owner.pod, owner.reason) == ("", NO_POD)


def test_pod_with_two_devices() -> None:
    """Of the pods on a shared device, only one also holds the other device of the process."""
    both = process(7)
    source = kubelet((GPU, "a", "main"), (GPU, "b", "main"), (IDLE, "b", "main"))

    assert owners(tick_of(gpu=(both,), idle=(both,)), source)[7].pod == "b"


def test_two_uids_for_one_pod() -> None:
    """One of them uses a device that was not allocated to it: neither is named."""
    tick = tick_of(gpu=(process(7), process(8, OTHER)))

    assert {owner.pod for owner in owners(tick, kubelet((GPU, "a", "main"))).values()} == {""}


def test_pod_that_is_reported() -> None:
    """A pod that the runtime reports for another uid is not given to a second one; its own containers are."""
    source = kubelet((GPU, "a", "main"))
    runtime = Source(containers={C: Container(C, "main", "", "ml", "a", UID)})

    stranger = owners(tick_of(gpu=(process(7), process(8, OTHER, "ab" * 32))), source, runtime)
    sibling = owners(tick_of(gpu=(process(7), process(8, UID, "ab" * 32))), source, runtime)

    assert (stranger[7].pod, stranger[8].pod) == ("a", "")
    assert (sibling[8].pod, sibling[8].pod_match, sibling[8].reason) == ("a", "", NO_NAME)


def test_list_older_than_the_process() -> None:
    """The kubelet may still list the pod before; the match is tried again later."""
    source = kubelet((GPU, "before", "main"), read_ns=READ_NS - 1)

    assert owners(tick_of(gpu=(process(7),)), source)[7].pod == ""
    assert source.nudges == 1


def test_match_is_kept() -> None:
    """While the pod is on the GPU, a second pod on the device changes nothing; a new uid needs a match of its own."""
    source = kubelet((GPU, "a", "main"))
    resolver = Resolver([source])
    tick = tick_of(gpu=(process(7),))
    resolver.resolve(tick)
    source.names = kubelet((GPU, "a", "main"), (GPU, "b", "main")).names

    assert resolver.resolve(tick).owners.by_pid[7].pod == "a"
    assert resolver.resolve(tick_of(gpu=(process(8, OTHER),))).owners.by_pid[8].pod == ""


def certainty_of(tick: Tick, *sources: Source, pid: int = 7) -> str:
    """What `explain` says of the name of this process's pod."""
    resolved = Resolver(sources).resolve(tick)
    return certainty(resolved, resolved.owners.by_pid[pid])


def test_certainty_of_a_match() -> None:
    """The sentence names the devices on which the match rests, and what would make it wrong."""
    both = process(7)
    alone = certainty_of(tick_of(gpu=(both,)), kubelet((GPU, "a", "main")))
    together = certainty_of(
        tick_of(gpu=(both,), idle=(both,)), kubelet((GPU, "a", "main"), (GPU, "b", "main"), (IDLE, "b", "main"))
    )

    assert alone.startswith(f"by device: the kubelet allocated {GPU.uuid} to this pod alone; certain unless")
    assert together.startswith(f"by device: only this pod holds {' and '.join(sorted((GPU.uuid, IDLE.uuid)))}; certain")


def test_certainty_of_a_reported_name() -> None:
    """A name for the uid itself needs no match; a process in no pod has no such sentence."""
    runtime = Source(containers={C: Container(C, "main", "", "ml", "a", UID)})
    host = replace(process(7), cgroup="0::/system.slice/ssh.service\n")

    assert certainty_of(tick_of(gpu=(process(7),)), runtime) == "reported for its container or pod uid: certain"
    assert certainty_of(tick_of(gpu=(host,)), runtime) == ""


def test_why_a_pod_has_no_name() -> None:
    """Each cause has its own sentence, and none names a pod as the owner."""
    on_gpu = tick_of(gpu=(process(7),))
    two_uids = tick_of(gpu=(process(7), process(8, OTHER)))
    nowhere = replace(tick_of(), facts={7: process(7)})
    one = kubelet((GPU, "a", "main"))

    assert certainty_of(on_gpu) == "unknown: no provider reports its name or the devices of pods"
    assert certainty_of(nowhere, one).startswith("unknown: it is on no GPU")
    assert certainty_of(on_gpu, kubelet((GPU, "a", "m"), (GPU, "b", "m"))).startswith("unknown: 2 pods hold")
    assert certainty_of(on_gpu, kubelet((IDLE, "a", "m"))).startswith(f"unknown: no pod holds {GPU.uuid}")
    assert certainty_of(two_uids, one).startswith(f"unknown: ml/a holds {GPU.uuid}, but processes of another pod")
