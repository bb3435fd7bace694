"""Pure checks, with ticks, times and permissions that are passed in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuledger.config import load as config
from gpuledger.model import Device, Driver, MemoryAccount, Owner, Owners, ProviderHealth, Reading, Tick
from gpuledger.model.problem import Problem
from gpuledger.owners.kernel.access import Access
from gpuledger.owners.resolver import GONE, NO_NAME
from gpuledger.tools.doctor import checks

NOW_NS = 1_800_000_000 * 10**9
S = 10**9
ROOT = Path("/host/proc")
SETTINGS = config.load({}, {})
ALL = Access(host_pid_namespace=True, cgroup=True, maps=True, environ=True)
WELL = Tick(1, Driver(up=True), (Reading(Device(0, "GPU-0")),))


@pytest.mark.parametrize("sample_s", [None, 0.0, 1.9, -1.0, -59.0])
def test_clocks_that_agree(sample_s: float | None) -> None:
    """Samples of the last minute and slightly in the future are as expected."""
    sample_us = None if sample_s is None else NOW_NS // 1000 + int(sample_s * 1e6)

    (finding,) = checks.clock(NOW_NS, S, S + S // 10, sample_us)

    assert finding.level == "ok"


@pytest.mark.parametrize(
    ("now_ns", "wall_ns", "sample_s", "level", "words"),
    [
        (5 * S, S, 0.0, "problem", "5 s after 1970"),
        (NOW_NS, 61 * S, 0.0, "warning", "set by +60.0 s"),
        (NOW_NS, -2 * S, 0.0, "warning", "set by -3.0 s"),
        (NOW_NS, S, 2.1, "warning", "+2 s off"),
        (NOW_NS, S, -61.0, "warning", "-61 s off"),
    ],
)
def test_clocks_that_disagree(now_ns: int, wall_ns: int, sample_s: float, level: str, words: str) -> None:
    """Each finding says by how much, and how to set the clock."""
    (finding,) = checks.clock(now_ns, wall_ns, S, now_ns // 1000 + int(sample_s * 1e6))

    assert finding.level == level
    assert words in finding.text
    assert "timedatectl" in finding.fix


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0::/init.scope\n", "version 2"),
        ("12:memory:/\n1:name=systemd:/init.scope\n", "version 1"),
        ("12:memory:/\n0::/init.scope\n", "versions 1 and 2 (hybrid)"),
    ],
)
def test_the_cgroup_version(text: str, version: str) -> None:
    """From the cgroup of pid 1."""
    assert [finding.text for finding in checks.cgroups(text)] == [version]


def test_an_unreadable_cgroup_is_reported_once() -> None:
    """By the check of permissions, with the path."""
    access = Access(host_pid_namespace=True, cgroup=False, maps=True, environ=True)

    assert checks.cgroups("") == []
    faults = [finding for finding in checks.permissions(access, ROOT) if finding.level != "ok"]
    assert [(fault.name, fault.level) for fault in faults] == [("proc cgroup", "problem")]
    assert "/host/proc/1/cgroup" in faults[0].text


def test_no_permissions_at_all() -> None:
    """One line for each fix: an environment needs what memory maps need."""
    access = Access(host_pid_namespace=False, cgroup=False, maps=False, environ=False)

    assert [finding.name for finding in checks.permissions(access, ROOT)] == ["proc cgroup", "proc maps"]


def test_unreadable_environments_do_not_concern_slurm() -> None:
    """Jobs and accounts come from cgroups and the prolog; only the search for memory holders reads environments."""
    access = Access(host_pid_namespace=True, cgroup=True, maps=True, environ=False)

    (finding,) = [finding for finding in checks.permissions(access, ROOT) if finding.level == "warning"]
    assert finding.text.endswith("cannot be read: NVIDIA_VISIBLE_DEVICES of containers is unknown")
    assert "Slurm" not in finding.text


def test_all_permissions() -> None:
    """Two lines that say so."""
    assert [finding.name for finding in checks.permissions(ALL, ROOT)] == ["pid namespace", "proc"]


def health(name: str, reason: str = "", fix: str = "", fetches: int = 1) -> ProviderHealth:
    """A provider that is up unless there is a reason."""
    return ProviderHealth(name, not reason, Problem(reason, fix) if reason else None, 0, 0, fetches, 0)


@pytest.mark.parametrize("name", ["docker", "podman-2", "containerd", "cri"])
def test_a_provider_of_containers_is_a_runtime(name: str) -> None:
    """Also containerd's own API, which nerdctl uses."""
    findings = checks.providers(Owners(providers=(health(name),)), SETTINGS)

    assert "runtime" not in {finding.name for finding in findings}


