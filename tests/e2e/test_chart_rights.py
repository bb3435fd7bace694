"""Permissions of the rendered chart: no more than its values need."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.real.prometheus import readers_of_dcgm_exporter
from tools import manifests

ROOT = Path(__file__).parents[2]
CHART = manifests.CHART
VARIANTS = sorted((CHART / "ci").glob("*-values.yaml"))


def helm() -> str:
    """Helm built for these tests, or the one in PATH."""
    path = shutil.which("helm", path=f"{ROOT / '.e2e'}:{os.environ['PATH']}")
    assert path is not None, "there is no helm; run `make e2e`"
    return path


def template(*flags: str) -> subprocess.CompletedProcess[str]:
    """Result of `helm template`."""
    argv = [helm(), "template", "gpuledger", str(CHART), "--namespace=gpu", *flags]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def render(*flags: str) -> list[dict[str, Any]]:
    """Objects of a release."""
    done = template("--skip-tests", *flags)
    assert done.returncode == 0, done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def only(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The only object of this kind."""
    (item,) = [item for item in objects if item["kind"] == kind]
    return item


def exporter(objects: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Pod spec and container of the DaemonSet."""
    pod = only(objects, "DaemonSet")["spec"]["template"]["spec"]
    return pod, pod["containers"][0]


@pytest.mark.parametrize("name", manifests.FILES)
def test_plain_manifests_are_current(name: str) -> None:
    """deploy/kubernetes is identical to the rendered chart."""
    assert (manifests.OUT / name).read_text() == manifests.render(helm(), name), "run `make manifests`"


def test_default_permissions() -> None:
    """No capabilities, only the journal is writable, and RBAC only allows reading pods and their claims."""
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
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
    ]


def test_disabled_features_need_no_permissions() -> None:
    """With everything disabled there is no role, token, volume, service or egress, and the user is nobody."""
    objects = render("-f", str(CHART / "ci/minimal-values.yaml"))
    pod, container = exporter(objects)

    assert [item["kind"] for item in objects] == ["NetworkPolicy", "DaemonSet"]
    assert only(objects, "NetworkPolicy")["spec"]["egress"] == []
    assert (container["securityContext"]["runAsUser"], "initContainers" in pod) == (65534, False)
    assert pod["automountServiceAccountToken"] is False
    assert ("volumes" in pod, "volumeMounts" in container) == (False, False)


@pytest.mark.parametrize(
    ("flags", "uid"),
    [
        ([], 0),
        (["podResources.enabled=false"], 65534),
        (["podResources.enabled=false", "cri.enabled=true"], 0),
        (["podResources.enabled=false", "proc.maps=true"], 0),
        (["podResources.enabled=false", "driver.migMonitor=true"], 0),
        (["podResources.enabled=false", "driver.hostLibraries=/lib64"], 0),
        (["podResources.enabled=false", "containerSecurityContext.runAsUser=1000650000"], 1000650000),
        (["containerSecurityContext.runAsUser=0"], 0),
    ],
)
def test_uid_0_only_where_it_is_needed(flags: list[str], uid: int) -> None:
    """Otherwise the user is nobody; a short-lived container with one capability gives it its journal."""
    objects = render(*(f"--set={flag}" for flag in flags), "--set=openshift.scc.create=true")
    pod, container = exporter(objects)
    context = container["securityContext"]
    (journal,) = [volume["hostPath"]["path"] for volume in pod["volumes"] if volume["name"] == "journal"]

    assert (context["runAsUser"], context["runAsGroup"], context.get("runAsNonRoot", False)) == (uid, uid, uid != 0)
    assert journal == (f"/run/gpuledger/{uid}" if uid else "/run/gpuledger")
    assert len(pod.get("initContainers", [])) == (uid != 0)
    for owner in pod.get("initContainers", []):
        assert f'os.chown("/run/gpuledger", {uid}, {uid})' in owner["command"][-1]
        assert owner["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
        assert only(objects, "SecurityContextConstraints")["allowedCapabilities"] == ["CHOWN"]


def ports(rule: dict[str, Any]) -> list[int]:
    """TCP ports of a rule of a network policy."""
    return [port["port"] for port in rule["ports"] if port["protocol"] == "TCP"]


def test_egress_of_the_exporter() -> None:
    """Only to the API server, by default on its ports and with its addresses if they are given; not to DNS."""
    (by_default,) = only(render(), "NetworkPolicy")["spec"]["egress"]
    to_address, to_dns = only(render("-f", str(CHART / "ci/non-root-values.yaml")), "NetworkPolicy")["spec"]["egress"]

    assert (ports(by_default), by_default.get("to")) == ([443, 6443], None)
    assert ports(to_address) == [6443]
    assert [peer["ipBlock"]["cidr"] for peer in to_address["to"]] == ["10.0.0.1/32", "fd00::1/128"]
    assert (ports(to_dns), len(to_dns["to"])) == ([53, 5353], 2)


@pytest.mark.parametrize(
    ("url", "namespace", "port"),
    [
        ("http://prometheus-operated.monitoring.svc:9090", "monitoring", None),
        ("https://prometheus.obs.svc.cluster.local", "obs", None),
        ("http://prometheus.gpuledger:9090/prefix", "gpuledger", None),
        ("https://mimir.example.com/prometheus", None, 443),
        ("http://10.0.0.7", None, 80),
        ("http://[fd00::7]:9091", None, 9091),
    ],
)
def test_egress_of_the_fleet(url: str, namespace: str | None, port: int | None) -> None:
    """Only to DNS, and to the namespace or the port of Prometheus."""
    objects = render("--set=fleet.enabled=true", f"--set=fleet.prometheusUrl={url}", "--show-only=templates/fleet.yaml")
    to_dns, to_prometheus = only(objects, "NetworkPolicy")["spec"]["egress"]

    assert ports(to_dns) == [53, 5353]
    assert len(to_dns["to"]) == 2
    if namespace is None:
        assert (ports(to_prometheus), "to" in to_prometheus) == ([port], False)
    else:
        labels = {"kubernetes.io/metadata.name": namespace}
        assert to_prometheus == {"to": [{"namespaceSelector": {"matchLabels": labels}}]}


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
    """Only that capability is added, in the container and in OpenShift's constraints."""
    objects = render(*(f"--set={flag}" for flag in flags), "--set=openshift.scc.create=true")
    _, container = exporter(objects)

    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": added}
    assert only(objects, "SecurityContextConstraints")["allowedCapabilities"] == added


def test_privileged_only_for_libraries_of_the_host() -> None:
    """No other variant is privileged."""
    for path in VARIANTS:
        pod, container = exporter(render("-f", str(path)))
        privileged = [
            item["securityContext"].get("privileged", False) for item in (container, *pod.get("initContainers", ()))
        ]
        assert all(privileged) if path.name == "gke-values.yaml" else not any(privileged), path.name


@pytest.mark.parametrize("path", VARIANTS, ids=lambda path: str(path.name))
def test_monitors_keep_the_pod_labels(path: Path) -> None:
    """Every endpoint honours labels, drops those of the exporter, and selects existing objects."""
    objects = render("-f", str(path))
    for monitor in [item for item in objects if item["kind"] in ("ServiceMonitor", "PodMonitor")]:
        spec = monitor["spec"]
        endpoints = spec.get("endpoints") or spec["podMetricsEndpoints"]
        wanted = spec["selector"]["matchLabels"].items()
        kind = "Service" if monitor["kind"] == "ServiceMonitor" else "DaemonSet"

        assert [endpoint["honorLabels"] for endpoint in endpoints] == [True] * len(endpoints)
        for endpoint in endpoints:
            assert {"action": "labeldrop", "regex": "namespace|pod|container"} in endpoint["relabelings"]
        assert [item for item in objects if item["kind"] == kind and wanted <= item["metadata"]["labels"].items()]


@pytest.mark.parametrize("kind", ["serviceMonitor", "podMonitor"])
def test_readers_of_dcgm_exporter(kind: str) -> None:
    """One value adds an endpoint with the job and the copied labels of docs/kubernetes.md, whose queries are tested."""
    flags = ("serviceMonitor.dcgmJob=dcgm-exporter", "serviceMonitor.honorLabels=false", f"{kind}.enabled=true")
    (monitor,) = (item for item in render(*(f"--set={flag}" for flag in flags)) if item["kind"].endswith("Monitor"))
    native, dcgm = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
    job = readers_of_dcgm_exporter()

    assert (native["path"], "metricRelabelings" in native) == ("/metrics", False)
    assert (dcgm["path"], dcgm["honorLabels"]) == (job["metrics_path"], job["honor_labels"])
    assert {"targetLabel": "job", "replacement": job["job_name"]} in dcgm["relabelings"]
    assert dcgm["metricRelabelings"] == job["metric_relabel_configs"]


def test_without_a_token() -> None:
    """Without the API server there is no role, token or egress; the kubelet still names pods."""
    objects = render("-f", str(CHART / "ci/no-token-values.yaml"))
    pod, container = exporter(objects)

    assert {item["kind"] for item in objects}.isdisjoint({"ClusterRole", "ClusterRoleBinding"})
    assert pod["automountServiceAccountToken"] is False
    assert [volume["name"] for volume in pod["volumes"]] == ["pod-resources", "journal"]
    assert not any(word.startswith("--kubernetes.api") for word in container["args"])
    assert only(objects, "NetworkPolicy")["spec"]["egress"] == []


def test_rules_and_dashboards_are_unchanged() -> None:
    """Prometheus and Grafana get the files of mixin/ unchanged, including alert templates."""
    objects = render("--set=prometheusRule.enabled=true", "--set=dashboards.enabled=true")
    rules = [item["spec"] for item in objects if item["kind"] == "PrometheusRule"]
    dashboards = {name: text for item in objects if item["kind"] == "ConfigMap" for name, text in item["data"].items()}
    mixin = ROOT / "mixin"

    files = [*mixin.glob("rules/*.yml"), *mixin.glob("alerts/*.yml")]
    assert len(rules) == len(files)
    assert all(yaml.safe_load(path.read_text()) in rules for path in files)
    assert dashboards == {path.name: path.read_text() for path in mixin.glob("dashboards/*.json")}


def test_a_misspelt_value_is_rejected() -> None:
    """The schema rejects unknown values at each level."""
    for flag in ("serviceMonitors.enabled=true", "serviceMonitor.enable=true", "image.digest=latest"):
        assert template(f"--set={flag}").returncode != 0, flag


@pytest.mark.parametrize("right", ["kubernetesApi.enabled", "openshift.scc.create"])
@pytest.mark.parametrize("name", ["", "default"])
def test_the_default_service_account_gets_no_permissions(right: str, name: str) -> None:
    """Neither a role nor constraints; an account with another name gets them."""
    flags = ["kubernetesApi.enabled=false", f"{right}=true", "serviceAccount.create=false"]
    rejected = template(*(f"--set={flag}" for flag in (*flags, f"serviceAccount.name={name}")))
    given = template(*(f"--set={flag}" for flag in (*flags, "serviceAccount.name=gpu")))

    assert "would grant permissions to every pod of the namespace" in rejected.stderr
    assert given.returncode == 0, given.stderr


def test_a_monitor_without_its_service_is_rejected() -> None:
    """A ServiceMonitor without a service would select nothing; a PodMonitor needs no service."""
    rejected = template("--set=service.enabled=false", "--set=serviceMonitor.enabled=true")

    assert "serviceMonitor.enabled needs service.enabled" in rejected.stderr
    assert template("--set=service.enabled=false", "--set=podMonitor.enabled=true").returncode == 0


@pytest.mark.parametrize("kind", ["livenessProbe", "readinessProbe"])
def test_probes_of_the_fleet_can_be_replaced(kind: str) -> None:
    """Completely, because with a login the default probes would restart the pod forever."""
    objects = render("--set=fleet.enabled=true", f"--set=fleet.{kind}.tcpSocket.port=metrics")
    (container,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]

    assert container[kind] == {"tcpSocket": {"port": "metrics"}}
    assert len([probe for probe in ("livenessProbe", "readinessProbe") if "httpGet" in container[probe]]) == 1


def test_a_new_fleet_waits_for_the_old_one() -> None:
    """Both would send a message about what is found during a roll-out."""
    flags = ("--set=fleet.enabled=true", "--set=fleet.prometheusUrl=http://p:9090")
    plain, notifying = (
        only(render(*flags, *more), "Deployment") for more in ((), ("--set=fleet.notify.config.events=true",))
    )
    assert "strategy" not in plain["spec"]
    assert notifying["spec"]["strategy"] == {"type": "Recreate"}


def test_the_release_test_can_start() -> None:
    """The test pod uses the image settings of the exporter, and is omitted if it would be blocked."""
    shown = "--show-only=templates/tests/answers.yaml"
    (pod,) = yaml.safe_load_all(template(shown, "--set=imagePullSecrets[0].name=pull").stdout)
    closed = template("--set=networkPolicy.enabled=true", "--set=networkPolicy.from[0].podSelector.matchLabels.a=b")

    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert (closed.returncode, "tests/answers.yaml" in closed.stdout) == (0, False)


def test_nodes() -> None:
    """Nodes with a label of GPUs by default; all nodes, or those of an own affinity, if set."""

    def affinity(*flags: str) -> Any:
        return exporter(render(*flags))[0].get("affinity")

    required = affinity()["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    keys = [term["matchExpressions"][0] for term in required]
    assert {"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]} in keys
    assert {"key": "cloud.google.com/gke-accelerator", "operator": "Exists"} in keys
    assert affinity("--set=gpuNodes.only=false") is None
    assert affinity("--set=affinity.podAffinity.x=1") == {"podAffinity": {"x": 1}}
