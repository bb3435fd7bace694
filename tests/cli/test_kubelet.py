"""`serve` on a node where the kubelet is the only provider of names."""

from __future__ import annotations

import re

from tests.cli.running import serving
from tests.owners.providers.kubelet_node import CONTAINER, UID, kubelet_node

NAMED = (
    'namespace="ml"', 'pod="llama-0"', 'container="main"', f'pod_uid="{UID}"', f'container_id="{CONTAINER}"',
)  # fmt: skip


def test_processes_and_containers_have_the_pod() -> None:
    """Each of their series, of every path that has processes, names the pod, though no provider reports its uid."""
    with kubelet_node("llama-0") as node, serving("serve", *node.flags, env=node.env) as server:
        native = server.metrics('^container_gpu_energy_joules_total{.*pod="llama-0"')
        process = server.metrics('pod="llama-0"', "/process/metrics")

    for body, wanted in ((native, r"gpu_process_\w+{|container_gpu_(energy|memory|processes)"), (process, r".*{pid=")):
        series = [line for line in body.splitlines() if re.match(wanted, line)]
        assert len(series) > 10
        assert [line for line in series if not all(label in line for label in NAMED)] == []


def test_no_pod_is_guessed() -> None:
    """With two pods on the GPU, processes have the uid and no name."""
    with kubelet_node("a", "b") as node, serving("serve", *node.flags, env=node.env) as server:
        body = server.metrics('^gpu_pod_allocation_info{.*pod="b"')

    series = [line for line in body.splitlines() if line.startswith("gpu_process_active{")]
    assert len(series) == 2
    assert all(f'pod="",container="",pod_uid="{UID}"' in line for line in series)
