"""Names and devices of pod processes on /metrics, with a real kubelet and a real containerd.

The tests share one node. Each test starts with all pods running and exposed.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.running import gpuledger, surroundings
from tests.e2e.kubelets import StaticPod
from tests.e2e.ledgers import Ledger, has, of_owners, sockets, uses
from tests.e2e.nodes import MIGS, SHARED, WHOLE, Node, Running, process

BURSTABLE = {"memory": 64 << 20}
GUARANTEED = {"memory": 64 << 20, "cpu": 1}
TRAIN = StaticPod("ml", "train", {"main": {"nvidia.com/gpu": 1}, "log": {}})
CHATS = (
    StaticPod("web", "chat-a", {"model": {"nvidia.com/gpu.shared": 1, **GUARANTEED}}),
    StaticPod("web", "chat-b", {"model": {"nvidia.com/gpu.shared": 1}}),
)
NOTEBOOK = StaticPod("lab", "notebook", {"jupyter": {"nvidia.com/mig-1g.18gb": 1, **BURSTABLE}})
PLAIN = StaticPod("web", "plain", {"nginx": {}})
PODS = (TRAIN, *CHATS, NOTEBOOK, PLAIN)

MAIN = ("ml", "train-node1", "main")
NGINX = ("web", "plain-node1", "nginx")


@pytest.fixture
def running(node: Node, shown: Ledger) -> Running:
    """All pods run, those with devices use them, and the exporter shows them."""
    node.bring_back()
    running = node.run(*PODS)
    node.list_on_gpus(*running.values())
    shown.shows(*running.values())
    return running


def test_pods(shown: Ledger, running: Running) -> None:
    """A whole GPU, a time-sliced GPU with two pods, a MIG device, and pods of each QoS class; no others."""
    given = {(namespace, pod): container.given for (namespace, pod, _), container in running.items() if container.given}
    assert given.pop(("ml", "train-node1")) == (WHOLE,)
    assert given.pop(("lab", "notebook-node1"))[0] in MIGS
    assert set(given) == {("web", "chat-a-node1"), ("web", "chat-b-node1")}
    assert sorted(given.values()) == [(f"{SHARED}::0",), (f"{SHARED}::1",)]

    folders = {key[1]: Path(f"/proc/{container.pid}/cgroup").read_text() for key, container in running.items()}
    assert "/kubepods/besteffort/pod" in folders["train-node1"]
    assert "/kubepods/burstable/pod" in folders["notebook-node1"]
    assert "/kubepods/pod" in folders["chat-a-node1"]

    body = shown.shows(*running.values())
    assert len(of_owners(body)) == 3 * 4
    assert 'pod="plain-node1"' not in body
    assert 'container="log"' not in body
    assert "gpuledger_processes_unresolved{" not in body
    assert "\ngpuledger_attribution_conflicts_total 0\n" in body


def test_explain(node: Node, running: Running) -> None:
    """`explain` shows each step from a pid to its pod and allocated devices."""
    main = running[MAIN]
    explained = gpuledger("explain", str(main.pid), *sockets(node), env=surroundings(node.scenario_path))
    assert explained.returncode == 0, explained.stderr
    for known in (main.pod, main.namespace, main.name, main.id, main.pod_uid, WHOLE):
        assert known in explained.stdout


def test_pod_without_a_device_is_on_a_gpu(node: Node, shown: Ledger, running: Running) -> None:
    """A process on a GPU of another pod belongs to its own pod and counts as a conflict."""
    nginx = running[NGINX]
    node.list_on_gpus(*running.values(), also=(process(nginx, WHOLE),))
    granted = has(running[MAIN], WHOLE, "nvidia.com/gpu")
    body = shown.shows_lines(*uses(nginx, WHOLE), *uses(running[MAIN], WHOLE), granted)
    assert has(nginx, WHOLE, "nvidia.com/gpu") not in body
    shown.shows_lines("gpuledger_attribution_conflicts_total 1")


def test_container_is_killed(node: Node, shown: Ledger, running: Running) -> None:
    """The kubelet restarts the container with the same device; other pods are not affected."""
    main = running.pop(MAIN)
    with shown.always_shows(*running.values()):
        os.kill(main.pid, signal.SIGKILL)
        node.list_on_gpus(*running.values())
        shown.shows_lines(has(main, WHOLE, "nvidia.com/gpu"))
        after = node.run(*PODS, without=main)
        node.list_on_gpus(*after.values())
        body = shown.shows(*after.values())
    assert after[MAIN].pod_uid == main.pod_uid
    assert after[MAIN].given == main.given
    assert f'gpu_process_active{{pid="{main.pid}"' in body  # its energy is retained for a while
    assert {key: container for key, container in after.items() if key != MAIN} == running


def test_pod_is_replaced(node: Node, shown: Ledger, running: Running) -> None:
    """A new pod with the same name has another uid and gets the device; the old pod disappears."""
    main = running[MAIN]
    others = [container for key, container in running.items() if key[1] != main.pod]
    with shown.always_shows(*others):
        after = node.run(replace(TRAIN, version=2), *PODS[1:])
        node.list_on_gpus(*after.values())
        shown.shows(*after.values())
    assert after[MAIN].pod_uid != main.pod_uid
    assert after[MAIN].given == main.given


def test_pod_ends(node: Node, shown: Ledger, running: Running) -> None:
    """When a pod ends, its process, container and device disappear; a new pod is exposed."""
    others = [container for key, container in running.items() if key[1] != running[MAIN].pod]
    with shown.always_shows(*others):
        node.list_on_gpus(*others)
        node.run(*PODS[1:])
        shown.shows(*others)
        late = StaticPod("ml", "late", {"main": {"nvidia.com/gpu": 1}})
        after = node.run(*PODS[1:], late)
        node.list_on_gpus(*after.values())
        shown.shows(*after.values())


def test_kubelet_restarts(node: Node, shown: Ledger, running: Running) -> None:
    """Pods, names and devices do not change during a restart, and the provider is reported as down."""
    with shown.always_shows(*running.values()):
        node.kubelet.kill()
        shown.shows_lines('gpuledger_provider_up{provider="podresources"} 0')
        node.start_kubelet()
        shown.shows_lines('gpuledger_provider_up{provider="podresources"} 1')
        assert node.run(*PODS) == running
        shown.shows(*running.values())


def test_containerd_restarts(node: Node, shown: Ledger, running: Running) -> None:
    """Containers survive a restart of containerd, and so do their metrics."""
    with shown.always_shows(*running.values()):
        node.containerd.kill()
        shown.shows_lines('gpuledger_provider_up{provider="cri"} 0', 'gpuledger_provider_up{provider="podresources"} 1')
        node.containerd.start()
        shown.shows_lines('gpuledger_provider_up{provider="cri"} 1')
        assert node.run(*PODS) == running
        shown.shows(*running.values())


def test_both_restart_and_a_container_with_them(node: Node, shown: Ledger, running: Running) -> None:
    """Changes during the outage are correct afterwards.

    The container has no device: a kubelet that starts before the device plugin rejects pods with devices.
    """
    nginx = running[NGINX]
    node.list_on_gpus(*running.values(), also=(process(nginx, WHOLE),))
    shown.shows_lines(*uses(nginx, WHOLE))
    with shown.always_shows(*running.values()):
        node.kubelet.kill()
        node.containerd.kill()
        os.kill(nginx.pid, signal.SIGKILL)
        node.list_on_gpus(*running.values())
        shown.shows_lines('gpuledger_provider_up{provider="cri"} 0', 'gpuledger_provider_up{provider="podresources"} 0')
        node.bring_back()
        again = node.run(*PODS, without=nginx)[NGINX]
        node.list_on_gpus(*running.values(), also=(process(again, WHOLE),))
        body = shown.shows_lines(*uses(again, WHOLE))
    assert of_owners(body).isdisjoint(uses(nginx, WHOLE))


def test_device_plugins_restart(node: Node, shown: Ledger, running: Running) -> None:
    """Allocations survive a restart of the plugin; afterwards a new pod gets a device."""
    second = StaticPod("lab", "second", {"jupyter": {"nvidia.com/mig-1g.18gb": 1}})
    with shown.always_shows(*running.values()):
        for plugin in node.plugins:
            plugin.stop()
        shown.waits_for_answers("podresources", 2)
        for plugin in node.plugins:
            plugin.start()
        after = node.run(*PODS, second)
        node.list_on_gpus(*after.values())
        shown.shows(*after.values())
    assert {device for container in after.values() for device in container.given if device in MIGS} == set(MIGS)
