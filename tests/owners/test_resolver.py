"""Owners of processes and allocations of devices, from facts and names."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gpuledger.model import OUTSIDE, Owner
from gpuledger.owners.kernel.cgroup import parse
from gpuledger.owners.names import Container, KubeletAllocation, Names, Pod
from gpuledger.owners.resolver import GONE, NO_NAME, NO_POD, UNCONFIRMED, Resolver
from tests.owners.kernel.processes import DOCKER, GPU, IDLE, KUBE, UID, C, Source, facts, tick_of


def owner_of(cgroup: str, *sources: Source) -> Owner:
    """The owner of one process."""
    return Resolver(sources).resolve(tick_of(facts(cgroup))).owners.by_pid[7]


def test_docker_container() -> None:
    """The name and image of a Docker container, joined by its id."""
    owner = owner_of(DOCKER, Source(containers={C: Container(C, "ollama", "ollama/ollama:latest")}))

    assert (owner.container, owner.container_id, owner.image) == ("ollama", C, "ollama/ollama:latest")
    assert (owner.runtime, owner.pod, owner.reason) == ("docker", "", "")


def test_pod_from_the_runtime_alone() -> None:
    """CRI's labels name the pod without the API server."""
    container = Container(C, "main", "vllm:1", "ml", "llama-0", UID)

    owner = owner_of(KUBE, Source(containers={C: container}))

    assert (owner.namespace, owner.pod, owner.container, owner.pod_uid) == ("ml", "llama-0", "main", UID)
    assert owner.reason == ""


def test_pod_by_uid_when_the_container_is_unknown() -> None:
    """A container that is too new for the runtime's snapshot still has its pod; what is missing is said."""
    pod = Pod(UID, "ml", "llama-0", "StatefulSet", "llama")

    owner = owner_of(KUBE, Source(pods={UID: pod}))

    assert (owner.namespace, owner.pod, owner.workload_kind, owner.workload_name) == (
        "ml", "llama-0", "StatefulSet", "llama",
    )  # fmt: skip
    assert (owner.container, owner.reason) == ("", NO_NAME)


def test_providers_complete_each_other() -> None:
    """CRI gives the container, the API server the workload and labels."""
    cri = Source(containers={C: Container(C, "main", "vllm:1", "ml", "llama-0", UID)})
    api = Source(
        containers={C: Container(C, "main", "", "ml", "llama-0", UID)},
        pods={UID: Pod(UID, "ml", "llama-0", "Deployment", "llama", (("app", "llama"),))},
    )

    owner = owner_of(KUBE, cri, api)

    assert (owner.image, owner.workload_kind, owner.labels) == ("vllm:1", "Deployment", (("app", "llama"),))
    assert owner == owner_of(KUBE, api, cri)


def test_names_unknown_leave_ids() -> None:
    """Without any provider the ids are there, with the reason why the names are not."""
    in_pod, in_docker = owner_of(KUBE), owner_of(DOCKER)

    assert (in_pod.container_id, in_pod.pod_uid, in_pod.reason) == (C, UID, NO_POD)
    assert (in_docker.container_id, in_docker.container, in_docker.reason) == (C, "", NO_NAME)


def test_host_process_has_a_unit() -> None:
    """A service is no container; that is no failure."""
    owner = owner_of("0::/system.slice/ollama.service\n")

    assert (owner.unit, owner.container_id, owner.reason) == ("ollama.service", "", OUTSIDE)


def test_unknown_names_are_counted_and_asked_for() -> None:
    """An id without a name nudges the providers; a process that has ended is counted as such."""
    source = Source()

    owners = Resolver([source]).resolve(tick_of(facts(DOCKER), gone=(99,))).owners

    assert owners.unresolved == ((NO_NAME, 1), (GONE, 1))
    assert source.nudges == 1


