"""Pods and servers of language models, whose metrics the exporter reads: they must not send it anywhere else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.cli.running import Running, serving, surroundings
from tests.fakedriver import Gpu, Process, Scenario
from tests.integrations.dcgmexporter.server import Say, Upstream, page, raw, upstream
from tests.owners.kernel.fakeproc import Proc
from tests.owners.providers.api_server import ApiServer, kubeconfig, pod

SECRET = "hunter2"
PAGES = ("/metrics", "/api/v1/snapshot", "/api/v1/history")
POD_IP = "203.0.113.7"
"""Of a network for documentation (RFC 5737): no host has this address."""
GOOD = {"scrape": "true", "port": "8000"}
NODE = {"hostIP": "203.0.113.1"}


def attacks(secret: Upstream) -> list[tuple[dict[str, str], dict[str, object]]]:
    """Annotations and status of pods that name a server other than their own."""
    host = secret.root.removeprefix("http://")
    port = host.rpartition(":")[2]
    annotations = [
        {"scheme": f"http://{host}/metrics?"},
        {"scheme": f"http://{host}/metrics#"},
        {"scheme": f"http://{host}/"},
        {"scheme": f"//{host}/metrics?http"},
        {"scheme": "HTTP"},
        {"scheme": "ftp"},
        {"scheme": "file"},
        {"port": f"80@{host}"},
        {"port": f"80@{host}/metrics?"},
        {"port": f"80 {host}"},
        {"port": "0"},
        {"port": "99999"},
        {"port": "-1"},
        {"port": "\uff18\uff10"},
        {"path": f"//{host}/metrics"},
        {"path": "/a b"},
        {"path": "/a\r\nHost: evil"},
        {"path": f"/a\nGET http://{host}/metrics HTTP/1.1"},
    ]
    addresses: list[dict[str, object]] = [
        {"podIP": address}
        for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "127.1", "localhost", "169.254.169.254")
    ]
    addresses += [{"podIP": "127.0.0.1", "hostIP": "127.0.0.1"}, {"podIP": f"{host}/metrics?"}]
    return [(more, {}) for more in annotations] + [({"port": port}, status) for status in addresses]


@contextmanager
def cluster(folder: Path, pods: list[tuple[dict[str, str], dict[str, object]]], **env: str) -> Iterator[Running]:
    """An exporter that reads the annotated pods of its node, each with a process on the GPU."""
    (folder / "proc").mkdir()
    proc, processes = Proc(folder / "proc"), []
    with contextlib.closing(ApiServer()) as api:
        for number, (annotations, status) in enumerate(pods):
            uid = f"7f2c1f0e-1b2a-4c3d-9e8f-{number:012x}"
            about = {f"prometheus.io/{name}": value for name, value in (GOOD | annotations).items()}
            item = pod(f"p{number}", uid=uid, metadata={"annotations": about})
            item["status"] |= NODE | {"podIP": POD_IP} | status
            api.put(item)
            slice_ = f"kubepods-pod{uid.replace('-', '_')}.slice"
            proc.add(71 + number, cgroup=f"0::/kubepods.slice/{slice_}/cri-containerd-{number:064x}.scope\n")
            processes.append(Process(0, 71 + number, sm=1))
        scenario = Scenario([Gpu(0, uuid="GPU-a")], processes).write(folder / "scenario")
        flags = (
            "--tick.interval=100ms", "--environment=none", f"--path.procfs={proc.root}", "--log.level=debug",
            f"--kubernetes.kubeconfig={kubeconfig(api.port, folder)}", "--kubernetes.api",
            "--kubernetes.node-name=n1", "--tokens.scrape=annotations", "--tokens.interval=1s", "--tokens.timeout=1s",
        )  # fmt: skip
        with serving("serve", *flags, env=surroundings(scenario, **env)) as exporter:
            yield exporter


def test_annotations_of_pods(tmp_path: Path) -> None:
    """Pods name other hosts in their annotations: only the pod's own address gets requests, and no proxy does."""
    with ExitStack() as stack:
        secret = stack.enter_context(upstream(page(f"{SECRET}\n".encode())))
        proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"), secret.root)
        pods: list[tuple[dict[str, str], dict[str, object]]] = [({}, {}), *attacks(secret)]
        exporter = stack.enter_context(cluster(tmp_path, pods, **proxies))
        exporter.metrics(r'^gpuledger_tokens_failures_total\{.*server="ml/p0"', within_s=20)
        exporter.metrics(f'^container_gpu_.*pod="p{len(pods) - 1}"')
        pages = [exporter.get(path) for path in PAGES]
        _, _, log = exporter.stop()

    assert secret.asked == []
    assert SECRET not in "".join(pages) + log
    assert [server["server"] for server in json.loads(pages[1])["servers"]] == ["ml/p0"]


ANSWERS = {
    "no metrics": page(f"{SECRET}\n".encode()),
    "malformed labels": page(f"a{{{SECRET}}} 1\n".encode()),
    "unknown type": page(f"# TYPE a {SECRET}\n".encode()),
    "no HTTP": raw(f"{SECRET}\r\n\r\n".encode()),
    "status": raw(f"HTTP/1.1 {SECRET}\r\n\r\n".encode()),
    "encoding": page(b"", "200 OK", f"Content-Encoding: {SECRET}"),
    "gzip": page(SECRET.encode(), "200 OK", "Content-Encoding: gzip"),
    "chunk": raw(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{SECRET}\r\n".encode()),
    "refusal": page(SECRET.encode(), "403 " + SECRET),
}


@pytest.fixture
def scenario(tmp_path: Path) -> dict[str, str]:
    """A host with one GPU."""
    return surroundings(Scenario([Gpu(0, uuid="GPU-a")], []).write(tmp_path / "scenario"))


def read_all(env: dict[str, str], servers: dict[str, Upstream]) -> tuple[str, str]:
    """The snapshot, and all pages with the log, after each server failed."""
    flags = [f"--tokens.scrape=ml/{name}={server.url}?token={SECRET}" for name, server in servers.items()]
    with serving("serve", "--tick.interval=100ms", "--log.level=debug", *flags, env=env) as exporter:
        for name in servers:
            exporter.metrics(rf'^gpuledger_tokens_failures_total\{{.*server="ml/{name}"')
        pages = [exporter.get(path) for path in PAGES]
        _, _, log = exporter.stop()
    return pages[1], "".join(pages) + log


def test_answers_that_are_no_metrics(scenario: dict[str, str]) -> None:
    """A server answers with anything but metrics: no page and no log shows a part of the answer, or of its URL."""
    answers: dict[str, Say] = {name.replace(" ", "-"): say for name, say in ANSWERS.items()}
    answers["no-tokens"] = page(f'a{{x="{SECRET}"}} 1\n'.encode())
    with ExitStack() as stack:
        servers = {name: stack.enter_context(upstream(say)) for name, say in answers.items()}
        snapshot, shown = read_all(scenario, servers)

    assert len(json.loads(snapshot)["problems"]) >= len(answers)
    assert SECRET not in shown


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
def test_redirects(scenario: dict[str, str], status: str) -> None:
    """A server redirects to an internal API: the redirect is not followed."""
    with upstream(page(f"{SECRET}\n".encode())) as internal:
        with upstream(page(b"", status, f"Location: {internal.url}", f"Refresh: 0; url={internal.url}")) as server:
            _, shown = read_all(scenario, {"chat": server})

        assert internal.asked == []
    assert "redirects are not followed" in shown
    assert SECRET not in shown
