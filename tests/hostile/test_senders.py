"""Servers that the exporter reads: secrets in their addresses, and answers that would fill its memory."""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests import fakedriver
from tests.cli.running import COMMAND, Running, gpuledger, serving, surroundings
from tests.integrations.dcgmexporter.server import page, upstream
from tests.owners.providers.api_server import ApiServer, kubeconfig
from tests.owners.providers.docker_server import FakeDocker
from tests.owners.providers.kubelet_server import GrpcServer

SECRET = "hunter2"


def read(exporter: Running, path: str) -> str:
    """The body of a page, whatever its status is."""
    try:
        with urllib.request.urlopen(exporter.url + path, timeout=10) as response:
            return str(response.read().decode())
    except HTTPError as error:
        with error:
            return error.read().decode()


def test_tokens_in_addresses(tmp_path: Path) -> None:
    """A client reads all pages while the dcgm-exporter cannot be reached: none contains the token in its URL."""
    scenario = fakedriver.h200_node(gpus=1, processes=0).write(tmp_path / "scenario")
    url = f"--dcgm-exporter.url=http://127.0.0.1:1/metrics?token={SECRET}&{SECRET}"
    with serving("serve", url, "--log.level=debug", env=surroundings(scenario)) as exporter:
        exporter.metrics("^gpuledger_upstream_failures_total.* [1-9]")
        pages = [read(exporter, path) for path in ("/gpu/metrics", "/api/v1/snapshot", "/api/v1/history", "/metrics")]
        _, _, log = exporter.stop()

    assert "http://127.0.0.1:1/metrics?token=***&***: Connection refused" in pages[0]
    assert "token=***" in log
    assert SECRET not in "".join(pages) + log


@pytest.mark.parametrize(
    "flag",
    [
        f"--docker.host=tcp://user:{SECRET}@127.0.0.1:2375",
        f"--docker.host=tcp://{SECRET}@127.0.0.1:2375",
        f"--docker.host=tcp://127.0.0.1:2375?token={SECRET}",
        f"--dcgm-exporter.url=http://user:{SECRET}@127.0.0.1:9400/metrics",
        f"--dcgm-exporter.url=http://user:/{SECRET}@127.0.0.1:9400/metrics",
        f"--dcgm-exporter.url=htp://127.0.0.1:9400/metrics?token={SECRET}",
    ],
)
def test_passwords_in_addresses(flag: str) -> None:
    """Addresses contain credentials that cannot be used: they are refused, by a message that does not contain them."""
    done = gpuledger("serve", flag, "--web.listen-address=127.0.0.1:0")

    assert done.returncode == 2
    assert "***" in done.stderr
    assert SECRET not in done.stderr


def test_passwords_in_docker_host(tmp_path: Path) -> None:
    """DOCKER_HOST contains credentials: they appear neither in the log nor on a page."""
    scenario = fakedriver.h200_node(gpus=1, processes=0).write(tmp_path / "scenario")
    env = surroundings(scenario, DOCKER_HOST=f"tcp://user:{SECRET}@127.0.0.1:1")
    with serving("serve", "--environment=docker", "--log.level=debug", env=env) as exporter:
        exporter.metrics("^gpuledger_up 1")
        pages = [read(exporter, path) for path in ("/api/v1/snapshot", "/metrics")]
        _, _, log = exporter.stop()

    assert SECRET not in "".join(pages) + log


MEMORY_MB = 128.0
"""Half of the limit in the chart. The exporter itself takes 40 MB."""


def tiny(kind: str) -> bytes:
    """About 16 MiB of objects without entries, or with one."""
    if kind == "objects":
        return b"[" + b"{}," * (5 << 20) + b"{}]"
    return b"[" + b",".join(b'{"k%x":"v%x"}' % (number, number) for number in range(750_000)) + b"]"


def answered(body: bytes) -> bytes:
    """A response with this body."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def read_log(exporter: Running, wanted: str) -> str:
    """The log, once it matches."""
    deadline = time.monotonic() + 15
    while not re.search(wanted, log := exporter.log.read_text()):
        assert time.monotonic() < deadline, log
        time.sleep(0.05)
    return log


def peak_mb(pid: int) -> float:
    """The largest resident memory of a process so far: 0 if it has exited."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int((status.partition("VmHWM:")[2].split() or ["0"])[0]) / 1024


def run_measured(*words: str) -> tuple[int, str, float]:
    """Exit code, standard error and largest resident memory of a command."""
    peak = 0.0
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen([*COMMAND, *words], env=surroundings(), stdout=subprocess.DEVNULL, stderr=errors) as process,
    ):
        while process.poll() is None:
            with contextlib.suppress(OSError):
                peak = max(peak, peak_mb(process.pid))
            time.sleep(0.002)
        errors.seek(0)
        return process.returncode, errors.read().decode(), peak


@pytest.fixture
def scenario(tmp_path: Path) -> dict[str, str]:
    """A host with one GPU."""
    return surroundings(fakedriver.h200_node(gpus=1, processes=0).write(tmp_path / "scenario"))


