"""`kubectl gpu` in front of a real exporter that replays the demo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import bcrypt
import pytest
import yaml

from gpuledger.cli import kubectl
from tests.cli.running import Running, serving, surroundings
from tests.owners.providers.api_server import kubeconfig
from tests.tools.kubectl.fakecluster import FakeCluster
from tests.waiting import wait_until
from tests.web.review_server import OWN_TOKEN, ReviewServer


@pytest.fixture(scope="module")
def demo() -> Iterator[Running]:
    """An exporter that shows everything to everybody."""
    with serving("demo", env=surroundings()) as exporter:
        exporter.metrics("^container_gpu_energy_joules_total.*pod=")
        yield exporter


@pytest.fixture
def cluster(demo: Running, tmp_path: Path) -> FakeCluster:
    """A cluster with two nodes; both exporters are the same."""
    port = urlsplit(demo.url).port or 0
    return FakeCluster(tmp_path, {"a": port, "b": port})


class Shell:
    """Runs the plugin."""

    def __init__(self, cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
        self._cluster, self._capsys = cluster, capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Exit code, output and errors."""
        self._cluster.write()
        code = kubectl.main([*words, f"--kubectl={self._cluster.kubectl}"])
        return (code, *self._capsys.readouterr())

    def json(self, *words: str) -> Any:
        """The answer as JSON."""
        code, out, errors = self(*words, "-o", "json")
        assert (code, errors) == (0, "")
        return json.loads(out)


@pytest.fixture
def run(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> Shell:
    """The plugin on this cluster."""
    return Shell(cluster, capsys)


def test_pods_of_all_namespaces(run: Shell) -> None:
    """Each pod on each node, with the columns of `top --once`, the most memory first."""
    rows = run.json("top", "pods", "-A")
    assert {row["node"] for row in rows} == {"recording"} or len({row["node"] for row in rows}) == 1
    assert all(row["pod"] for row in rows)
    assert [row["memory_bytes"] for row in rows] == sorted((row["memory_bytes"] for row in rows), reverse=True)
    code, text, _ = run("top", "po", "-A", "-o", "wide")
    assert code == 0
    head, *lines = text.splitlines()
    assert head.split()[:4] == ["NODE", "GPU", "PROC", "OWNER"]
    assert {"WORKLOAD", "IMAGE", "MEM", "WATTS", "kJ"} <= set(head.replace("▼", "").split())
    assert len(lines) == len(rows)
    assert all(f"{row['namespace']}/{row['pod']}" in text for row in rows)


def test_one_namespace(run: Shell, cluster: FakeCluster) -> None:
    """That of -n, or of the context."""
    everything = run.json("top", "pods", "-A")
    names = sorted({row["namespace"] for row in everything})
    for name in names:
        assert {row["namespace"] for row in run.json("top", "pods", "-n", name)} == {name}
    cluster.namespace = names[0]
    assert {row["namespace"] for row in run.json("top", "pods")} == {names[0]}
    cluster.namespace = "empty"
    assert run("top", "pods") == (0, "", "kubectl-gpu: nothing to show in empty\n")


def test_nodes(run: Shell) -> None:
    """The GPUs of each node, whatever the namespace is."""
    rows = run.json("top", "nodes")
    assert [(row["gpus"], row["up"]) for row in rows] == [(4, 4), (4, 4)]
    assert all(0 < row["memory_used_bytes"] < row["memory_total_bytes"] for row in rows)
    code, text, _ = run("top", "no")
    assert code == 0
    assert text.splitlines()[0].split()[:3] == ["NODE", "GPUS", "IN"]


def test_idle_cost_and_why(run: Shell) -> None:
    """Costs are hours times price plus energy times price; why tells allocation, processes, memory and energy."""
    prices = ("--price", "0.30", "--price-gpu-hour", "2", "--currency", "EUR")
    costs = run.json("cost", "-A", *prices)
    assert costs
    for row in costs:
        assert row["cost"] == pytest.approx(2 * row["gpu_hours"] + 0.3 * (row["kwh"] or 0), rel=1e-6)
    code, text, _ = run("cost", "-A", *prices)
    assert (code, text.splitlines()[0].split()) == (0, ["NODE", "OWNER", "GPU-H", "kWh", "COST", "EUR"])

    for row in run.json("idle", "-A"):
        assert row["idle_seconds"] >= 0
    pod = run.json("top", "pods", "-A")[0]
    code, text, _ = run("why", pod["pod"], "-n", pod["namespace"])
    assert code == 0
    assert f"{pod['namespace']}/{pod['pod']}" in text
    assert "GiB listed by the driver" in text
    assert "estimated by" in text or "measured" in text
    assert run("why", "nothing") == (
        1, "", "kubectl-gpu: no exporter knows a pod nothing that you may see; add -n NAMESPACE or -A\n",
    )  # fmt: skip


def test_flags_of_kubectl_are_passed_on(run: Shell, cluster: FakeCluster) -> None:
    """Context and kubeconfig count for the connection and for the default namespace."""
    run("top", "nodes", "--context", "prod", "--kubeconfig", "/k/c")
    assert cluster.calls
    assert all(call[:2] == ["--context=prod", "--kubeconfig=/k/c"] for call in cluster.calls)


def test_failures(run: Shell, cluster: FakeCluster) -> None:
    """One line each, with a fix; one node that does not answer hides no other."""
    cluster.pods = 403, {"kind": "Status", "message": 'pods is forbidden: User "eve"'}
    code, _, errors = run("top", "nodes")
    assert (code, errors) == (1, (
        'kubectl-gpu: cannot list the exporters in namespace gpuledger: pods is forbidden: User "eve"; ask an '
        "administrator for the role gpuledger-viewer; docs/own-view.md has it\n"
    ))  # fmt: skip
    cluster.pods = 200, {"items": [{"metadata": {"name": "x"}, "status": {"phase": "Pending"}}]}
    assert "has no running exporter" in run("top", "nodes")[2]
    cluster.pods = None
    cluster.ports = {**cluster.ports, "c": 1}
    code, text, errors = run("top", "nodes")
    assert code == 0
    assert len(text.splitlines()) == 3
    assert errors.startswith("kubectl-gpu: node-c: ")
    cluster.proxy_error = "error: no context"
    assert run("top", "nodes")[2] == "kubectl-gpu: kubectl proxy failed: error: no context; check `kubectl version`\n"
    assert kubectl.main(["top", "nodes", "--kubectl=/nothing"]) == 1


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Running, ReviewServer]]:
    """The demo, with own views for users of Kubernetes."""
    reviews = ReviewServer({"t-alice": "alice", "t-nobody": "nobody"}, {"alice": {"vision", "ml", "nlp"}})
    path = kubeconfig(reviews.port, tmp_path, prefix="/k8s", token=OWN_TOKEN)
    users = {"basic_auth_users": {"admin": bcrypt.hashpw(b"pw", bcrypt.gensalt(4)).decode()}}
    own = {"own_view": {"kubernetes": {"kubeconfig": str(path)}, "roles": {"admin": "all"}}}
    (tmp_path / "web.yml").write_text(yaml.safe_dump(users | own))
    with serving("demo", f"--web.config.file={tmp_path / 'web.yml'}", env=surroundings()) as exporter:
        yield exporter, reviews
    reviews.close()


