"""Files in deploy/ agree with the program."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gpuledger import __version__
from gpuledger.cli import main
from gpuledger.config.exporter import CONFIG_FILE, OPTIONS
from gpuledger.config.settings import options_of
from gpuledger.tools.fleet.settings import FleetSettings
from tests.cli.running import serving, surroundings
from tools import chart, docs, manifests

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SETTINGS = (*OPTIONS, *options_of(FleetSettings), CONFIG_FILE)
FLAGS = {name for option in SETTINGS for name in (option.key, *option.aliases)}
FREE = {"config", "containerSecurityContext", "resources", "affinity"}
"""Values with free keys, defined by Kubernetes or by the program."""


def objects(path: Path) -> list[dict[str, Any]]:
    """All objects of a YAML file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def exporter_arguments(containers: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Arguments of the containers that run gpuledger."""
    for container in containers:
        if container["image"].startswith("gpuledger"):
            yield container["args"]


def test_the_chart_has_the_mixin_and_the_version() -> None:
    """The copies are up to date; Helm reads no files outside of the chart."""
    wanted = chart.copies()

    assert {path: path.read_bytes() for path in chart.present()} == wanted, "run `make docs`"
    text = (chart.CHART / "Chart.yaml").read_text()
    assert text == chart.chart(text), "run `make docs`"
    assert yaml.safe_load(text)["appVersion"] == __version__
    assert (manifests.OUT / "prometheus-rules.yaml").read_text() == manifests.rules(), "run `make manifests`"


def test_the_readme_of_the_chart_lists_all_values() -> None:
    """The table is up to date, and each value of a group is in it, with its default."""
    source, page = ((chart.CHART / name).read_text() for name in ("values.yaml", "README.md"))
    rows = chart.values(source)

    assert page == chart.readme(page, rows), "run `make docs`"
    paths = {path for path, _, _ in rows}
    for name, value in yaml.safe_load(source).items():
        groups = [name] if not isinstance(value, dict) or not value else [f"{name}.{key}" for key in value]
        assert all(any(f"{path}.".startswith(f"{group}.") for path in paths) for group in groups), name


def test_the_chart_can_be_published() -> None:
    """Artifact Hub shows a category and a licence."""
    annotations = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())["annotations"]

    assert annotations["artifacthub.io/license"] == "Apache-2.0"
    assert annotations["artifacthub.io/category"] == "monitoring-logging"


def test_a_published_chart_has_no_dead_links(tmp_path: Path) -> None:
    """It names its repository, its image and its icon; links of its page are absolute and lead to files that exist."""
    repository = "https://github.com/Owner/gpuledger"
    chart.publish(tmp_path, repository)
    tree = yaml.safe_load((tmp_path / "Chart.yaml").read_text())
    page = (tmp_path / "README.md").read_text()
    links = re.findall(r"\]\(([^)#]+)", page) + [
        link["url"] for link in yaml.safe_load(tree["annotations"]["artifacthub.io/links"])
    ]

    assert (tree["home"], tree["sources"]) == (repository, [repository])
    assert all(link.startswith(f"{repository}/blob/v{tree['version']}/") for link in links)
    icon = tree["icon"].removeprefix(f"{repository}/raw/v{tree['version']}/")
    for name in (icon, *(link.split("/blob/", 1)[1].split("/", 1)[1] for link in links)):
        assert (chart.ROOT / name).is_file(), name
    (image,) = yaml.safe_load(tree["annotations"]["artifacthub.io/images"])
    assert image["image"] == f"ghcr.io/owner/gpuledger:{tree['version']}"
    assert yaml.safe_load((tmp_path / "values.yaml").read_text())["image"]["repository"] == "ghcr.io/owner/gpuledger"


def test_the_rules_for_the_operator_are_those_of_the_mixin() -> None:
    """Those rendered to monitors.yaml; `make e2e` compares the whole file with what Helm renders."""
    rendered = [item["spec"] for item in objects(manifests.OUT / "monitors.yaml") if item["kind"] == "PrometheusRule"]

    assert rendered == [yaml.safe_load(path.read_text()) for path in manifests.rule_files()], "run `make manifests`"


@pytest.mark.parametrize("is_commented", [True, False])
def test_configuration_to_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str], is_commented: bool) -> None:
    """The file is current and begins with the environment. With and without the # of its lines it has the defaults."""
    text = (DEPLOY / "gpuledger.yml").read_text()
    assert text == docs.sample(), "run `make docs`"
    assert re.findall(r"^[^#\n].*", text, re.MULTILINE) == ['environment: ["auto"]']
    if not is_commented:
        text = re.sub(r"^#(?=[a-z])", "", text, flags=re.MULTILINE).replace("kubernetes-enabled: true\n", "")
        assert len(re.findall(r"^[a-z]", text, re.MULTILINE)) == len(OPTIONS) - 1
    path = tmp_path / "gpuledger.yml"
    path.write_text(text)
    main(["serve", "--print-config"])
    defaults = capsys.readouterr().out

    main(["serve", "--print-config", f"--config.file={path}"])

    assert capsys.readouterr().out == defaults


def test_exporter_runs_only_on_gpu_nodes() -> None:
    """Otherwise the alert GpuDriverDown fires on nodes without GPUs."""
    (daemonset,) = [item for item in objects(manifests.OUT / "gpuledger.yaml") if item["kind"] == "DaemonSet"]
    affinity = daemonset["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]

    assert {"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]} in terms[0]["matchExpressions"]
    assert len(terms) > 5


def test_the_version_is_the_same_everywhere() -> None:
    """Manifests and docs have the version of `src/gpuledger/__init__.py`."""
    pages = [*manifests.OUT.glob("*.yaml"), *(ROOT / "docs").glob("*.md")]
    found = {
        version
        for path in pages
        for version in re.findall(
            r"\bgpuledger[ :-](\d+\.\d+\.\d+)|kubernetes\.io/version: \"([^\"]+)\"", path.read_text()
        )
    }

    assert {header or label for header, label in found} == {__version__}


def test_the_schema_matches_the_values() -> None:
    """The schema must accept every value and reject misspelt ones."""
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())

    def compare(values: dict[str, Any], schema: dict[str, Any], where: str) -> None:
        if schema.get("additionalProperties", True):
            return
        assert set(values) == set(schema["properties"]) - {"global"}, where
        for name, value in values.items():
            if isinstance(value, dict):
                compare(value, schema["properties"][name], f"{where}.{name}")

    compare(values, schema, "values")
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("path", sorted((chart.CHART / "ci").glob("*.yaml")), ids=lambda path: str(path.name))
def test_variants_set_known_values(path: Path) -> None:
    """Each key in ci/ exists in values.yaml."""
    known = yaml.safe_load((chart.CHART / "values.yaml").read_text())

    def check(given: dict[str, Any], known: dict[str, Any], where: str) -> None:
        for name, value in given.items():
            assert name in known, f"{where}.{name}"
            if isinstance(value, dict) and known[name] and name not in FREE:
                check(value, known[name], f"{where}.{name}")

    check(yaml.safe_load(path.read_text()), known, path.name)


def test_every_flag_exists() -> None:
    """Flags in the unit, the chart, the manifests and Compose exist."""
    texts = [(DEPLOY / "systemd/gpuledger.service").read_text(), (DEPLOY / "compose.yml").read_text()]
    texts += [path.read_text() for path in (chart.CHART / "templates").glob("*.yaml")]
    lines = [
        line for text in texts for line in text.splitlines() if re.search(r"gpuledger serve|serve, | - .*--\w", line)
    ]
    named = {flag for line in lines for flag in re.findall(r"(?<![\w-])--([a-z][\w.-]+)", line)}
    prometheus = {"storage.tsdb.path", "storage.tsdb.retention.time"}

    assert len(named) > 12
    assert named - FLAGS - prometheus - {"notify"} == set()  # no setting, but a flag of the command


@pytest.mark.parametrize("name", ["gpuledger.yaml", "fleet.yaml"])
def test_the_program_accepts_the_arguments_of_the_manifests(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The program accepts all arguments with their values."""
    kinds = ("DaemonSet", "Deployment")
    containers = [
        container
        for item in objects(DEPLOY / "kubernetes" / name)
        if item["kind"] in kinds
        for container in item["spec"]["template"]["spec"]["containers"]
    ]
    (arguments,) = exporter_arguments(containers)

    assert main([*arguments, "--print-config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["web"]["listen-address"] in ([":9400"], [":9401"])


def test_uid_0_of_the_manifests_has_no_capability() -> None:
    """It is needed for the kubelet's socket; docs/permissions.md tells what it can do to other processes."""
    (exporter,) = [item for item in objects(DEPLOY / "kubernetes/gpuledger.yaml") if item["kind"] == "DaemonSet"]
    pod = exporter["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert "initContainers" not in pod
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsGroup": 0,
        "runAsUser": 0,
    }


def test_compose_mounts_existing_files() -> None:
    """Each mounted file exists, and each service is hardened."""
    services = yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"]

    for name, service in services.items():
        assert "ALL" in service["cap_drop"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:"), f"{name} listens on all addresses"
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            if source.startswith(".") and "mixin" not in source:
                assert (DEPLOY / source).is_file(), source
    assert services["gpuledger"]["pid"] == "host"
    assert services["gpuledger"]["read_only"] is True


def test_dockerignore_includes_the_copied_files() -> None:
    """.dockerignore includes every path that the Dockerfile copies, and the paths exist."""
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    names = {word.rstrip("*") for line in copied for word in line.split()}

    assert {"src", "pyproject.toml", "NOTICE"} <= names
    assert {f"!{name}" for name in names} <= set(ignored)
    assert all((ROOT / name).exists() for name in names - {"deploy/wheels"})  # optional: builds without an index


def test_the_kustomization_of_the_docs() -> None:
    """It names existing files, images and objects. kustomize rejects a patch that begins with [ and is not JSON."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    example = yaml.safe_load(page.partition("```yaml\n# deploy/kubernetes/kustomization.yaml\n")[2].partition("```")[0])
    ((patch,), (image,)) = example["patches"], example["images"]
    exporter = objects(DEPLOY / "kubernetes" / example["resources"][0])
    (target,) = [item for item in exporter if item["kind"] == patch["target"]["kind"]]
    pod = target["spec"]["template"]["spec"]

    assert patch["patch"].startswith("- ")
    assert yaml.safe_load(patch["patch"])[0]["path"] == "/spec/template/spec/runtimeClassName"
    assert {container["image"].partition(":")[0] for container in pod["containers"]} == {image["name"]}
    optional = set(
        re.findall(r"`([\w-]+\.yaml)`", page.partition("Add them to `resources`")[2].partition("Open this")[0])
    )
    assert {*optional, *example["resources"]} == {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")}


def test_chart_values_in_the_docs_are_accepted() -> None:
    """By the schema of the chart; a block is one of values if all its keys are."""
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    checked = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            values = next(yaml.safe_load_all(block))
            if isinstance(values, dict) and set(values) <= set(schema["properties"]):
                jsonschema.validate(values, schema)
                checked.append(page.stem)

    assert "tokens" in checked


@pytest.mark.parametrize("address", ["EXPORTER_PORT={}", "GPULEDGER_WEB_LISTEN_ADDRESS=127.0.0.1:{}"])
def test_the_health_check_of_the_image_follows_the_port(address: str) -> None:
    """It requests /healthz on the port of the environment, and fails on any other."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
    command = json.loads(text.partition("HEALTHCHECK")[2].partition("CMD ")[2].partition("\n")[0])

    def code(port: int) -> int:
        name, _, value = address.format(port).partition("=")
        return subprocess.run([sys.executable, *command[1:]], env={name: value}, check=False).returncode

    with serving("demo", env=surroundings()) as exporter:
        port = int(exporter.url.rpartition(":")[2])
        assert code(port) == 0
    assert code(port) != 0
