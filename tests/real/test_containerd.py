"""Names from a real containerd."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.errors import ProviderError
from gpuledger.owners import cgroup
from gpuledger.owners.cri import CriProvider
from gpuledger.owners.names import Container, Names, Pod
from tests.owners.kubelet_server import pod_labels
from tests.real.containerds import CRI, IMAGE, Containerd


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