def test_unconfigured_providers() -> None:
    """Nothing is wrong, and the report says what is not used."""
    findings = checks.providers(Owners(), SETTINGS)

    assert [(f.name, f.level) for f in findings] == [("runtime", "ok"), ("kubelet", "ok"), ("api server", "ok")]
    assert all(finding.text.startswith("not used: ") for finding in findings)


@pytest.mark.parametrize(
    ("provider", "name", "fix"),
    [
        (health("docker-2", "cannot open /x: No such file", "start it"), "docker-2", "start it"),
        (health("podresources", "cannot open /x: Connection refused", "start it"), "kubelet", "start it"),
        (health("kubernetes", "does not accept our credentials (401: x)", "allow it"), "api server", "allow it"),
        (health("hpcdir", "cannot read /x: No such file"), "job directory", "log"),
        (health("cri", "not polled yet", fetches=0), "container runtime", "check whether it hangs"),
    ],
)
def test_each_provider_has_its_fix(provider: ProviderHealth, name: str, fix: str) -> None:
    """From the tick if the provider failed, from the doctor if it has not responded in time."""
    tick = replace(WELL, owners=Owners(providers=(provider,)))
    findings = [*checks.providers(tick.owners, SETTINGS), *checks.tick_problems(tick, ALL)]

    (fault,) = [finding for finding in findings if finding.level != "ok"]
    assert (fault.name, fault.level) == (name, "problem")
    assert fix in fault.fix


def test_effects_of_a_reported_cause_are_left_out() -> None:
    """Unknown owners and memory are no news without the host's processes; nor is a process that is gone."""
    owners = Owners(providers=(health("docker"),), unresolved=((NO_NAME, 2), (GONE, 1)))
    memory = {"GPU-0": MemoryAccount(0, 1 << 30, 0)}
    tick = replace(WELL, owners=owners, memory=memory)

    assert [finding.name for finding in checks.tick_problems(tick, ALL)] == ["gpu 0", "owners"]
    assert [finding.name for finding in checks.tick_problems(tick, replace(ALL, cgroup=False))] == ["gpu 0"]
    assert checks.tick_problems(tick, replace(ALL, host_pid_namespace=False)) == []


def test_a_gpu_that_shares_the_memory_of_the_system() -> None:
    """Nothing is said about what holds its used memory: the CPU uses it, too."""
    shared = Reading(Device(0, "GPU-0"), system_memory_total_bytes=9, system_memory_used_bytes=5, residents=())

    (finding,) = checks.memory(replace(WELL, readings=(shared,)), ALL)

    assert (finding.level, finding.text.partition(":")[0]) == ("ok", "cannot be compared")


def test_nodes_in_containers() -> None:
    """A node of kind that owns GPU processes is a warning with the flag to set; with it, or without use, it is none."""
    node = "560e" * 16
    used = replace(WELL, owners=Owners(by_pid={7: Owner(container_id=node)}))

    (fault,) = checks.nested({node: "kind"}, used, "outer")
    findings = [*checks.nested({node: "minikube"}, WELL, "outer"), *checks.nested({node: ""}, used, "inner")]

    assert (fault.level, "--owners.nested=inner" in fault.fix) == ("warning", True)
    assert fault.text == "container 560e560e560e is a node of kind: it owns the processes of its pods"
    assert [finding.level for finding in findings] == ["ok", "ok"]
    assert "minikube: --owners.nested=inner would" in findings[0].text
    assert checks.nested({}, used, "outer") == []


def test_a_slow_start_is_reported() -> None:
    """Only if the driver or GPU responds now."""
    hanging = Problem("nvmlInit does not return", "reboot", "hang")
    first = Tick(1, Driver(up=False, problem=hanging))
    gpu = Tick(1, Driver(up=True), (Reading(Device(3, "GPU-3"), up=False, problem=hanging),))
    back = Tick(2, Driver(up=True), (Reading(Device(3, "GPU-3")),))

    assert [finding.name for finding in checks.slow_start(first, WELL)] == ["driver start"]
    assert "GPU 3" in checks.slow_start(gpu, back)[0].text
    assert checks.slow_start(first, first) == checks.slow_start(WELL, WELL) == []
