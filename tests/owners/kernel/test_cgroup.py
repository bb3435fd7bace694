"""Who a process belongs to, read from cgroup paths of every kind."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.owners.kernel.cgroup import Bounds, CgroupRef, parse, parse_path
from tests.owners.kernel.cgrouptexts import VECTORS, anything, well_formed

C = "a42d519714d616e9411dbceec4b52808bd6b1ee53e6f6497a281d655357d8b71"
O = "560e3e12b1e0dafa161e62fb3327ad65c98b7cd53849b17c627e8d3e1d419d6a"  # noqa: E741 - the outer container
P = "df2feb9d3803fd610ae68511303014414cbbed504e132e67487896ec929c82b6"
U = "2c9f8a79-5391-454b-88cb-86190881cb96"
u = U.replace("-", "_")
S = "13a4855d71cbbf718962270ad801737a"
MANAGER = "user@1000.service"
USER = f"/user.slice/user-1000.slice/{MANAGER}"
SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{u}.slice"
STEPD = "/system.slice/slurmstepd.scope"
NOTHING: dict[str, Any] = CgroupRef().to_dict()


def check(ref: CgroupRef, expect: dict[str, Any]) -> None:
    """Every key that the vector names, as JSON would show it."""
    said = json.loads(json.dumps(ref.to_dict()))
    assert {key: said[key] for key in expect} == expect


@pytest.mark.parametrize("vector", VECTORS["paths"], ids=lambda v: f"{v['n']}")
def test_path_vectors(vector: dict[str, Any]) -> None:
    """Each path that the sources of real runtimes show is read as they mean it."""
    check(parse_path(vector["path"]), vector["expect"])
    check(parse(f"0::{vector['path']}\n"), vector["expect"])


@pytest.mark.parametrize("vector", VECTORS["files"], ids=lambda v: str(v["name"]))
def test_file_vectors(vector: dict[str, Any]) -> None:
    """Of a whole file the most specific line is believed, wherever it stands."""
    check(parse(vector["content"]), vector["expect"])


@pytest.mark.parametrize(
    ("path", "expect"),
    [
        # Docker: rootless, sub-cgroups, systemd inside, a dead cgroup.
        (f"{USER}/user.slice/docker-{C}.scope", {"container_id": C, "claimed_by": 1000, "unit": "user@1000.service"}),
        (f"/system.slice/docker-{C}.scope/init.scope/x.service", {"container_id": C, "unit": None}),
        (f"/system.slice/docker-{C}.scope/sensor.falcon", {"runtime": "docker", "container_id": C}),
        (f"/docker/{C}/exec", {"runtime": "docker", "container_id": C}),
        (f"/system.slice/docker-{C}.scope (deleted)", {"runtime": "docker", "container_id": C}),
        (f"/docker/{C} (deleted)", {"runtime": "docker", "container_id": C}),
        (f"/system.slice:docker:{C}", {"runtime": "docker", "container_id": C}),
        (f"/{C}", {"runtime": "unknown", "container_id": C}),
        # Other runtimes that follow the same convention.
        (f"/system.slice/youki-{C}.scope", {"runtime": "unknown", "container_id": C}),
        (f"/k8s.io/{C}", {"runtime": "containerd", "container_id": C}),
        (f"/moby/{C}", {"runtime": "containerd", "container_id": C}),
        # Podman: quadlet, split cgroups, pods under both drivers, whose own id is no container.
        (f"/system.slice/llm.service/libpod-payload-{C}", {"runtime": "podman", "unit": "llm.service"}),
        (f"{USER}/app.slice/llm.service/libpod-payload-{C}/x", {"container_id": C, "unit": f"{MANAGER}/llm.service"}),
        (f"/machine.slice/libpod-{C}.scope/container/libpod-payload-{C}", {"container_id": C}),
        (f"{USER}/user.slice/user-libpod_pod_{P}.slice/libpod-{C}.scope", {"container_id": C}),
        (f"/libpod_parent/{P}/libpod-{C}", {"runtime": "podman", "container_id": C}),
        (f"/mine/{P}/libpod-{C}", {"runtime": "unknown", "container_id": P}),
        (f"/libpod_parent/{P}", {"container_id": None}),
        (f"/libpod_parent/{P}/conmon", {"container_id": None, "monitor": True}),
        (f"/machine.slice/machine-libpod_pod_{P}.slice", {"container_id": None, "pod_uid": None}),
        (f"{USER}/user.slice/libpod-conmon-{C}.scope", {"container_id": None, "monitor": True}),
        # A health check's transient service carries the id but is no container.
        (f"/system.slice/{C}.service", {"container_id": None, "unit": f"{C}.service"}),
        (f"/system.slice/{C}-58ed4b3f5b3c3ef.service", {"container_id": None}),
        # Kubernetes: cgroup roots, static pods, cut prefixes, old dashed slices, colons.
        (f"/gpu/kubepods/pod{U}/{C}", {"runtime": "kubernetes", "pod_uid": U, "qos": "guaranteed"}),
        (
            f"/x.slice/x-kubepods.slice/x-kubepods-pod{u}.slice/crio-{C}.scope/container",
            {"runtime": "cri-o", "container_id": C, "pod_uid": U, "qos": "guaranteed", "unit": None},
        ),
        (f"/kubepods/burstable/pod{S}/{C}", {"runtime": "kubernetes", "pod_uid": S, "qos": "burstable"}),
        (
            f"/kubepods.slice/kubepods-pod{S}.slice/cri-containerd-{C}.scope",
            {"runtime": "containerd", "pod_uid": S, "qos": "guaranteed"},
        ),
        (f"/../../pod{U}/{C}", {"runtime": "kubernetes", "container_id": C, "pod_uid": U, "qos": None}),
        (f"/../../../besteffort/pod{U}/{C}", {"pod_uid": U, "qos": "besteffort"}),
        (f"/../kubepods-pod{u}.slice/crio-{C}.scope", {"pod_uid": U, "qos": "guaranteed"}),
        (f"/../crio-{C}", {"runtime": "cri-o", "container_id": C}),
        (f"/kubepods.slice/kubepods-burstable-pod{U}.slice/docker-{C}.scope", {"pod_uid": U, "qos": "burstable"}),
        (
            f"/system.slice/containerd.service/kubepods-pod{u}.slice:cri-containerd:{C}",
            {"runtime": "containerd", "container_id": C, "pod_uid": U, "unit": "containerd.service"},
        ),
        (f"/kubepods-besteffort-pod{u}.slice:crio-conmon:{C}", {"container_id": None, "monitor": True, "pod_uid": U}),
        (f"{SLICE}/crio-{C}", {"container_id": None, "pod_uid": U}),
        (f"{SLICE}", {"container_id": None, "pod_uid": U, "qos": "burstable"}),
        (f"/kubepods/pod{U}/crio-conmon-{C}", {"container_id": None, "monitor": True, "pod_uid": U}),
        (f"{USER}/k3s-rootless.service/kubepods/pod{U}/{C}", {"pod_uid": None, "container_id": C, "claimed_by": 1000}),
        (f"/kata_overhead/{C}", {"container_id": None}),
        # Nesting: k3d, minikube, DinD in a pod, Docker in LXC, three levels. The outermost container counts.
        (f"/docker/{O}/kubepods/besteffort/pod{U}/{C}", {"container_id": O, "pod_uid": None}),
        (f"/docker/{O}/system.slice/docker-{C}.scope", {"runtime": "docker", "container_id": O}),
        (f"{SLICE}/cri-containerd-{O}.scope/docker/{C}", {"container_id": O, "pod_uid": U}),
        (f"/lxc.payload.web1/system.slice/docker-{C}.scope", {"runtime": "lxc", "container_id": "web1"}),
        (f"/docker/{P}/docker/{O}/docker/{C}", {"container_id": P}),
        (f"/docker/{O}/system.slice/containerd.service", {"container_id": O, "unit": None}),
        # Elsewhere: ECS, garden, LXC, nspawn.
        (f"/ecstasks.slice/ecstasks-{S}.slice/docker-{C}.scope", {"runtime": "docker", "job": ["ecs", S]}),
        (f"/ecs/{U}/{C}", {"runtime": "docker", "container_id": C, "job": ["ecs", U]}),
        ("/garden/good/016b5740-120b-42b7-562f-3c62/init", {"runtime": "garden"}),
        ("/lxc/web.1", {"runtime": "lxc", "container_id": "web.1"}),
        ("/lxc.payload/web1/init.scope", {"runtime": "lxc", "container_id": "web1"}),
        ("/lxc.payload.a/lxc.payload.b", {"runtime": "lxc", "container_id": "a"}),
        ("/lxc.monitor/102", {"container_id": None, "monitor": True}),
        (r"/machine.slice/machine-my\x2dbox.scope/payload", {"runtime": "nspawn", "container_id": "my-box"}),
        ("/machine.slice/systemd-nspawn@box.service/payload/a.service", {"runtime": "nspawn", "container_id": "box"}),
        ("/machine.slice/systemd-nspawn@box.service/supervisor", {"container_id": None, "monitor": True}),
        (
            f"{USER}/app.slice/machine-learning.scope",
            {"container_id": None, "unit": f"{MANAGER}/machine-learning.scope"},
        ),
        # Slurm: any slice, node names, het steps, other ids, its own processes.
        ("/gpu.slice/node0_slurmstepd.scope/job_7/step_3+1/user/task_2", {"job": ["slurm", "7"], "step": "3+1"}),
        (f"{STEPD}/job_7/step_interactive/user/task_special", {"step": "interactive", "task": "special"}),
        (f"{STEPD}/job_7/step_0/slurm", {"job": ["slurm", "7"], "step": "0", "task": None}),
        (f"{STEPD}/s5K1KKYAYG5D00", {"job": ["slurm-sluid", "s5K1KKYAYG5D00"], "step": None}),
        (f"{STEPD}/system", {"job": None, "unit": "slurmstepd.scope"}),
        ("/../../job_7/step_0/user/task_1", {"job": ["slurm", "7"], "step": "0", "task": "1"}),
        ("/batch/job_7", {"job": None}),
        ("/batch/s5K1KKYAYG5D00", {"job": None}),
        ("/app/step_1/task_1", {"job": None, "step": None, "task": None}),
        (f"/slurm/uid_1000/job_7/{C}", {"container_id": C, "job": ["slurm", "7"]}),
        # Other schedulers and machines.
        (f"/nomad/share/{U}.train", {"job": ["nomad", f"{U}/train"]}),
        (f"/mine.slice/reserve.slice/{U}.a.b.scope", {"job": ["nomad", f"{U}/a.b"], "unit": f"{U}.a.b.scope"}),
        (f"/system.slice/{U}.train.scope", {"job": None}),
        (
            "/system.slice/condor.service/htcondor/scratch_slot2@ep1.slice/scratch_slot2@ep1.scope",
            {"job": ["htcondor", "slot2"]},
        ),
        (f"{USER}/user.slice/apptainer-77.scope", {"job": None, "unit": f"{MANAGER}/apptainer-77.scope"}),
        ("/oar/alice_b_4242", {"job": ["oar", "4242"]}),
        ("/oar.slice/oar-u1000.slice/oar-u1000-j42.slice/oar-u1000-j42-s1.scope", {"job": ["oar", "42"]}),
        ("/pbs_jobs.service/jobid/2404743.opbs", {"job": ["pbs", "2404743.opbs"], "unit": "pbs_jobs.service"}),
        ("/pbs_jobs.service/jobs/12[3].pbs", {"job": ["pbs", "12[3].pbs"]}),
        ("/machine/qemu-2-old_guest.libvirt-qemu/emulator", {"job": ["libvirt-qemu", "old_guest"]}),
        (r"/machine.slice/machine-x.slice/machine-qemu\x2d3\x2dwin.scope", {"job": ["libvirt-qemu", "win"]}),
        # Units.
        (r"/system.slice/my\x2dapp.service", {"unit": "my-app.service"}),
        (r"/system.slice/a\x2fb\x00.service", {"unit": r"a\x2fb\x00.service"}),
        ("/system.slice/system-getty.slice/getty@tty1.service", {"unit": "getty@tty1.service"}),
        ("/a:b/c:d.service", {"unit": "c:d.service"}),
        (f"{USER}/app.slice/vte-spawn-{U}.scope", {"container_id": None, "unit": f"{MANAGER}/vte-spawn-{U}.scope"}),
        ("/init.scope", {"unit": "init.scope"}),
    ],
)
def test_forms_beyond_the_vectors(path: str, expect: dict[str, Any]) -> None:
    """Real systems write more than the vectors hold; these follow from the same rules."""
    check(parse_path(path), expect)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "docker/" + C,  # the kernel's paths begin with a slash
        "/docker/" + C[:-1],
        f"/docker/{C}0",
        f"/docker/{C.upper()}",
        f"/system.slice/docker-{C}.scopes",
        f"/system.slice/docker-{C}0",
        f"/system.slice:docker:{C}0",
        f"/kubepods.slice/foo-pod{u}.slice",
        f"/podX{U}",
        f"/{C}-rootfs",
        "/.service",
        "/" + "x" * 256 + f"/docker/{C}",
    ],
)
def test_nothing_is_guessed(path: str) -> None:
    """What only looks like an owner proves nothing, so nothing is said."""
    assert parse_path(path).to_dict() | {"candidate": None} == NOTHING


@pytest.mark.parametrize(
    ("path", "candidate"),
    [
        ("/default/redis", "default/redis"),
        ("/team-a/web.1", "team-a/web.1"),
        ("/default", None),
        ("/default/a/b", None),
        ("/../default/redis", "default/redis"),
        ("/system.slice/ssh.service", None),
    ],
)
def test_path_that_only_containerd_can_confirm(path: str, candidate: str | None) -> None:
    """A path of two names may be a container of `ctr run`."""
    ref = parse_path(path)
    assert (ref.candidate, ref.container_id) == (candidate, None)


@pytest.mark.parametrize("text", ["", "\n\n", ":", "::", "0:", "x:y:z", f"x:y:/docker/{C}", "0::relative", "0::/\n"])
def test_lines_that_say_nothing(text: str) -> None:
    """Broken or empty files give an empty answer, not an error."""
    assert parse(text) == CgroupRef()


def test_bare_path_is_taken_as_a_line() -> None:
    """A path pasted without its `0::` is understood, colons and all."""
    assert parse(f"/x.slice:docker:{C}\n").container_id == C


def test_v1_prefixes_may_differ_between_controllers() -> None:
    """One controller in the right place is enough, and a step below the job beats the job alone."""
    text = f"11:memory:/kubepods-pod{u}.slice:cri-containerd:{C}\n1:name=systemd:/x/containerd.service\n0::/\n"
    check(parse(text), {"container_id": C, "pod_uid": U, "runtime": "containerd", "qos": "guaranteed"})
    text = (
        "4:cpuset:/slurm/uid_1/job_7\n3:memory:/slurm/uid_1/job_7/step_0/task_1\n1:name=systemd:/system.slice/d.service"
    )
    check(parse(text), {"job": ["slurm", "7"], "step": "0", "task": "1"})


def test_ref_is_a_value() -> None:
    """Equal paths give equal, hashable refs, so they can be keys."""
    assert hash(parse_path(f"/docker/{C}")) == hash(CgroupRef(runtime="docker", container_id=C))


@given(anything)
def test_any_text_gives_a_well_formed_ref(text: str) -> None:
    """The parser is total: it never raises, and what it says is fit for a label."""
    well_formed(parse(text))
    well_formed(parse_path("/" + text.replace("\n", "")))


real_paths = st.sampled_from([vector["path"] for vector in VECTORS["paths"]])


@given(real_paths, st.integers(1, 5))
def test_cut_off_prefix_changes_nothing(path: str, depth: int) -> None:
    """Seen from a private cgroup namespace, the same names mean the same."""
    assert parse_path("/.." * depth + path) == parse_path(path)


@given(real_paths)
def test_names_inside_a_container_do_not_count(path: str) -> None:
    """Processes of a container can create any cgroup below its own."""
    expected = parse_path(f"/system.slice/docker-{P}.scope")
    assert parse_path(f"/system.slice/docker-{P}.scope{path}") == expected


@given(real_paths)
def test_names_that_a_user_can_choose_are_claims(path: str) -> None:
    """Below the user's manager, a pod or a job never counts, and a container only as a claim."""
    ref = parse_path(f"{USER}{path}")
    assert (ref.pod_uid, ref.qos, ref.job, ref.step, ref.task) == (None,) * 5
    assert ref.claimed_by == (1000 if ref.container_id else None)
    assert ref.unit is not None
    assert ref.unit.startswith(MANAGER)


