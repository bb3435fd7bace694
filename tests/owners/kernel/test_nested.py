"""Containers, pods and jobs inside a container: cgroup paths of kind, k3d, minikube, Slurm in pods, and forged ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.owners.kernel.cgroup import Bounds, CgroupRef, parse, parse_path
from gpuledger.owners.kernel.cgroupfs import nodes_in_containers
from tests.owners.kernel.cgrouptexts import VECTORS, anything, well_formed
from tests.owners.kernel.fakeproc import Proc

C = "a42d519714d616e9411dbceec4b52808bd6b1ee53e6f6497a281d655357d8b71"
NODE = "560e3e12b1e0dafa161e62fb3327ad65c98b7cd53849b17c627e8d3e1d419d6a"
P = "df2feb9d3803fd610ae68511303014414cbbed504e132e67487896ec929c82b6"
U = "2c9f8a79-5391-454b-88cb-86190881cb96"
V = "8f1f1f1e-0c1f-4f37-9f38-6c5b1c9f7a10"
STATIC = "13a4855d71cbbf718962270ad801737a"
u = U.replace("-", "_")
DOCKER, DOCKER_V1 = f"/system.slice/docker-{NODE}.scope", f"/docker/{NODE}"
PODMAN = f"/machine.slice/libpod-{NODE}.scope/container"
ROOTLESS = f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{NODE}.scope/container"
KIND = "/kubelet.slice/kubelet-kubepods.slice"
KIND_BURSTABLE = f"{KIND}/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{u}.slice"
SYSTEMD = f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{u}.slice"
BESTEFFORT, GUARANTEED = f"/kubepods/besteffort/pod{U}", f"/kubepods/pod{U}"
POD = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{u}.slice"
STEPD = "/system.slice/slurmstepd.scope"
TASK = "step_0/user/task_0"
IN_POD = {"container_id": C, "pod_uid": U, "outer": [NODE]}
JOB = {"job": ["slurm", "12"], "step": "0", "task": "0", "container_id": None, "pod_uid": None}
NOTHING_INSIDE: dict[str, Any] = {"container_id": NODE, "pod_uid": None, "job": None, "outer": []}


def check(path: str, expected: dict[str, Any], *, nested: bool = True) -> None:
    """Compare the parts as JSON, of the path itself and as the line of cgroup v2."""
    for ref in (parse_path(path, nested=nested), parse(f"0::{path}\n", nested=nested)):
        parts = ref.to_dict()
        assert {name: parts[name] for name in expected} == expected


PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    # kind: containerd in a node of Docker or Podman; the kubelet has --cgroup-root=/kubelet.
    "kind v2": (f"{DOCKER}{KIND_BURSTABLE}/cri-containerd-{C}.scope", IN_POD | {"runtime": "containerd"}),
    "kind v2 guaranteed": (
        f"{DOCKER}{KIND}/kubelet-kubepods-pod{u}.slice/cri-containerd-{C}.scope",
        IN_POD | {"qos": "guaranteed"},
    ),
    "kind v2 static pod": (
        f"{DOCKER}{KIND_BURSTABLE.replace(u, STATIC)}/cri-containerd-{C}.scope",
        IN_POD | {"pod_uid": STATIC, "qos": "burstable"},
    ),
    "kind v2 cgroupfs": (f"{DOCKER}/kubelet{BESTEFFORT}/{C}", IN_POD | {"runtime": "kubernetes"}),
    "kind v2, docker with cgroupfs": (f"{DOCKER_V1}{KIND_BURSTABLE}/cri-containerd-{C}.scope", IN_POD),
    "kind v1": (f"{DOCKER_V1}/kubelet{BESTEFFORT}/{C}", IN_POD | {"qos": "besteffort"}),
    "kind v1 guaranteed": (f"{DOCKER_V1}/kubelet{GUARANTEED}/{C}", IN_POD | {"qos": "guaranteed"}),
    "kind v1 with its own path twice": (f"{DOCKER_V1}{DOCKER_V1}/kubelet{BESTEFFORT}/{C}", IN_POD),
    "kind podman": (f"{PODMAN}{KIND_BURSTABLE}/cri-containerd-{C}.scope", IN_POD | {"runtime": "containerd"}),
    "kind podman without crun": (
        f"{PODMAN.removesuffix('/container')}{KIND_BURSTABLE}/cri-containerd-{C}.scope",
        IN_POD,
    ),
    "kind podman cgroupfs": (f"/libpod_parent/libpod-{NODE}/kubelet{BESTEFFORT}/{C}", IN_POD),
    "kind nerdctl": (f"/system.slice/nerdctl-{NODE}.scope{KIND_BURSTABLE}/cri-containerd-{C}.scope", IN_POD),
    "colons": (
        f"{DOCKER}/system.slice/containerd.service/kubelet-kubepods-burstable-pod{u}.slice:cri-containerd:{C}",
        IN_POD,
    ),
    "exec": (f"{DOCKER}{KIND_BURSTABLE}/cri-containerd-{C}.scope/init.scope", IN_POD),
    "removed": (f"{DOCKER}{KIND_BURSTABLE}/cri-containerd-{C}.scope (deleted)", IN_POD),
    # k3d: k3s without systemd.
    "k3d v2": (f"{DOCKER}{BESTEFFORT}/{C}", IN_POD | {"runtime": "kubernetes", "qos": "besteffort"}),
    "k3d v2 guaranteed": (f"{DOCKER}{GUARANTEED}/{C}", IN_POD | {"qos": "guaranteed"}),
    "k3d v1": (f"{DOCKER_V1}{BESTEFFORT}/{C}", IN_POD),
    "k3d podman": (f"{PODMAN}{BESTEFFORT}/{C}", IN_POD),
    # minikube, driver docker: docker, containerd and CRI-O inside.
    "minikube docker": (f"{DOCKER}{SYSTEMD}/docker-{C}.scope", IN_POD | {"runtime": "docker"}),
    "minikube containerd": (f"{DOCKER}{SYSTEMD}/cri-containerd-{C}.scope", IN_POD | {"runtime": "containerd"}),
    "minikube cri-o": (f"{DOCKER}{SYSTEMD}/crio-{C}.scope", IN_POD | {"runtime": "cri-o"}),
    "minikube cri-o crun": (f"{DOCKER}{SYSTEMD}/crio-{C}.scope/container", IN_POD | {"runtime": "cri-o"}),
    "minikube cgroupfs": (f"{DOCKER}{BESTEFFORT}/{C}", IN_POD),
    "minikube v1 cgroupfs cri-o": (f"{DOCKER_V1}{BESTEFFORT}/crio-{C}", IN_POD | {"runtime": "cri-o"}),
    "minikube v1": (f"{DOCKER_V1}{SYSTEMD}/docker-{C}.scope", IN_POD),
    "minikube docker run": (f"{DOCKER_V1}/docker/{C}", {"container_id": C, "pod_uid": None, "outer": [NODE]}),
    "minikube podman": (f"{PODMAN}{SYSTEMD}/crio-{C}.scope", IN_POD),
    # Slurm in pods (Slinky, Soperator): slurmd's container, or the pod, has the jobs.
    "slinky": (f"{POD}/cri-containerd-{NODE}.scope{STEPD}/job_12/{TASK}", JOB | {"outer": [NODE]}),
    "slinky batch": (
        f"{POD}/cri-containerd-{NODE}.scope{STEPD}/job_12/step_batch/user/task_special",
        {"job": ["slurm", "12"], "step": "batch", "task": "special", "outer": [NODE]},
    ),
    "slinky 26.05": (
        f"{POD}/cri-containerd-{NODE}.scope{STEPD}/s5K1KKYAYG5D00/{TASK}",
        JOB | {"job": ["slurm-sluid", "s5K1KKYAYG5D00"], "outer": [NODE]},
    ),
    "slinky cgroupfs": (f"{BESTEFFORT}/{NODE}{STEPD}/job_12/{TASK}", JOB | {"outer": [NODE]}),
    "slinky cri-o": (f"{POD}/crio-{NODE}.scope/container{STEPD}/job_12/{TASK}", JOB | {"outer": [NODE]}),
    "slinky multiple slurmd": (
        f"{POD}/cri-containerd-{NODE}.scope/system.slice/gpu-0_slurmstepd.scope/job_12/{TASK}",
        JOB | {"outer": [NODE]},
    ),
    "slinky v1": (f"{BESTEFFORT}/{NODE}/slurm/uid_1000/job_12/step_0/task_0", JOB | {"outer": [NODE]}),
    "slinky v1 multiple slurmd": (
        f"{BESTEFFORT}/{NODE}/slurm_gpu-0/uid_1000/job_12/step_0/task_0",
        JOB | {"outer": [NODE]},
    ),
    "slurm in a pod's slice": (f"{POD}{STEPD}/job_12/{TASK}", JOB | {"outer": [U]}),
    "slurm in a pod's slice twice": (f"{POD}{STEPD}{STEPD}/job_12/{TASK}", JOB | {"outer": [U]}),
    "slinky in kind": (
        f"/docker/{P}{KIND_BURSTABLE}/cri-containerd-{NODE}.scope{STEPD}/job_12/{TASK}",
        JOB | {"outer": [P, NODE]},
    ),
    "slurm in a pod's slice in kind": (f"/docker/{P}{KIND_BURSTABLE}{STEPD}/job_12/{TASK}", JOB | {"outer": [P, U]}),
    "slurm in docker": (f"{DOCKER}{STEPD}/job_12/{TASK}", JOB | {"outer": [NODE]}),
    "container in a job in a pod": (
        f"{POD}/cri-containerd-{NODE}.scope{STEPD}/job_12/{TASK}/{C}",
        {"container_id": C, "job": ["slurm", "12"], "pod_uid": None, "outer": [NODE]},
    ),
    # Docker and Podman inside: in a pod, in Docker, three levels, in LXC, Incus and nspawn.
    "docker in a pod": (
        f"{POD}/cri-containerd-{NODE}.scope/docker/{C}",
        {"container_id": C, "pod_uid": None, "outer": [NODE]},
    ),
    "docker in a pod v1": (
        f"{BESTEFFORT}/{NODE}/docker/{C}",
        {"container_id": C, "runtime": "docker", "outer": [NODE]},
    ),
    "docker in a pod, systemd": (
        f"{POD}/crio-{NODE}.scope/system.slice/docker-{C}.scope",
        {"container_id": C, "outer": [NODE]},
    ),
    "docker in docker": (f"{DOCKER}/docker/{C}", {"container_id": C, "runtime": "docker", "outer": [NODE]}),
    "docker in docker, systemd": (f"{DOCKER}/system.slice/docker-{C}.scope", {"container_id": C, "outer": [NODE]}),
    "docker in docker in docker": (f"/docker/{P}/docker/{NODE}/docker/{C}", {"container_id": C, "outer": [P, NODE]}),
    "podman in podman": (f"{PODMAN}/machine.slice/libpod-{C}.scope/container", {"container_id": C, "outer": [NODE]}),
    "podman in docker": (
        f"{DOCKER}/libpod_parent/libpod-{C}",
        {"container_id": C, "runtime": "podman", "outer": [NODE]},
    ),
    "vcluster": (f"{POD}/cri-containerd-{NODE}.scope/kubepods/burstable/pod{V}/{C}", IN_POD | {"pod_uid": V}),
    "docker in lxc": (f"/lxc.payload.web1/system.slice/docker-{C}.scope", {"container_id": C, "outer": ["web1"]}),
    "docker in lxc v1": (f"/lxc/web1/docker/{C}", {"container_id": C, "outer": ["web1"]}),
    "docker in proxmox": (f"/lxc/102/ns/system.slice/docker-{C}.scope", {"container_id": C, "outer": ["102"]}),
    "docker in incus": (f"/lxc.payload.user-1000_web1/docker/{C}", {"container_id": C, "outer": ["user-1000_web1"]}),
    "k3s in incus": (f"/lxc.payload.node1{BESTEFFORT}/{C}", IN_POD | {"outer": ["node1"]}),
    "incus in incus": ("/lxc.payload.a/lxc.payload.b/system.slice/x.service", {"container_id": "b", "outer": ["a"]}),
    "docker in nspawn": (
        f"/machine.slice/systemd-nspawn@box.service/payload/system.slice/docker-{C}.scope",
        {"container_id": C, "runtime": "docker", "outer": ["box"]},
    ),
    "docker in machinectl": (
        rf"/machine.slice/machine-my\x2dbox.scope/payload/system.slice/docker-{C}.scope",
        {"container_id": C, "outer": ["my-box"]},
    ),
    # Private cgroup namespaces cut off the first part.
    "kind from a container": (
        f"/../../system.slice/docker-{NODE}.scope{KIND_BURSTABLE}/cri-containerd-{C}.scope",
        IN_POD,
    ),
    "minikube from a container": (f"/../{NODE}{SYSTEMD}/docker-{C}.scope", IN_POD),
    "slinky from a pod": (f"/../../cri-containerd-{NODE}.scope{STEPD}/job_12/{TASK}", JOB | {"outer": [NODE]}),
    "dots inside": (f"{DOCKER}/../kubelet/../{BESTEFFORT}/{C}", IN_POD),
}
"""Path, and its parts with --owners.nested=inner."""
UNCHANGED: dict[str, tuple[str, dict[str, Any]]] = {
    "slurmd itself": (
        f"{POD}/cri-containerd-{NODE}.scope{STEPD}/system",
        {"container_id": NODE, "pod_uid": U, "job": None, "outer": []},
    ),
    "systemd in docker": (f"{DOCKER}/init.scope", NOTHING_INSIDE),
    "kubelet of kind": (f"{DOCKER}/kubelet.slice/kubelet.service", NOTHING_INSIDE),
    "containerd of kind v1": (f"{DOCKER_V1}/system.slice/containerd.service", NOTHING_INSIDE),
    "k3s itself": (f"{DOCKER}/k3s", NOTHING_INSIDE),
    "dockerd in docker": (f"{DOCKER_V1}/init", NOTHING_INSIDE),
    "systemd with the cgroups of the host": (f"{DOCKER}{DOCKER}/system.slice/postgresql.service", NOTHING_INSIDE),
    "quadlet": (f"{PODMAN}/libpod-payload-{NODE}", NOTHING_INSIDE),
    "short id": (f"{DOCKER}/docker/{C[:-1]}", NOTHING_INSIDE),
    "long id": (f"{DOCKER}/docker/{C}0", NOTHING_INSIDE),
    "capitals": (f"{DOCKER}/docker/{C.upper()}", NOTHING_INSIDE),
    "ctr run": (f"{DOCKER}/default/redis", NOTHING_INSIDE),
    "damaged pod uid": (f"{DOCKER}/kubelet/kubepods/pod{U[:-1]}", NOTHING_INSIDE),
    "job without slurm": (f"{DOCKER}/batch/job_12", NOTHING_INSIDE),
    "mount inside": (f"{DOCKER}/system.slice/x.mount/docker/{C}", NOTHING_INSIDE),
    "monitor inside": (f"{DOCKER}/lxc.monitor.b/docker/{C}", NOTHING_INSIDE),
    "conmon inside": (f"{DOCKER}/libpod-conmon-{C}.scope", NOTHING_INSIDE),
    "conmon before": (
        f"/machine.slice/libpod-conmon-{NODE}.scope/docker/{C}",
        {"container_id": None, "monitor": True, "outer": []},
    ),
    "no container": ("/system.slice/ollama.service", {"container_id": None, "unit": "ollama.service", "outer": []}),
    "job of the host": (f"{STEPD}/job_12/{TASK}", JOB | {"outer": []}),
    "container in a job": (f"/slurm/uid_1000/job_7/{C}", {"container_id": C, "job": ["slurm", "7"], "outer": []}),
    "kubelet in a job": (f"{STEPD}/job_12/{TASK}{BESTEFFORT}/{C}", {"container_id": C, "pod_uid": U, "outer": []}),
    "pod": (f"{POD}/cri-containerd-{C}.scope", {"container_id": C, "pod_uid": U, "outer": []}),
}
"""Nothing that is known is inside a container."""


@pytest.mark.parametrize("name", PATHS)
def test_the_innermost_is_the_owner(name: str) -> None:
    """The innermost container, pod or job is read, with the ids of those around it."""
    check(*PATHS[name])


@pytest.mark.parametrize("name", PATHS)
def test_the_outermost_is_the_owner_by_default(name: str) -> None:
    """Without the flag no name inside a container counts, and `outer` is empty."""
    path, expected = PATHS[name]
    ref = parse_path(path)

    assert ref.outer is None
    assert expected["outer"][0] in (ref.container_id, ref.pod_uid)


@pytest.mark.parametrize("name", UNCHANGED)
def test_nothing_known_inside(name: str) -> None:
    """Units, helpers and damaged names inside a container leave it the owner."""
    check(*UNCHANGED[name])


def test_a_pod_without_a_container_inside() -> None:
    """A helper of a pod's container belongs to the pod."""
    check(
        f"{DOCKER}{SYSTEMD}/crio-conmon-{C}.scope",
        {"container_id": None, "pod_uid": U, "monitor": True, "outer": [NODE]},
    )