@pytest.mark.parametrize("kind", ["objects", "entries"])
def test_docker(scenario: dict[str, str], tmp_path: Path, kind: str) -> None:
    """A Docker daemon sends up to 16 MiB of tiny objects: memory is limited, and the log names the limit."""
    answers = {"/containers/json": answered(tiny(kind)), "/version": answered(b'{"ApiVersion":"1.45"}')}
    with (
        contextlib.closing(FakeDocker(tmp_path, answers)) as docker,
        serving("serve", "--environment=docker", f"--docker.host=unix://{docker.path}", env=scenario) as exporter,
    ):
        read_log(exporter, "more than 500,000 elements")
        exporter.metrics("^gpuledger_up 1")
        peak = peak_mb(exporter.process.pid)

    assert peak < MEMORY_MB


@pytest.mark.parametrize("message", [b"\x0a\x00", b"\x0a\x02\x12\x00", b"\x0a\x06\x1a\x04\x12\x02\x12\x00"])
@pytest.mark.parametrize("provider", ["podresources", "cri"])
def test_kubelet_and_runtime(scenario: dict[str, str], tmp_path: Path, provider: str, message: bytes) -> None:
    """A kubelet or container runtime sends 8 MiB of tiny pods: memory is limited, and the log names the limit."""
    flag = {"podresources": "--pod-resources-socket", "cri": "--cri.socket"}[provider]
    flags = {"--pod-resources-socket": "/nowhere", "--cri.socket": "/nowhere", flag: f"{tmp_path}/s.sock"}
    methods = ("/v1.PodResourcesLister/List", "/runtime.v1.RuntimeService/ListContainers")
    server = GrpcServer(tmp_path / "s.sock", dict.fromkeys(methods, lambda _: b""))
    server.raw = message * ((8 << 20) // len(message))
    words = ("serve", "--environment=kubernetes", *(f"{name}={value}" for name, value in flags.items()))
    with server, serving(*words, env=scenario) as exporter:
        read_log(exporter, "more than 200,000 elements")
        exporter.metrics("^gpuledger_up 1")
        peak = peak_mb(exporter.process.pid)

    assert peak < MEMORY_MB


def test_kubernetes(scenario: dict[str, str], tmp_path: Path) -> None:
    """An API server sends 16 MiB of tiny objects: memory is limited, and the log names the limit."""
    with contextlib.closing(ApiServer()) as api:
        api.answers.extend([answered(b'{"items":' + tiny("objects") + b"}")] * 9)
        config = kubeconfig(api.port, tmp_path)
        flags = (f"--kubernetes.kubeconfig={config}", "--kubernetes.api", "--kubernetes.node-name=n1")
        with serving("serve", "--environment=none", *flags, env=scenario) as exporter:
            read_log(exporter, "more than 500,000 elements")
            exporter.metrics("^gpuledger_up 1")
            peak = peak_mb(exporter.process.pid)

    assert peak < MEMORY_MB


def vector(kind: str) -> bytes:
    """An answer of a Prometheus of about 100 MiB."""
    if kind == "one":
        return b'{"status":"' + b"x" * (100 << 20) + b'"}'
    head, tail = b'{"status":"success","data":{"resultType":"vector","result":[', b"]}}"
    if kind == "tiny":
        return head + b"{}," * (32 << 20) + b"{}" + tail
    series = b'{"metric":{"uuid":"GPU-%07d"},"value":[1,"0.5"]}'
    if kind == "uncut":
        series = series.replace(b'{"metric":', b'{ "metric":')
    thousand = b",".join(series % number for number in range(1000))
    return head + b",".join([thousand] * 2000) + tail


@pytest.mark.parametrize("kind", ["series", "uncut", "tiny", "one"])
def test_fleet(kind: str) -> None:
    """A Prometheus sends 100 MiB: `fleet` stays within its memory limit and names the limit of the answer."""
    with upstream(page(vector(kind))) as server:
        flags = (f"--prometheus.url={server.root}", "--prometheus.timeout=60s", "--query=a", "--unit=ratio")
        code, errors, peak = run_measured("fleet", "--once", *flags)

    assert code == 1
    assert re.search("more than ([0-9,]+ elements|[0-9]+ MiB)", errors), errors
    assert peak < MEMORY_MB


@pytest.mark.parametrize("kind", ["series", "tiny", "one"])
def test_report(kind: str) -> None:
    """A Prometheus sends 100 MiB: `report` stays within the same memory and names the limit of the answer."""
    with upstream(page(vector(kind))) as server:
        code, errors, peak = run_measured("report", "--prometheus.timeout=60s", f"--prometheus.url={server.root}")

    assert code == 1
    assert re.search("more than ([0-9,]+ elements|[0-9]+ MiB)", errors), errors
    assert peak < MEMORY_MB


@pytest.mark.parametrize("kind", ["objects", "entries", "one"])
def test_top(kind: str) -> None:
    """The exporter that `top` connects to sends megabytes of tiny objects: memory is limited, and the error says so."""
    body = b'"' + b"x" * (60 << 20) + b'"' if kind == "one" else tiny(kind)
    with upstream(page(body)) as server:
        code, errors, peak = run_measured("top", "--once", f"--connect={server.root}")

    assert code == 1
    assert re.search("more than ([0-9,]+ elements|[0-9]+ MiB)", errors), errors
    assert peak < MEMORY_MB
