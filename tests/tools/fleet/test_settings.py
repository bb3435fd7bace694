"""The settings of the service, and contradictions among them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gpuledger.config import load as config
from gpuledger.errors import ConfigError
from tests.real.daemons import run
from tests.tools.fleet.flags import settings


def test_flag_before_variable_before_file_before_default(tmp_path: Path) -> None:
    """The order of precedence of all commands."""
    path = tmp_path / "fleet.yml"
    path.write_text("prometheus: {url: 'http://file', header: ['X-A: 1', 'X-B: 2']}\nby: [pod, namespace+pod]\n")
    file = f"config.file={path}"
    variable = {"GPULEDGER_PROMETHEUS_URL": "http://variable", "GPULEDGER_BY": "node, model"}

    assert settings("prometheus.url=http://flag", file, environment=variable).prometheus_url == "http://flag"
    assert settings(file, environment=variable).prometheus_url == "http://variable"
    assert settings(file).prometheus_url == "http://file"
    assert settings().prometheus_url == "http://localhost:9090"
    assert settings(file).prometheus_header == ("X-A: 1", "X-B: 2")
    assert settings(file).by == ("pod", "namespace+pod")
    assert settings(environment=variable).by == ("node", "model")


def test_a_printed_configuration_gives_the_same_one_again(tmp_path: Path) -> None:
    """For every setting."""
    chosen = settings("by=namespace+pod", "window=5m", "prometheus.header=X-Scope-OrgID: 1", "max-age=2m")
    path = tmp_path / "fleet.yml"
    path.write_text(config.dump(chosen))

    assert settings(f"config.file={path}") == chosen
    assert yaml.safe_load(path.read_text())["max-age"] == "2m"


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("prometheus.url=prometheus", "is not a URL"),
        ("prometheus.header=X-Scope-OrgID", "is not a header"),
        ("prometheus.header=Host: a", "is set by gpuledger"),
        ("by=name space", "is not a label"),
        ("by=pod+pod", "is not a label"),
        ("by=by", "conflicts with a label"),
        ("in-use=idle", "is not one of busy, allocated, resident"),
        ("refresh=0s", "out of range"),
        ("unit=watts", "is not one of auto, ratio, percent"),
    ],
)
def test_a_wrong_value_is_named(flag: str, says: str) -> None:
    """The error has the correction."""
    with pytest.raises(ConfigError, match=says):
        settings(flag)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["prometheus.user=me"], "belong together"),
        (["prometheus.user=me", "prometheus.password-file=/a", "prometheus.token-file=/b"], "exclude each other"),
        (["prometheus.token-file=/b", "prometheus.header=Authorization: x"], "conflicts with the login"),
        (["prometheus.key-file=/b"], "needs --prometheus.cert-file"),
        (["max-age=5s"], "shorter than --refresh"),
        (["dcgm=true", "window=5m"], "needs gpuledger's own counters"),
        (["query=up", "window=5m"], "needs gpuledger's own counters"),
        (["query=DCGM_FI_DEV_GPU_UTIL", "memory-query=DCGM_FI_DEV_MEMORY_UTIL_RATIO"], "has another unit than"),
        (["dcgm=true", "memory-query=DCGM_FI_DEV_MEMORY_UTIL_RATIO"], "has another unit than"),
        (["memory-query=DCGM_FI_DEV_FB_USED / DCGM_FI_DEV_FB_TOTAL"], "--memory-query: the names in it do not tell"),
        (["dcgm=true", "in-use=resident"], "set --resident-query"),
    ],
)
def test_contradictory_settings_are_refused(flags: list[str], says: str) -> None:
    """Before any query is sent."""
    chosen = settings(*flags)

    with pytest.raises(ConfigError, match=says):
        chosen.access(), chosen.plan()


def test_the_unit_follows_the_query() -> None:
    """DCGM's device fields are percent, its profiling fields and ours are ratios; units are not mixed."""
    assert not settings().plan().percent
    assert settings("dcgm=true").plan().percent
    classic = settings("query=DCGM_FI_DEV_MEM_COPY_UTIL").plan()
    assert (classic.percent, classic.queries.utilization) == (True, "DCGM_FI_DEV_MEM_COPY_UTIL")
    assert "DCGM_FI_DEV_MEM_COPY_UTIL" in classic.queries.memory
    profiling = settings("query=DCGM_FI_PROF_GR_ENGINE_ACTIVE").plan()
    assert (profiling.percent, profiling.queries.memory) == (False, "")
    assert settings("query=my_metric", "unit=percent").plan().percent
    new = settings("query=max by (UUID) (DCGM_FI_DEV_GPU_UTIL_RATIO{pod!='DCGM_FI_DEV_GPU_UTIL'})").plan()
    assert (new.percent, new.queries.memory) == (False, "")


@pytest.mark.parametrize(
    "query",
    [
        "DCGM_FI_DEV_GPU_UTIL / 100",
        "DCGM_FI_DEV_GPU_UTIL or DCGM_FI_DEV_GPU_UTIL_RATIO",
        "DCGM_FI_DEV_FB_USED",
        "DCGM_FI_DEV_FB_USED / DCGM_FI_DEV_FB_TOTAL",
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        '{__name__="DCGM_FI_DEV_GPU_UTIL"}',
        '{__name__=~"DCGM_FI_DEV_GPU_UTIL|DCGM_FI_DEV_GPU_UTIL_RATIO"}',
        '{"DCGM_FI_DEV_GPU_UTIL"}',
        'avg({gpu="0", "DCGM_FI_DEV_GPU_UTIL"})',
        "dcgm_gpu_utilization",
    ],
)
def test_a_query_of_unknown_unit_is_refused(query: str) -> None:
    """Taken for percent, a ratio is a hundredth of the truth, and an autoscaler removes replicas."""
    with pytest.raises(ConfigError, match="do not tell whether its result is in percent; set --unit percent"):
        settings(f"query={query}").plan()
    assert not settings(f"query={query}", "unit=ratio").plan().percent


@pytest.mark.needs("promtool")
@pytest.mark.parametrize(
    "flags", [[], ["dcgm=true"], ["window=5m"], ["by=namespace+pod", "by=model", "by=node"], ["dcgm=true", "by=pod"]]
)
def test_the_queries_are_promql(flags: list[str], tmp_path: Path) -> None:
    """Prometheus's own tool accepts each as a rule."""
    queries = settings(*flags).plan().queries.per_gpu()
    rules = [{"record": f"a:{name}", "expr": text} for name, text in queries]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "a", "rules": rules}]}))

    assert len(queries) >= 3
    assert "SUCCESS" in run("promtool", "check", "rules", str(path))


def test_a_second_docker_daemon_reports_allocations() -> None:
    """Its provider is named docker-2."""
    pattern = re.search('provider=~"([^"]+)"', settings().plan().queries.known)

    assert pattern is not None
    assert [bool(re.fullmatch(pattern[1], name)) for name in ("docker", "docker-2", "hpcdir", "cri")] == [
        True, True, True, False,
    ]  # fmt: skip


def test_labels_of_holders_are_queried_on_series_with_holders_only() -> None:
    """On a series without them Prometheus puts the namespace and pod of the exporter itself."""
    queries = settings("by=namespace+pod", "by=model").plan().queries

    assert "namespace" not in queries.utilization
    assert queries.residents.startswith("max by (uuid, namespace, pod) (container_gpu_detected")
    assert queries.allocated.startswith("max by (uuid, namespace, pod) (gpu_pod_allocation_info")
    assert queries.info == 'max by (uuid, name) (gpu_info{job="gpuledger"})'