@pytest.mark.parametrize("inside", [f"{KIND_BURSTABLE}/cri-containerd-{C}.scope", f"/kubelet{BESTEFFORT}/{C}"])
def test_kind_of_a_rootless_podman(inside: str) -> None:
    """A user can invent such a node, so that its pods do not count, and its containers are claims of the user."""
    check(f"{ROOTLESS}{inside}", {"container_id": C, "claimed_by": 1000, "pod_uid": None, "outer": [NODE]})
    check(f"{ROOTLESS}{STEPD}/job_12", {"container_id": NODE, "claimed_by": 1000, "job": None})


def test_user_inside_a_container() -> None:
    """In a container with its own logins, the containers of its users are claims as on the host."""
    path = f"/lxc.payload.web1/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{C}.scope"

    check(path, {"container_id": C, "claimed_by": 1000, "outer": ["web1"]})
    check(path.replace("1000", "0"), {"container_id": C, "claimed_by": None, "outer": ["web1"]})


def test_container_with_a_user_namespace() -> None:
    """Directories inside a container belong to its root, which is another user of the host; its names count."""
    path = f"/lxc.payload.web1/system.slice/docker-{C}.scope"

    ref = parse_path(path, Bounds(end=1, uid=100_000), nested=True)

    assert (ref.container_id, ref.claimed_by, ref.to_dict()["outer"]) == (C, None, ["web1"])


