"""`gpuledger serve` in front of a dcgm-exporter: real HTTP on both sides, a real kubelet socket, the fake driver."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import Running, gpuledger, serving, surroundings
from tests.fakedriver import Gpu, Mig, Scenario
from tests.integrations.dcgmexporter.server import hang, page, upstream
from tests.integrations.dcgmexporter.world import body, pods, uuid
from tests.owners.providers.kubelet_server import KubeletServer

GOLDEN = Path(__file__).parents[1] / "golden" / "upstream.prom"
INSTANCE = "MIG-00000021-0000-4000-8000-000000000021"
EVERYTHING = b"".join(body(name) for name in ("whole", "mig", "nvlink", "old"))
ABOUT = ("gpu", "namespace", "pod", "container")


@pytest.fixture
def flags(tmp_path: Path) -> Iterator[list[str]]:
    """A kubelet that gave GPU 0 to a pod, GPU 1 to two and an instance of GPU 2 to one more."""
    kubelet = KubeletServer(tmp_path / "kubelet.sock")
    kubelet.give("ml", "llama-0", "main", "nvidia.com/gpu", uuid(0))
    kubelet.give("ml", "a", "main", "nvidia.com/gpu.shared", f"{uuid(1)}::0")
    kubelet.give("ml", "b", "main", "nvidia.com/gpu.shared", f"{uuid(1)}::1")
    kubelet.give("lab", "notebook", "main", "nvidia.com/mig-3g.71gb", INSTANCE)
    with kubelet:
        yield ["--tick.interval=100ms", "--environment=kubernetes", f"--pod-resources-socket={kubelet.path}"]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Four GPUs, one of them cut by MIG."""
    gpus = [Gpu(i, uuid=uuid(i), mig=1 if i == 2 else None) for i in range(4)]
    scenario = Scenario(gpus, migs=[Mig(gpu=2, gi=1, uuid=INSTANCE, profile="3g.71gb")])
    return surroundings(scenario.write(tmp_path / "scenario"))


def with_pods(server: Running) -> str:
    """Once the kubelet has been asked."""
    return server.metrics('pod="llama-0"', "/gpu/metrics")


def test_pods_on_every_series(flags: list[str], env: dict[str, str]) -> None:
    """The whole page, line by line. After a wanted change: GOLDEN=write, then read the diff."""
    with upstream(page(EVERYTHING)) as dcgm, serving(*flags, f"--dcgm-exporter.url={dcgm.url}", env=env) as server:
        found = with_pods(server)
        own = server.metrics("^gpuledger_upstream_pod_series [1-9]")
    if os.environ.get("GOLDEN") == "write":
        GOLDEN.write_text(found)

    assert pods(found, "DCGM_FI_DEV_GPU_TEMP", *ABOUT) == [
        ("0", "ml", "llama-0", "main", "61"),
        ("1", "", "", "", "33"),
    ]
    assert found == GOLDEN.read_text()
    for own_metric in ("up 1", "series 40", "pod_series 17", "duplicates_total 0"):
        assert f"\ngpuledger_upstream_{own_metric}\n" in own
    assert re.search(r"^gpuledger_upstream_success_timestamp_seconds 1\.?[0-9]", own, re.MULTILINE)
    assert re.search(r"^gpuledger_upstream_duration_seconds 0\.", own, re.MULTILINE)
    assert "DCGM_FI" not in own
    for pod in ("a", "b"):  # what a query joins the shared GPU's series with
        assert f'uuid="{uuid(1)}",namespace="ml",pod="{pod}",container="main"' in own


def test_in_metrics_and_copied(flags: list[str], env: dict[str, str]) -> None:
    """Both on request; the page is one that Prometheus's client reads, without a series twice."""
    wanted = ["--dcgm-exporter.in-metrics", "--dcgm-exporter.copy-shared"]
    with (
        upstream(page(EVERYTHING)) as dcgm,
        serving(*flags, *wanted, f"--dcgm-exporter.url={dcgm.url}", env=env) as server,
    ):
        with_pods(server)
        found = server.metrics('^DCGM_FI_DEV_GPU_TEMP.*pod="b"')

    assert pods(found, "DCGM_FI_DEV_GPU_TEMP", *ABOUT) == [
        ("0", "ml", "llama-0", "main", "61"),
        ("1", "ml", "a", "main", "33"),
        ("1", "ml", "b", "main", "33"),
    ]
    assert "\ngpuledger_up 1\n" in found