@given(real_paths)
def test_containers_of_a_node_that_is_a_container(path: str) -> None:
    """Inside a node of kind, the container of the node is the host."""
    assert parse_path(f"/docker/{P}{path}", Bounds(start=2)) == parse_path(path, Bounds())


@given(st.lists(real_paths, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_order_of_lines_does_not_matter(paths: list[str], random: Any) -> None:
    """The most specific line wins by what it says, not by where it stands."""
    lines = [f"{number}:c{number}:{path}" for number, path in enumerate(paths)]
    before = parse("\n".join(lines))
    random.shuffle(lines)
    assert parse("\n".join(lines) + "\n") == before


@given(real_paths, st.lists(st.sampled_from(["12:rdma:/", "7:misc:/..", "3:freezer:/user.slice", "junk", ""])))
def test_junk_controllers_do_not_matter(path: str, junk: list[str]) -> None:
    """Controllers at the root add nothing and take nothing away."""
    assert parse("\n".join([*junk, f"5:memory:{path}", *junk])) == parse_path(path)


@pytest.mark.parametrize(
    "name",
    ["a" * 65536, "/" * 65536, "slot1_" * 42, "a-" * 127, "a" * 255, "kubepods-" * 28, "\\x2d" * 63, C,
     "machine-" + "." * 240, U + "." + "s" * 200, "_slurmstepd" * 23, "lxc.payload." + "." * 240],
)  # fmt: skip
def test_hostile_input_takes_bounded_time(name: str) -> None:
    """64 kB made to confuse regular expressions is read in milliseconds; a second would mean backtracking."""
    text = "0::/" + "/".join([name] * (65536 // len(name)))
    start = time.process_time()
    well_formed(parse(text))
    assert time.process_time() - start < 1


def print_cost() -> None:
    """Microseconds for each vector path; run by hand, for a number in a test would depend on the machine."""
    costs = []
    for vector in VECTORS["paths"]:
        best = min(_time_ns(vector["path"]) for _ in range(1000))
        costs.append((best / 1000, vector["path"]))
    costs.sort()
    print(f"median {costs[len(costs) // 2][0]:.1f} us, worst {costs[-1][0]:.1f} us: {costs[-1][1]}")


def _time_ns(path: str) -> int:
    start = time.perf_counter_ns()
    parse_path(path)
    return time.perf_counter_ns() - start


if __name__ == "__main__":
    print_cost()
