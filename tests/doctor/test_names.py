"""Those who are asked for names, told from how they are."""

from __future__ import annotations

import pytest

from gpuledger import config
from gpuledger.doctor.names import names, owned
from gpuledger.model import Owners, ProviderHealth
from gpuledger.owners.resolver import GONE, NO_NAME
from gpuledger.problem import Problem

SETTINGS = config.load({}, {})


def health(name: str, reason: str = "", fetches: int = 1) -> ProviderHealth:
    """Of one that is up unless there is a reason."""
    return ProviderHealth(name, not reason, Problem(reason) if reason else None, 0, 0, fetches, 0)


def test_nobody_is_asked() -> None:
    """Then nothing is wrong, and it is said what is not used."""
    found = names(Owners(), SETTINGS)

    assert [(one.name, one.level) for one in found] == [("runtime", "ok"), ("kubelet", "ok"), ("api server", "ok")]
    assert all(one.text.startswith("not used: ") for one in found)


@pytest.mark.parametrize(
    ("one", "name", "fix"),
    [
        (health("docker-2", "cannot open /x: no such file; y"), "docker-2", "`sudo systemctl start docker`; y"),
        (health("podman", "cannot open /x: permission denied; y"), "podman", "run as the user whose socket it is"),
        (health("podresources", "cannot open /x: nobody listens there; y"), "kubelet", "systemctl start kubelet"),
        (health("kubernetes", "a:1 does not accept who we are (401: x); y"), "api server", "kubectl auth can-i"),
        (
            health("hpcdir", "cannot read /x: No such file; create the directory"),
            "job directory",
            "create the directory",
        ),
        (health("cri", "not asked yet", fetches=0), "container runtime", "see whether it hangs"),
    ],
)
def test_each_has_its_remedy(one: ProviderHealth, name: str, fix: str) -> None:
    """A command where there is one, else what the provider itself advises."""
    found = names(Owners(providers=(one,)), SETTINGS)[0]

    assert (found.name, found.level) == (name, "problem")
    assert fix in found.fix


def test_owners_are_missing_for_a_reason_that_is_told_already() -> None:
    """When somebody is down, or we see nothing, that is the fault; so is a process that is not in /proc."""
    unresolved = ((NO_NAME, 2), (GONE, 1))
    down = Owners(providers=(health("docker", "it is down"),), unresolved=unresolved)
    up = Owners(providers=(health("docker"),), unresolved=unresolved)

    assert owned(down, blind=False) == []
    assert owned(up, blind=True) == []
    assert [one.text for one in owned(up, blind=False)] == [f"2 processes: {NO_NAME}"]


def test_device_ids_nobody_knows() -> None:
    """Are worth a report."""
    (found,) = owned(Owners(unknown_device_ids=3), blind=False)

    assert (found.name, found.level) == ("device ids", "warning")