def test_own_views(guarded: tuple[Running, ReviewServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The user's token goes through the proxy, only to exporters that require it, and shows own pods only."""
    port = urlsplit(guarded[0].url).port or 0
    cluster = FakeCluster(tmp_path, {"a": port})
    run = Shell(cluster, capsys)
    code, _, errors = run("top", "pods", "-A")
    assert code == 1
    assert "status 401" in errors
    assert "log in with a token" in errors

    cluster.user = {"token": "t-nobody"}
    assert run("top", "pods", "-A")[:2] == (0, "")
    guarded[1].readable["alice"] = {guarded[1].reviews[-1][1]["resourceAttributes"]["namespace"]}
    (allowed,) = guarded[1].readable["alice"]
    plugin = tmp_path / "plugin"
    answer = json.dumps({"status": {"token": "t-alice"}})
    plugin.write_text(f"#!/bin/sh\necho login >> {tmp_path}/logins\n[ \"$MODE\" = x ] && echo '{answer}'\n")
    plugin.chmod(0o755)
    cluster.user = {"exec": {"command": str(plugin), "env": [{"name": "MODE", "value": "x"}], "apiVersion": "v1"}}
    cluster.ports = dict.fromkeys("abcdef", port)
    rows = run.json("top", "pods", "-A")
    assert {row["namespace"] for row in rows} == {allowed}
    assert (tmp_path / "logins").read_text() == "login\n"  # once, however many exporters there are
    cluster.ports = {"a": port}
    (node,) = run.json("top", "nodes")
    assert node["own_view_of"] == "alice"

    for user in ({"tokenFile": "/nothing"}, {"exec": {"command": "/nothing"}}):
        cluster.user = user
        code, text, errors = run("top", "pods", "-A")
        assert (code, text) == (1, "")
        assert "/nothing: No such file or directory" in errors


def test_the_proxy_ends_with_the_plugin(cluster: FakeCluster, tmp_path: Path) -> None:
    """It has the rights of the user: a plugin that is stopped leaves no proxy behind."""
    cluster.pods_after_s = 30
    cluster.write()
    code = "import sys; from gpuledger.cli.kubectl import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "top", "nodes", f"--kubectl={cluster.kubectl}"]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path)}) as plugin:
        pid = tmp_path / "proxy"
        wait_until(lambda: pid.exists() and pid.read_text())
        proxy = int(pid.read_text())
        plugin.terminate()
        assert plugin.wait(20) == 130
    wait_until(lambda: not Path(f"/proc/{proxy}").exists())
    assert list(tmp_path.glob("kubectl-gpu-*")) == []