def test_directory_of_a_user() -> None:
    """A container that a user invents in an own directory stays a claim, and so does all that is inside."""
    ref = parse_path(f"/job.service/docker-{NODE}.scope/docker/{C}", Bounds(end=1, uid=1000), nested=True)

    assert [(level.container_id, level.claimed_by) for level in ref.levels()] == [(C, 1000), (NODE, 1000)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (  # kind on a hybrid host: the line of v2 names the runtime's own service
            f"12:pids:{DOCKER_V1}/kubelet{BESTEFFORT}/{C}\n13:rdma:/\n0::{DOCKER_V1}/system.slice/containerd.service\n",
            IN_POD,
        ),
        (f"11:memory:{DOCKER_V1}\n4:pids:{DOCKER_V1}/kubelet{BESTEFFORT}/{C}\n", IN_POD),
        (f"9:memory:{BESTEFFORT}/{NODE}/slurm/uid_1/job_12/step_0/task_0\n3:pids:{BESTEFFORT}/{NODE}\n0::/\n", JOB),
        (
            f"9:memory:{DOCKER_V1}\n3:pids:/user.slice/user-7.slice/user@7.service/docker-{P}.scope/docker/{C}",
            NOTHING_INSIDE,
        ),
    ],
)
def test_lines_of_v1(text: str, expected: dict[str, Any]) -> None:
    """The innermost level of any line counts, but a line in a directory of a user never wins over one of root."""
    parts = parse(text, nested=True).to_dict()
    reverse = parse("\n".join(reversed(text.splitlines())), nested=True).to_dict()

    assert {name: parts[name] for name in expected} == expected
    assert parts == reverse


