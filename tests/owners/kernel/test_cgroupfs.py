"""Which part of a cgroup path only root could choose, on made-up trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuledger.owners.kernel.cgroup import CgroupRef
from gpuledger.owners.kernel.cgroupfs import CgroupTree, own_containers

pytestmark = pytest.mark.needs("root")

A, B = "a1" * 32, "b2" * 32
POD = "2c9f8a79-5391-454b-88cb-86190881cb96"
USER = 54321


class Tree:
    """A cgroup file system and a /proc/1."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        (self.proc / "1").mkdir(parents=True)
        self.init("0::/init.scope\n")

    def init(self, text: str) -> None:
        """The cgroup of the init process."""
        (self.proc / "1" / "cgroup").write_text(text)

    def add(self, path: str, uid: int = 0) -> None:
        """A directory of this user."""
        folder = self.cgroups / path
        folder.mkdir(parents=True)
        os.chown(folder, uid, uid)

    def parse(self, text: str, uid: int = 0) -> CgroupRef:
        """A /proc/PID/cgroup, parsed by an exporter of this user."""
        return CgroupTree(self.proc, self.cgroups, uid).parse(text)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """An empty tree."""
    return Tree(tmp_path)


def test_directory_of_root(tree: Tree) -> None:
    """A container in a directory of root counts, also if its own directory belongs to a user of its namespace."""
    tree.add("system.slice")
    tree.add(f"system.slice/docker-{A}.scope", 100_000)

    ref = tree.parse(f"0::/system.slice/docker-{A}.scope/init.scope\n")

    assert (ref.container_id, ref.claimed_by) == (A, None)


def test_directory_of_a_user(tree: Tree) -> None:
    """A container in a directory of a user is that user's claim; pods and jobs there do not count."""
    tree.add("runner.service", USER)
    tree.add(f"runner.service/pod{POD}", USER)

    ref = tree.parse(f"0::/runner.service/pod{POD}/{A}\n")

    assert (ref.container_id, ref.claimed_by, ref.pod_uid, ref.unit) == (A, USER, None, "runner.service")


def test_directory_of_the_exporters_user(tree: Tree) -> None:
    """An exporter trusts its own user, but not the overflow uid, which may be any user."""
    for uid in (USER, 65534):
        tree.add(f"own-{uid}", uid)

    assert tree.parse(f"0::/own-{USER}/docker-{A}.scope\n", USER).claimed_by is None
    assert tree.parse(f"0::/own-65534/docker-{A}.scope\n", 65534).claimed_by == 65534
    assert (
        tree.parse(f"0::/user.slice/user-{USER}.slice/user@{USER}.service/docker-{A}.scope\n", USER).claimed_by is None
    )


def test_removed_container(tree: Tree) -> None:
    """A container that ended just now had its directory in one of root; below it nothing is known."""
    tree.add("docker")

    assert tree.parse(f"0::/docker/{A}/docker/{B}\n") == tree.parse(f"0::/docker/{A}\n")
    assert tree.parse(f"0::/docker/x/docker/{B}\n").claimed_by == -1


def test_directories_that_are_not_visible(tree: Tree) -> None:
    """In a private cgroup namespace the names decide: below a user's manager they are claims."""
    assert tree.parse(f"0::/../../docker-{A}.scope\n").claimed_by is None
    assert tree.parse(f"0::/../user.slice/user-7.slice/user@7.service/docker-{A}.scope\n").claimed_by == 7
    assert tree.parse(f"0::/user.slice/user-0.slice/user@0.service/docker-{A}.scope\n").claimed_by is None


def test_step_of_a_user(tree: Tree) -> None:
    """Slurm gives the directory of a step to the job's user on v1; the job is still proven, and its tasks are read."""
    tree.add("cpuset/slurm/uid_1/job_7")
    tree.add("cpuset/slurm/uid_1/job_7/step_0", USER)

    ref = tree.parse("5:cpuset:/slurm/uid_1/job_7/step_0/task_3\n")
    assert (ref.job, ref.step, ref.task) == (("slurm", "7"), "0", "3")
    forged = tree.parse("5:cpuset:/slurm/uid_1/job_7/step_0/slurm/uid_2/job_8/step_1\n")
    assert forged.job == ("slurm", "7")


