"""What the chart opens, as Helm renders it: no more than its values ask for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools import manifests

ROOT = Path(__file__).parents[2]
CHART = manifests.CHART
VARIANTS = sorted((CHART / "ci").glob("*-values.yaml"))


def helm() -> str:
    """Built for these tests, or the host's own."""
    found = shutil.which("helm", path=f"{ROOT / '.e2e'}:{os.environ['PATH']}")
    assert found is not None, "there is no helm; run `make e2e`"
    return found


def template(*flags: str) -> subprocess.CompletedProcess[str]:
    """What Helm makes of a release."""
    argv = [helm(), "template", "gpuledger", str(CHART), "--namespace=gpu", *flags]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def render(*flags: str) -> list[dict[str, Any]]:
    """The objects of a release."""
    done = template("--skip-tests", *flags)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def only(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The one of this kind."""
    (found,) = [one for one in objects if one["kind"] == kind]
    return found


def exporter(objects: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The DaemonSet's pod, and its container."""
    pod = only(objects, "DaemonSet")["spec"]["template"]["spec"]
    return pod, pod["containers"][0]


@pytest.mark.parametrize("name", manifests.FILES)
def test_plain_manifests_are_current(name: str) -> None:
    """deploy/kubernetes is what the chart gives today."""
    assert (manifests.OUT / name).read_text() == manifests.render(helm(), name), "run `make manifests`"


def test_the_usual_release_opens_little() -> None:
    """No capability, nothing writable but the journal, no right but to read pods."""
    objects = render()
    pod, container = exporter(objects)

    assert (pod["hostPID"], pod.get("hostNetwork"), pod.get("runtimeClassName")) == (True, None, None)
    assert container["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = [mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["journal"]
    assert {volume["hostPath"]["path"] for volume in pod["volumes"]} == {
        "/var/lib/kubelet/pod-resources",
        "/run/gpuledger",
    }
    assert only(objects, "ClusterRole")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]


def test_nothing_asked_for_is_nothing_opened() -> None:
    """No role, no token, no volume, no service."""
    objects = render("-f", str(CHART / "ci/minimal-values.yaml"))
    pod, container = exporter(objects)

    assert [one["kind"] for one in objects] == ["DaemonSet"]
    assert pod["automountServiceAccountToken"] is False
    assert ("volumes" in pod, "volumeMounts" in container) == (False, False)


@pytest.mark.parametrize(
    ("flags", "added"),
    [
        (["proc.maps=true"], ["SYS_PTRACE"]),
        (["proc.environ=true"], ["SYS_PTRACE", "DAC_READ_SEARCH"]),
        (["driver.migMonitor=true"], ["SYS_ADMIN"]),
        (["proc.maps=true", "containerSecurityContext.capabilities.add={SYS_PTRACE,SYSLOG}"], ["SYS_PTRACE", "SYSLOG"]),
    ],
)
def test_each_value_adds_its_capability(flags: list[str], added: list[str]) -> None:
    """And no other; all else stays dropped, and OpenShift is told the same."""
    objects = render(*(f"--set={flag}" for flag in flags), "--set=openshift.scc.create=true")
    _, container = exporter(objects)

    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": added}
    assert only(objects, "SecurityContextConstraints")["allowedCapabilities"] == added


def test_privileged_only_for_libraries_of_the_host() -> None:
    """Nothing else in any variant is."""
    for path in VARIANTS:
        pod, container = exporter(render("-f", str(path)))
        found = [one["securityContext"].get("privileged", False) for one in (container, *pod.get("initContainers", ()))]
        assert all(found) if path.name == "gke-values.yaml" else not any(found), path.name


@pytest.mark.parametrize("path", VARIANTS, ids=lambda path: str(path.name))
def test_series_keep_the_pods_of_users(path: Path) -> None:
    """Every monitor honours labels and drops those of the exporter itself; it selects what is really there."""
    objects = render("-f", str(path))
    for monitor in [one for one in objects if one["kind"] in ("ServiceMonitor", "PodMonitor")]:
        spec = monitor["spec"]
        (endpoint,) = spec.get("endpoints") or spec["podMetricsEndpoints"]
        wanted = spec["selector"]["matchLabels"].items()
        kind = "Service" if monitor["kind"] == "ServiceMonitor" else "DaemonSet"

        assert endpoint["honorLabels"] is True
        assert {"action": "labeldrop", "regex": "namespace|pod|container"} in endpoint["relabelings"]
        assert [one for one in objects if one["kind"] == kind and wanted <= one["metadata"]["labels"].items()]


def test_rules_and_dashboards_arrive_whole() -> None:
    """What Prometheus and Grafana get is what is in mixin/, templates of alerts and all."""
    objects = render("--set=prometheusRule.enabled=true", "--set=dashboards.enabled=true")
    rules = [one["spec"] for one in objects if one["kind"] == "PrometheusRule"]
    dashboards = {name: text for one in objects if one["kind"] == "ConfigMap" for name, text in one["data"].items()}
    mixin = ROOT / "mixin"

    files = [*mixin.glob("rules/*.yml"), *mixin.glob("alerts/*.yml")]
    assert len(rules) == len(files)
    assert all(yaml.safe_load(path.read_text()) in rules for path in files)
    assert dashboards == {path.name: path.read_text() for path in mixin.glob("dashboards/*.json")}


def test_a_misspelt_value_is_refused() -> None:
    """By the schema, at each level."""
    for flag in ("serviceMonitors.enabled=true", "serviceMonitor.enable=true", "image.digest=latest"):
        assert template(f"--set={flag}").returncode != 0, flag


@pytest.mark.parametrize("right", ["kubernetesApi.enabled", "openshift.scc.create"])
@pytest.mark.parametrize("name", ["", "default"])
def test_the_account_of_everybody_gets_no_rights(right: str, name: str) -> None:
    """Not by a role and not by constraints; an account of another name does."""
    flags = ["kubernetesApi.enabled=false", f"{right}=true", "serviceAccount.create=false"]
    refused = template(*(f"--set={flag}" for flag in (*flags, f"serviceAccount.name={name}")))
    given = template(*(f"--set={flag}" for flag in (*flags, "serviceAccount.name=gpu")))

    assert "would grant permissions to every pod of the namespace" in refused.stderr
    assert given.returncode == 0, given.stderr


def test_a_monitor_without_its_service_is_refused() -> None:
    """It would find nobody, and nobody would notice; a PodMonitor needs no service."""
    refused = template("--set=service.enabled=false", "--set=serviceMonitor.enabled=true")

    assert "serviceMonitor.enabled needs service.enabled" in refused.stderr
    assert template("--set=service.enabled=false", "--set=podMonitor.enabled=true").returncode == 0


@pytest.mark.parametrize("kind", ["livenessProbe", "readinessProbe"])
def test_probes_of_the_fleet_can_be_replaced(kind: str) -> None:
    """Whole: with a login before the pages a usual one would have the pod restarted for ever."""
    objects = render("--set=fleet.enabled=true", f"--set=fleet.{kind}.tcpSocket.port=metrics")
    (container,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]

    assert container[kind] == {"tcpSocket": {"port": "metrics"}}
    assert len([probe for probe in ("livenessProbe", "readinessProbe") if "httpGet" in container[probe]]) == 1


def test_the_test_of_a_release_can_start() -> None:
    """`helm test` pulls the image as the exporter does, and is left out where it would be kept out."""
    shown = "--show-only=templates/tests/answers.yaml"
    (pod,) = yaml.safe_load_all(template(shown, "--set=imagePullSecrets[0].name=pull").stdout)
    closed = template("--set=networkPolicy.enabled=true", "--set=networkPolicy.from[0].podSelector.matchLabels.a=b")

    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert (closed.returncode, "tests/answers.yaml" in closed.stdout) == (0, False)
