"""The README's commands for Kubernetes, `kubectl create`, `kubectl label` and `helm install`, on a real API server.

kubectl is not built here: its two commands are the requests that they send. helm is real.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator

import pytest

from tests.checkout import ROOT
from tests.e2e.build import built
from tests.e2e.clusters import Cluster, a_cluster
from tests.readme import command

REGISTRY = "registry.example/team"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """An empty cluster."""
    with a_cluster() as cluster:
        yield cluster


def test_the_commands_install_the_exporter(cluster: Cluster) -> None:
    """In this order: the namespace with its label, then the chart, whose DaemonSet has the image of the registry."""
    create = shlex.split(command("kubectl create namespace"))
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": create[3]}})
    label = shlex.split(command("kubectl label namespace"))
    name, _, value = label[4].partition("=")
    place = f"/api/v1/namespaces/{label[3]}"
    namespace = cluster.ask("GET", place)
    namespace["metadata"]["labels"][name] = value
    cluster.ask("PUT", place, namespace)

    words = shlex.split(command("helm install").replace("REGISTRY", REGISTRY))
    argv = [str(built("helm")), *words[1:]]
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig())}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "violate PodSecurity" not in done.stderr
    installed = cluster.ask("GET", f"/apis/apps/v1/namespaces/{label[3]}/daemonsets/gpuledger")
    pod = installed["spec"]["template"]["spec"]
    assert pod["runtimeClassName"] == "nvidia"
    assert pod["containers"][0]["image"].startswith(f"{REGISTRY}/gpuledger:")