def test_what_never_gets_a_name_is_asked_for_ever_more_rarely() -> None:
    """At once, after 2 s, 4 s ... 60 s; a new id causes a nudge at once."""
    source = Source()
    resolver = Resolver([source])
    asked: list[int] = []
    for second in range(200):
        resolver.resolve(replace(tick_of(facts(DOCKER)), time_ns=second * 10**9))
        asked += [second] * (source.nudges - len(asked))
    assert asked == [0, 2, 6, 14, 30, 62, 122, 182]

    resolver.resolve(replace(tick_of(facts(DOCKER.replace("4be1", "90ad"))), time_ns=200 * 10**9))

    assert source.nudges == len(asked) + 1


def test_new_names_are_seen_and_old_ones_cost_nothing() -> None:
    """The owner object is kept while nothing changes, and made anew when a provider has new names."""
    source = Source(containers={C: Container(C, "old")})
    resolver = Resolver([source])
    tick = tick_of(facts(DOCKER))
    first = resolver.resolve(tick).owners.by_pid[7]
    again = resolver.resolve(tick).owners.by_pid[7]
    source.names = Names(containers={C: Container(C, "renamed")})

    assert again is first
    assert resolver.resolve(tick).owners.by_pid[7].container == "renamed"


def test_reused_pid_gets_a_new_owner() -> None:
    """The same pid with another start time is another process."""
    resolver = Resolver()
    resolver.resolve(tick_of(facts(DOCKER)))

    owner = resolver.resolve(tick_of(facts("0::/system.slice/ssh.service\n", start_ticks=2))).owners.by_pid[7]

    assert (owner.container_id, owner.unit) == ("", "ssh.service")


def _allocation(pod: str, device_id: str) -> KubeletAllocation:
    return KubeletAllocation("ml", pod, "main", "nvidia.com/gpu", device_id)


def test_idle_allocated_gpu_shows_its_pod() -> None:
    """An idle GPU has its allocation; replicas of a shared GPU are separate allocations."""
    given = {"a": IDLE.uuid, "b": f"{GPU.uuid}::0", "c": f"{GPU.uuid}::1"}
    source = Source(allocations=tuple(_allocation(pod, device_id) for pod, device_id in given.items()))

    found = Resolver([source]).resolve(tick_of(devices=(GPU, IDLE))).owners.allocations

    assert [(a.device.index, a.owner.pod, a.replica) for a in found] == [(1, "a", ""), (0, "b", "0"), (0, "c", "1")]


def test_devices_docker_gave() -> None:
    """What a container was started with is shown, whether it uses it or not."""
    source = Source(containers={C: Container(C, "ollama", device_ids=("all",))})

    found = Resolver([source]).resolve(tick_of(devices=(GPU, IDLE))).owners.allocations

    assert [(a.device.index, a.owner.container, a.owner.container_id) for a in found] == [
        (0, "ollama", C),
        (1, "ollama", C),
    ]


def test_an_unknown_device_id_is_counted() -> None:
    """An id of an unknown form is counted and gives no allocation."""
    owners = Resolver([Source(allocations=(_allocation("a", "device0::1"),))]).resolve(tick_of()).owners

    assert (owners.allocations, owners.unknown_device_ids) == ((), 1)


def test_conflicts_are_counted_once() -> None:
    """A process of one pod on a GPU given to another: the process wins, and it is counted once, not every tick."""
    container = Container(C, "main", "", "ml", "llama-0", UID)
    source = Source(containers={C: container}, allocations=(_allocation("other", GPU.uuid),))
    resolver = Resolver([source])
    tick = tick_of(facts(KUBE))
    counts = [resolver.resolve(replace(tick, time_ns=s * 10**9)).owners.conflicts for s in (0, 29, 30, 31, 90)]

    owners = resolver.resolve(replace(tick, time_ns=91 * 10**9)).owners

    assert counts == [0, 0, 1, 1, 1]  # what lasts; a kubelet may be 10 s behind
    assert owners.conflicts == 1
    assert owners.by_pid[7].pod == "llama-0"
    entitled = replace(source.names, allocations=(_allocation("llama-0", GPU.uuid),))
    source.names = entitled
    assert resolver.resolve(tick).owners.conflicts == 1