def test_it_survives_a_dcgm_exporter_that_dies(flags: list[str], env: dict[str, str]) -> None:
    """The series stay, then go; metric and log say why; our own metrics never notice."""
    limits = ["--dcgm-exporter.interval=1s", "--dcgm-exporter.max-age=5s"]
    with (
        upstream(page(EVERYTHING)) as dcgm,
        serving(*flags, *limits, f"--dcgm-exporter.url={dcgm.url}", env=env) as server,
    ):
        with_pods(server)
        dcgm.say = page(b"<html>500</html>\n")
        body = server.metrics('^gpuledger_upstream_failures_total{reason="format"} [1-9]')
        assert "\ngpuledger_upstream_up 0\n" in body
        assert "DCGM_FI_DEV_GPU_TEMP" in server.get("/gpu/metrics")
        server.metrics("^gpuledger_upstream_series 0$")
        with pytest.raises(OSError, match="503"):
            server.get("/gpu/metrics")
        dcgm.say = page(EVERYTHING)
        with_pods(server)
        code, took_s, errors = server.stop()

    assert (code, took_s < 2) == (0, True)
    assert errors.count("line 1 is not a sample") == 1
    assert errors.count("dcgm-exporter responds again") == 1


def test_it_stops_while_the_dcgm_exporter_hangs(flags: list[str], env: dict[str, str]) -> None:
    """The exporter does not wait for it."""
    with (
        upstream(hang) as dcgm,
        serving(*flags, "--dcgm-exporter.timeout=60s", f"--dcgm-exporter.url={dcgm.url}", env=env) as server,
    ):
        server.metrics("^gpuledger_upstream_up 0$")
        while not dcgm.asked:
            time.sleep(0.01)
        code, took_s, _ = server.stop()

    assert (code, took_s < 2) == (0, True)


def test_a_file(flags: list[str], env: dict[str, str], tmp_path: Path) -> None:
    """As the 1.x exporter wrote it, with the labels of its time."""
    file = tmp_path / "dcgm.prom"
    file.write_bytes(body("old"))
    with serving(*flags, f"--dcgm-exporter.url={file}", env=env) as server:
        found = server.metrics('pod_name="llama-0"', "/gpu/metrics")

    assert pods(found, "dcgm_gpu_temp", "gpu", "pod_namespace", "pod_name", "container_name")[0] == (
        "0", "ml", "llama-0", "main", "61",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dcgm-exporter.url=localhost:9400"], "--dcgm-exporter.url: 'localhost:9400' is neither a URL nor a path"),
        (["--dcgm-exporter.url=/x", "--dcgm-exporter.max-age=5s"], "--dcgm-exporter.max-age is shorter than"),
    ],
)
def test_settings_that_cannot_work(flags: list[str], words: str) -> None:
    """One line and exit code 2."""
    done = gpuledger("serve", *flags)

    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_machine_without_a_driver(flags: list[str]) -> None:
    """The uuids of the dcgm-exporter and the kubelet's list are enough."""
    with (
        upstream(page(EVERYTHING)) as dcgm,
        serving(*flags, f"--dcgm-exporter.url={dcgm.url}", env=surroundings()) as server,
    ):
        body = with_pods(server)
        own = server.metrics("^gpuledger_up 0$")

    assert pods(body, "DCGM_FI_DEV_GPU_TEMP", *ABOUT)[:2] == [
        ("0", "ml", "llama-0", "main", "61"),
        ("1", "", "", "", "33"),
    ]
    assert 'gpu_pod_allocation_info{gpu="",uuid="' in own


def test_pods_cannot_be_attached(env: dict[str, str]) -> None:
    """Without a kubelet, one line of the log and one problem say so."""
    with upstream(page(EVERYTHING)) as dcgm:
        url = f"--dcgm-exporter.url={dcgm.url}"
        with serving("--tick.interval=100ms", "--environment=none", url, env=env) as server:
            server.metrics("^DCGM_FI_DEV_GPU_TEMP", "/gpu/metrics")
            time.sleep(2.5)
            snapshot = server.get("/api/v1/snapshot")
            log = server.log.read_text()

    assert log.count("its series get no pods, because the kubelet is not read") == 1
    assert snapshot.count("its series get no pods, because the kubelet is not read") == 1