def test_each_hierarchy_has_its_own_owners(tree: Tree) -> None:
    """On v1 a proven container of one hierarchy wins over claims in another one."""
    tree.add("pids/docker")
    tree.add("systemd/mine", USER)
    tree.add("unified/mine", USER)

    ref = tree.parse(f"4:pids:/docker/{A}\n1:name=systemd:/mine/docker-{B}.scope\n0::/mine/docker-{B}.scope\n")

    assert (ref.container_id, ref.claimed_by) == (A, None)


def test_node_that_is_a_container(tree: Tree) -> None:
    """Where init itself is in a container, as in kind, that container is the host."""
    tree.init(f"0::/docker/{A}/init.scope\n")

    ref = tree.parse(f"0::/docker/{A}/kubelet/kubepods/pod{POD}/{B}\n")

    assert (ref.container_id, ref.pod_uid) == (B, POD)
    assert tree.parse(f"0::/docker/{B}/docker/{A}\n").container_id == B
    assert tree.parse(f"0::/docker/{A}/system.slice/kubelet.service\n").container_id is None


class Own:
    """A /proc with the exporter's own process and others."""

    def __init__(self, root: Path, cgroup: str, *mounts: str) -> None:
        self.root = root
        self.add("self", cgroup)
        (root / "self" / "mountinfo").write_text(
            "".join(f"84 67 254:0 {mount} rw - ext4 /dev/vda rw\n" for mount in mounts)
        )

    def add(self, pid: str, cgroup: str) -> None:
        """A process."""
        (self.root / pid).mkdir()
        (self.root / pid / "cgroup").write_text(cgroup)


@pytest.mark.parametrize(
    "cgroup", [f"0::/system.slice/docker-{A}.scope\n", f"4:memory:/docker/{A}\n0::/docker/{A}\n", f"0::/../{A}/x\n"]
)
def test_own_container_by_cgroup(tmp_path: Path, cgroup: str) -> None:
    """The exporter's own cgroup has the id of its container, with v1 and with the cgroup namespace of the host."""
    own = Own(tmp_path, cgroup, f"/containers/{A}/hostname /etc/hostname")
    own.add("7", cgroup)

    assert own_containers(tmp_path) == {A}


@pytest.mark.parametrize(
    "mount",
    [
        f"/var/lib/docker/containers/{A}/hostname /etc/hostname",
        f"/containers/{A}/resolv.conf /etc/resolv.conf",
        f"/containers/storage/overlay-containers/{A}/userdata/hosts /etc/hosts",
    ],
)
def test_own_container_by_mounts(tmp_path: Path, mount: str) -> None:
    """In a private cgroup namespace, the files that Docker and Podman mount have the id."""
    own = Own(tmp_path, "0::/\n", f"/volumes/{B} /data", mount)
    own.add("7", f"0::/../docker-{B}.scope\n")

    assert own_containers(tmp_path) == {A}


def test_mounts_of_another_container(tmp_path: Path) -> None:
    """With `--network container:NAME` the files are those of that container, whose processes show its id."""
    own = Own(tmp_path, "0::/\n", f"/containers/{A}/hostname /etc/hostname")
    own.add("7", f"0::/../docker-{A}.scope\n")

    assert own_containers(tmp_path) == frozenset()


def test_no_own_container(tmp_path: Path) -> None:
    """A service of the host is in no container; neither is an exporter whose process is not visible."""
    service = tmp_path / "service"
    service.mkdir()
    Own(service, "0::/system.slice/gpuledger.service\n", f"/var/lib/docker/containers/{A}/hosts /data/hosts")

    assert own_containers(service) == own_containers(tmp_path) == frozenset()