NODE = "560e" * 16
IN_KIND = (
    f"0::/system.slice/docker-{NODE}.scope/kubelet.slice/kubelet-kubepods.slice/"
    f"kubelet-kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{C}.scope\n"
)
KIND = Container(NODE, "kind-worker", "kindest/node:v1.33.1")
ROOTLESS = f"0::/user.slice/user-7.slice/user@7.service/user.slice/libpod-{NODE}.scope/container/docker/{C}\n"


def nested(cgroup: str, *sources: Source) -> Owner:
    """The owner of one process with --owners.nested=inner."""
    resolver = Resolver(sources, parse_cgroup=partial(parse, nested=True))
    return resolver.resolve(tick_of(facts(cgroup))).owners.by_pid[7]


def test_pod_in_a_node_of_kind() -> None:
    """By default the node is the owner; with the flag the pod is, also without a name, and the node is around it."""
    docker = Source(containers={NODE: KIND})
    runtime = Source(containers={C: Container(C, "main", "vllm:1", "ml", "llama-0", UID)})

    assert owner_of(IN_KIND, docker, runtime).display_name == "kind-worker"
    unnamed, named = nested(IN_KIND, docker), nested(IN_KIND, docker, runtime)
    assert (unnamed.display_name, unnamed.reason) == (f"pod {UID}/{C[:12]}", NO_POD)
    assert named.display_name == "ml/llama-0/main"
    for owner in (unnamed, named):
        assert owner.outer is not None
        assert (owner.outer.display_name, owner.outer.image) == ("kind-worker", KIND.image)


def test_job_in_a_pod() -> None:
    """The job is the owner, and the pod of its slurmd is around it."""
    owner = nested(
        f"{KUBE.strip()}/system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n",
        Source(containers={C: Container(C, "slurmd", "slurmd:1", "slurm", "worker-0", UID)}),
    )

    assert (owner.job, owner.step, owner.container_id, owner.pod, owner.reason) == ("slurm/12", "0", "", "", "")
    assert owner.outer is not None
    assert owner.outer.display_name == "slurm/worker-0/slurmd"


def test_three_levels() -> None:
    """The outermost container is shown, which is the owner by default."""
    owner = nested(f"0::/docker/{NODE}/docker/{'7' * 64}/docker/{C}\n", Source(containers={NODE: KIND}))

    assert owner.container_id == C
    assert owner.outer is not None
    assert (owner.outer.container, owner.outer.outer) == ("kind-worker", None)


def test_container_in_another_pod() -> None:
    """A process that names the container of another pod in its cgroup belongs to the outer container."""
    docker = Source(containers={NODE: KIND})
    other = Source(containers={C: Container(C, "main", "vllm:1", "ml", "llama-0", "another-uid")})
    static = Source(
        containers={C: Container(C, "main", "vllm:1", "ml", "llama-0", "another-uid")},
        pods={u: Pod("another-uid", "ml", "llama-0", other_uids=(UID,)) for u in (UID, "another-uid")},
    )

    assert nested(IN_KIND, docker, other).display_name == "kind-worker"
    assert nested(IN_KIND, docker, static).display_name == "ml/llama-0/main"


def test_container_in_one_of_a_user() -> None:
    """A container that no daemon of the user lists is not known; the one around it is, if a daemon lists that."""
    daemon = Source(containers={NODE: KIND}, uid=7)
    both = Source(containers={NODE: KIND, C: Container(C, "inner")}, uid=7)

    assert nested(ROOTLESS, daemon).display_name == "7/kind-worker"
    assert nested(ROOTLESS, both).display_name == "7/inner"
    assert nested(ROOTLESS, Source(containers={C: Container(C, "of root")})).reason == UNCONFIRMED
