"""Own views with a real API server: reviews of tokens, `kubectl gpu` through its proxy, and Events on pods."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import bcrypt
import pytest
import yaml

from tests.cli.running import Running, gpuledger, serving, surroundings
from tests.e2e.build import built
from tests.e2e.clusters import Cluster, Json, a_cluster
from tests.real.history import History, remembering
from tests.waiting import free_port, wait_until
from tests.web.logins import basic

NAMESPACE = "gpuledger"
GROUP = "rbac.authorization.k8s.io"
READ_PODS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
TENANTS = {"alice": "ml", "bob": "search"}
"""Service accounts, and the namespace whose pods each may read."""
POD = "llama-finetune-0"
"""A pod of the demo in the namespace ml."""


def own_address() -> str:
    """An address of this host that is no loopback address: the API server forwards to no other ones."""
    words = Path("/proc/net/fib_trie").read_text().split()
    local = [words[n - 2] for n, word in enumerate(words) if word == "host" and words[n + 1] == "LOCAL"]
    return next(address for address in local if not address.startswith("127."))


@dataclass
class World:
    """A cluster with two tenants, and the exporter in a pod of it."""

    cluster: Cluster
    exporter: Running
    tokens: dict[str, str]

    def kubectl_gpu(self, user: str, *words: str) -> tuple[int, Any, str]:
        """Exit code, answer and errors of the plugin, as a tenant runs it."""
        token = self.tokens.get(user)
        config = self.cluster.kubeconfig(token) if token else self.cluster.kubeconfig()
        code = "import sys; from gpuledger.cli.kubectl import main; sys.exit(main())"
        command = [sys.executable, "-c", code, *words, "-o", "json", f"--kubeconfig={config}"]
        done = subprocess.run([*command, f"--kubectl={built('kubectl')}"], capture_output=True, text=True, check=False)
        return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Status and text of a page of the exporter itself."""
        with closing(http.client.HTTPConnection(urlsplit(self.exporter.url).netloc, timeout=20)) as client:
            client.request("GET", path, headers=headers)
            response = client.getresponse()
            return response.status, response.read().decode()


def role(cluster: Cluster, namespace: str, name: str, rules: list[Json], subjects: list[Json]) -> None:
    """A Role and its binding."""
    metadata = {"name": name, "namespace": namespace}
    cluster.create({"apiVersion": f"{GROUP}/v1", "kind": "Role", "metadata": metadata, "rules": rules})
    reference = {"apiGroup": GROUP, "kind": "Role", "name": name}
    binding = {"apiVersion": f"{GROUP}/v1", "kind": "RoleBinding", "metadata": metadata, "roleRef": reference}
    cluster.create(binding | {"subjects": subjects})


