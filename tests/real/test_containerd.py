"""Names from a real containerd."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.errors import ProviderError
from gpuledger.model import Facts
from gpuledger.owners.kernel import cgroup
from gpuledger.owners.names import Container, Names, Pod
from gpuledger.owners.providers.containerd import ContainerdProvider
from gpuledger.owners.providers.cri import CriProvider
from gpuledger.owners.resolver import Resolver
from tests.owners.kernel.processes import Source, tick_of
from tests.owners.providers.kubelet_server import pod_labels
from tests.real.containerds import CRI, IMAGE, Containerd

pytestmark = pytest.mark.needs("root", "cgroups", "containerd", "runc", "busybox")


def test_names_from_containerd(containerd: Containerd) -> None:
    """A pod with two containers, through a crash of the daemon, until they end."""
    provider = CriProvider(str(containerd.socket), timeout_s=5)
    assert provider.fetch() == Names()

    # One container as the kubelet makes it, one by hand without labels: its sandbox has to be asked.
    sandbox = containerd.pod("ml", "train")
    main = containerd.container(sandbox, "main", pod_labels("ml", "train", containerd.uid, "main"))
    side = containerd.container(sandbox, "by-hand", {})
    both = Names(
        containers={
            main: Container(main, "main", IMAGE, "ml", "train", containerd.uid),
            side: Container(side, "by-hand", IMAGE, "ml", "train", containerd.uid),
        },
        pods={containerd.uid: Pod(containerd.uid, "ml", "train")},
    )
    assert provider.fetch() == both

    # The cgroup of the real process leads to the same container and pod.
    for container_id in (main, side):
        ref = cgroup.parse(Path(f"/proc/{containerd.pid(container_id)}/cgroup").read_text())
        assert (ref.container_id, ref.pod_uid) == (container_id, containerd.uid)
        assert ref.qos == "besteffort"

    # The daemon dies: an error that says so. It comes back, and knows its containers.
    containerd.kill()
    with pytest.raises(ProviderError, match=r"Connection refused; `sudo systemctl start containerd`"):
        provider.fetch()
    containerd.start()
    assert provider.fetch() == both

    # A container ends: it is gone; with the last one the pod goes too.
    containerd.call("StopContainer", CRI.ById(id=side))
    assert set(provider.fetch().containers) == {main}
    containerd.call("StopContainer", CRI.ById(id=main))
    assert provider.fetch() == Names()


def test_names_of_nerdctl_and_ctr(containerd: Containerd) -> None:
    """Containers of several namespaces; those of Kubernetes are left to the CRI. The cgroup leads to the same ids."""
    provider = ContainerdProvider(str(containerd.socket), timeout_s=5)
    assert provider.fetch() == Names()

    with (
        containerd.task("default", "d1" * 32, "nerdctl/name=web", "com.docker.compose.project=shop") as nerdctl,
        containerd.task("default", "by-hand") as ctr,
        containerd.task("team-a", "a2" * 32, "nerdctl/name=job"),
    ):
        names = provider.fetch()
        facts = [Facts(pid, 1, 0, cgroup=Path(f"/proc/{pid}/cgroup").read_text()) for pid in (nerdctl, ctr)]

    assert names.containers == {
        "d1" * 32: Container("d1" * 32, "web", IMAGE, labels=(("com.docker.compose.project", "shop"),)),
        "default/by-hand": Container("default/by-hand", "by-hand", IMAGE),
        "a2" * 32: Container("a2" * 32, "job", IMAGE),
    }
    owners = Resolver([Source(containers=names.containers)]).resolve(tick_of(*facts)).owners.by_pid
    assert {(owner.container, owner.container_id) for owner in owners.values()} == {
        ("web", "d1" * 32),
        ("by-hand", "default/by-hand"),
    }