@given(st.sampled_from([vector["path"] for vector in VECTORS["paths"]]))
def test_each_known_form_inside_docker(path: str) -> None:
    """What is known on a host is known in a container; nesting changes nothing on the host."""
    on_host, inside = (list(parse_path(p, nested=True).levels()) for p in (path, f"/docker/{P}{path}"))
    is_known = bool(on_host[0].container_id or on_host[0].pod_uid or on_host[0].job)

    assert inside[-1] == CgroupRef(runtime="docker", container_id=P)
    levels = [[(level.container_id, level.pod_uid, level.job) for level in one] for one in (inside[:-1], on_host)]
    assert levels[0] == (levels[1] if is_known else [])


@given(anything)
def test_any_text_gives_well_formed_levels(text: str) -> None:
    """The parser is total, each level is fit for a label, and the outermost one is that of the default."""
    ref = parse(text, nested=True)

    for level in ref.levels():
        well_formed(level)
    path = parse_path("/" + text.replace("\n", ""), nested=True)
    outermost, by_default = list(path.levels())[-1], parse_path("/" + text.replace("\n", ""))
    assert (outermost.container_id, outermost.claimed_by) == (by_default.container_id, by_default.claimed_by)


@pytest.mark.parametrize(
    ("path", "files", "tool"),
    [
        (f"{DOCKER}{KIND_BURSTABLE}/cri-containerd-{C}.scope", ["kind"], "kind"),
        (f"{DOCKER}{SYSTEMD}/docker-{C}.scope", ["kind", "kic.txt"], "minikube"),
        (f"{DOCKER}{BESTEFFORT}/{C}", ["bin/k3d-entrypoint.sh"], "k3d"),
        (f"{DOCKER}{BESTEFFORT}/{C}", [], ""),
    ],
)
def test_nodes_in_containers(tmp_path: Any, path: str, files: list[str], tool: str) -> None:
    """A container with pods inside is a node, and its files tell the tool that created it."""
    proc = Proc(tmp_path)
    proc.add(7, cgroup=f"0::{path}\n")
    proc.add(8, cgroup=f"0::{DOCKER}/init.scope\n")
    proc.add(9, cgroup=f"0::/docker/{P}/docker/{C}\n")
    for file in files:
        (tmp_path / "8" / "root" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "8" / "root" / file).touch()

    assert nodes_in_containers(tmp_path) == {NODE: tool}
