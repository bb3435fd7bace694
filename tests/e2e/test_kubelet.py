"""From a pod's process to its names and devices on /metrics, with a real kubelet and a real containerd.

The tests share one node. Each begins with all pods running and shown, whatever the one before has left behind.
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
    """All pods run, those with devices work on them, and it shows."""
    node.bring_back()
    running = node.run(*PODS)
    node.list_on_gpus(*running.values())
    shown.shows(*running.values())
    return running


def test_pods(shown: Ledger, running: Running) -> None:
    """A whole GPU, a time-sliced one with two pods, a MIG device, pods of each class; others are not shown."""
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
    """The way from a pid to its pod is told step by step, with what the kubelet gave it."""
    main = running[MAIN]
    told = gpuledger("explain", str(main.pid), *sockets(node), env=surroundings(node.scenario_path))
    assert told.returncode == 0, told.stderr
    for known in (main.pod, main.namespace, main.name, main.id, main.pod_uid, WHOLE):
        assert known in told.stdout


def test_pod_without_a_device_is_on_a_gpu(node: Node, shown: Ledger, running: Running) -> None:
    """A process on another pod's GPU is its own pod's, and counted as a conflict."""
    nginx = running[NGINX]
    node.list_on_gpus(*running.values(), also=(process(nginx, WHOLE),))
    granted = has(running[MAIN], WHOLE, "nvidia.com/gpu")
    body = shown.shows_lines(*uses(nginx, WHOLE), *uses(running[MAIN], WHOLE), granted)
    assert has(nginx, WHOLE, "nvidia.com/gpu") not in body
    shown.shows_lines("gpuledger_attribution_conflicts_total 1")


def test_container_is_killed(node: Node, shown: Ledger, running: Running) -> None:
    """The kubelet starts it again: another container of the same pod, with the same device; the other pods go on."""
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
    assert f'gpu_process_active{{pid="{main.pid}"' in body  # its joules stay a while
    assert {key: container for key, container in after.items() if key != MAIN} == running


def test_pod_is_replaced(node: Node, shown: Ledger, running: Running) -> None:
    """Another pod of the same name has another uid and takes the device over; nothing of the old one stays."""
    main = running[MAIN]
    others = [container for key, container in running.items() if key[1] != main.pod]
    with shown.always_shows(*others):
        after = node.run(replace(TRAIN, version=2), *PODS[1:])
        node.list_on_gpus(*after.values())
        shown.shows(*after.values())
    assert after[MAIN].pod_uid != main.pod_uid
    assert after[MAIN].given == main.given


def test_pod_ends(node: Node, shown: Ledger, running: Running) -> None:
    """With the pod go its process, its container and its device; a new one of another kind is shown in turn."""
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
    """Pods, names and devices stay as they are while it is down and once it is back, and it shows that it was down."""
    with shown.always_shows(*running.values()):
        node.kubelet.kill()
        shown.shows_lines('gpuledger_provider_up{provider="podresources"} 0')
        node.start_kubelet()
        shown.shows_lines('gpuledger_provider_up{provider="podresources"} 1')
        assert node.run(*PODS) == running
        shown.shows(*running.values())


def test_containerd_restarts(node: Node, shown: Ledger, running: Running) -> None:
    """The same for containerd, whose containers outlive it."""
    with shown.always_shows(*running.values()):
        node.containerd.kill()
        shown.shows_lines('gpuledger_provider_up{provider="cri"} 0', 'gpuledger_provider_up{provider="podresources"} 1')
        node.containerd.start()
        shown.shows_lines('gpuledger_provider_up{provider="cri"} 1')
        assert node.run(*PODS) == running
        shown.shows(*running.values())


def test_both_restart_and_a_container_with_them(node: Node, shown: Ledger, running: Running) -> None:
    """What changed while nobody could be asked is right once they are back.

    The container has no device of its own: a kubelet that is there before the device plugin turns such a pod away.
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
    """Devices stay with their pods while no plugin offers them; once it does, a new pod gets one and shows it."""
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