def subject(name: str, namespace: str) -> Json:
    """A service account."""
    return {"kind": "ServiceAccount", "name": name, "namespace": namespace}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The demo as the exporter of a node, with the permissions of the chart."""
    folder = tmp_path_factory.mktemp("own-view")
    with a_cluster() as cluster:
        for namespace in (NAMESPACE, "ml", "search", "serving", "research"):
            cluster.ensure_namespace(namespace)
        accounts = {**TENANTS, "exporter": NAMESPACE, "notify": NAMESPACE}
        for name, namespace in accounts.items():
            metadata = {"name": name, "namespace": namespace}
            cluster.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        tokens = {name: cluster.token_of(namespace, name) for name, namespace in accounts.items()}
        for name, namespace in TENANTS.items():
            role(cluster, namespace, "developer", READ_PODS, [subject(name, namespace)])
        proxy = {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]}
        viewers = [subject(name, namespace) for name, namespace in TENANTS.items()]
        role(cluster, NAMESPACE, "gpuledger-viewer", [*READ_PODS, proxy], viewers)
        cluster.create({
            "apiVersion": f"{GROUP}/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "gpuledger-reviews"},
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "system:auth-delegator"},
            "subjects": [subject("exporter", NAMESPACE)],
        })  # fmt: skip
        (folder / "web.yml").write_text(yaml.safe_dump({
            "basic_auth_users": {"root": bcrypt.hashpw(b"pw", bcrypt.gensalt(4)).decode()},
            "own_view": {
                "roles": {"root": "all"},
                "kubernetes": {"kubeconfig": str(cluster.kubeconfig(tokens["exporter"])), "roles": {"admin": "all"}},
            },
        }))  # fmt: skip
        host, port = own_address(), free_port()
        flags = (f"--web.config.file={folder / 'web.yml'}", f"--web.listen-address={host}:{port}")
        with serving("demo", *flags, env=surroundings()) as exporter:
            pod_of_exporter(cluster, host, port)
            world = World(cluster, exporter, tokens)
            # The first tick, and the API server's own cache of bindings.
            wait_until(lambda: world.get("/api/v1/snapshot", Authorization=f"Bearer {tokens['alice']}")[0] == 200)
            yield world


def pod_of_exporter(cluster: Cluster, host: str, port: int) -> None:
    """The pod in which the exporter would run; no kubelet reports its status."""
    labels = {"app.kubernetes.io/part-of": "gpuledger", "app.kubernetes.io/component": "exporter"}
    container = {"name": "gpuledger", "image": "gpuledger", "ports": [{"name": "metrics", "containerPort": port}]}
    cluster.create({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "gpuledger-x", "namespace": NAMESPACE, "labels": labels},
        "spec": {"nodeName": "n1", "containers": [container]},
    })  # fmt: skip
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/gpuledger-x"
    pod = cluster.ask("GET", path)
    cluster.ask(
        "PUT", f"{path}/status", pod | {"status": {"phase": "Running", "podIP": host, "podIPs": [{"ip": host}]}}
    )


def test_each_tenant_sees_its_own_pods(world: World) -> None:
    """With the tenant's token through the API server's proxy; the namespace of another one is empty."""
    for name, namespace in TENANTS.items():
        code, rows, errors = world.kubectl_gpu(name, "top", "pods", "-A")
        assert errors == ""
        assert code == 0
        assert {row["namespace"] for row in rows} == {namespace}
        (node,) = world.kubectl_gpu(name, "top", "nodes")[1]
        assert node["own_view_of"] == f"system:serviceaccount:{namespace}:{name}"
    assert world.kubectl_gpu("alice", "top", "pods", "-n", "search")[:2] == (0, [])
    assert world.kubectl_gpu("alice", "why", POD, "-n", "ml")[0] == 0
    assert world.kubectl_gpu("bob", "why", POD, "-A")[0] == 1
    costs = world.kubectl_gpu("bob", "cost", "-A", "--price-gpu-hour=2")[1]
    assert [row["owner"].partition("/")[0] for row in costs] == ["search"]


def test_the_administrator_sees_everything(world: World) -> None:
    """By the role of a user of Kubernetes."""
    rows = world.kubectl_gpu("admin", "top", "pods", "-A")[1]
    assert {row["namespace"] for row in rows} >= {"ml", "search", "serving"}


def test_without_the_role_of_viewers(world: World) -> None:
    """The API server itself refuses, and the message names the role."""
    code, _, errors = world.kubectl_gpu("notify", "top", "pods")
    assert code == 1
    assert "cannot list the exporters in namespace gpuledger" in errors
    assert "gpuledger-viewer" in errors


def test_tokens_at_the_exporter_itself(world: World) -> None:
    """A valid token is reviewed; a made-up one, and that of a service account that was deleted, see nothing."""
    status, text = world.get("/api/v1/snapshot", Authorization=f"Bearer {world.tokens['alice']}")
    assert (status, {row["namespace"] for row in json.loads(text)["containers"]}) == (200, {"ml"})
    assert world.get("/metrics", Authorization=f"Bearer {world.tokens['alice']}")[0] == 403
    assert world.get("/api/v1/snapshot", Authorization=f"Bearer {world.tokens['alice'][:-3]}xyz")[0] == 401
    assert world.get("/api/v1/snapshot")[0] == 401


def test_without_an_api_server(world: World) -> None:
    """The view closes, with a problem for the administrator; afterwards it opens."""
    world.cluster.kill_api()
    try:
        status, text = world.get("/api/v1/snapshot", Authorization="Bearer another")
        assert (status, text) == (503, "the API server did not review the request; try again later\n")

        def problems() -> str:
            return world.get("/api/v1/snapshot", Authorization=basic("root", "pw"))[1]

        wait_until(lambda: '"about":"own view"' in problems())
    finally:
        world.cluster.start_api()
    assert world.get("/api/v1/snapshot", Authorization="Bearer another")[0] == 401


def test_an_event_on_a_pod(world: World, tmp_path: Path) -> None:
    """`fleet --notify` creates one Event, with the permissions in the docs."""
    cluster = world.cluster
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]
    role(cluster, "ml", "gpuledger-notify", rules, [subject("notify", NAMESPACE)])
    container = {"name": "trainer", "image": "ml/trainer"}
    cluster.create({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD, "namespace": "ml"},
        "spec": {"nodeName": "n1", "containers": [container]},
    })  # fmt: skip
    now = int(time.time())
    times = [now - 60 * n for n in range(200, -1, -1)]
    labels = {"job": "gpuledger", "node": "n1", "gpu": "0", "uuid": "GPU-1", "namespace": "ml", "pod": POD,
              "container": "trainer"}  # fmt: skip
    history = History()
    for name, value in (
        ("gpu_allocation_idle_since_timestamp_seconds", now - 7200.0),
        ("gpu_allocation_idle_period_gpu_seconds", 7200.0),
        ("gpu_allocation_idle_period_energy_joules", 6e5),
        ("gpu_allocation_shared_by", 1.0),
    ):  # fmt: skip
        history.add(name, labels, [(moment, value) for moment in times])
    history.add("gpu_allocation_state", {**labels, "state": "no_process"}, [(moment, 1.0) for moment in times])
    (tmp_path / "notify.yml").write_text(json.dumps({
        "rules": {"idle": "1h"}, "events": True, "state": str(tmp_path / "state.json"),
        "kubernetes": {"kubeconfig": str(cluster.kubeconfig(world.tokens["notify"]))},
    }))  # fmt: skip
    with remembering(history) as server:
        for _ in range(2):
            words = ("fleet", "--once", "--notify", f"--notify.config={tmp_path / 'notify.yml'}")
            done = gpuledger(*words, f"--prometheus.url={server.url}")
            assert (done.returncode, done.stderr) == (0, "")

    (event,) = cluster.ask("GET", "/api/v1/namespaces/ml/events")["items"]
    assert event["involvedObject"]["name"] == POD
    assert event["reason"] == "GpuIdle"
    assert "for 2h00m (no process)" in event["message"]
