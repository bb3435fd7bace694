"""deploy/: what it repeats of the program is still so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools import chart, manifests

from gpuledger import __version__
from gpuledger.cli import main
from gpuledger.config import CONFIG_FILE, OPTIONS
from gpuledger.fleet.settings import OPTIONS as FLEET_OPTIONS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FLAGS = {name for option in (*OPTIONS, *FLEET_OPTIONS, CONFIG_FILE) for name in (option.key, *option.aliases)}
FREE = {"config", "containerSecurityContext", "resources", "affinity"}
"""Values whose keys are Kubernetes's or the program's own."""


def objects(path: Path) -> list[dict[str, Any]]:
    """All of a file."""
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def ours(containers: list[dict[str, Any]]) -> Iterator[list[str]]:
    """The arguments of containers that run gpuledger."""
    for container in containers:
        if container["image"].startswith("gpuledger"):
            yield container["args"]


def test_the_chart_has_the_mixin_and_the_version() -> None:
    """As they are now: Helm reads nothing outside of the chart."""
    wanted = chart.copies()

    assert {path: path.read_bytes() for path in chart.present()} == wanted, "run `make docs`"
    text = (chart.CHART / "Chart.yaml").read_text()
    assert text == chart.chart(text), "run `make docs`"
    assert yaml.safe_load(text)["appVersion"] == __version__
    assert (manifests.OUT / "prometheus-rules.yaml").read_text() == manifests.rules(), "run `make manifests`"


def test_the_version_is_the_same_everywhere() -> None:
    """`src/gpuledger/__init__.py` has it; manifests and pages that repeat it are not left behind."""
    pages = [*manifests.OUT.glob("*.yaml"), *(ROOT / "docs").glob("*.md")]
    found = {
        version
        for path in pages
        for version in re.findall(
            r"\bgpuledger[ :-](\d+\.\d+\.\d+)|kubernetes\.io/version: \"([^\"]+)\"", path.read_text()
        )
    }

    assert {one or other for one, other in found} == {__version__}


def test_the_schema_knows_every_value_and_no_other() -> None:
    """Else a value is refused that is there, or a misspelt one is not."""
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
def test_variants_set_what_there_is(path: Path) -> None:
    """Each key of ci/ is one of values.yaml."""
    known = yaml.safe_load((chart.CHART / "values.yaml").read_text())

    def check(given: dict[str, Any], known: dict[str, Any], where: str) -> None:
        for name, value in given.items():
            assert name in known, f"{where}.{name}"
            if isinstance(value, dict) and known[name] and name not in FREE:
                check(value, known[name], f"{where}.{name}")

    check(yaml.safe_load(path.read_text()), known, path.name)


def test_every_flag_is_one_of_ours() -> None:
    """In the unit, the chart, the manifests and Compose."""
    texts = [(DEPLOY / "systemd/gpuledger.service").read_text(), (DEPLOY / "compose.yml").read_text()]
    texts += [path.read_text() for path in (chart.CHART / "templates").glob("*.yaml")]
    lines = [
        line for text in texts for line in text.splitlines() if re.search(r"gpuledger serve|serve, | - .*--\w", line)
    ]
    named = {flag for line in lines for flag in re.findall(r"(?<![\w-])--([a-z][\w.-]+)", line)}
    prometheus = {"storage.tsdb.path", "storage.tsdb.retention.time"}

    assert len(named) > 12
    assert named - FLAGS - prometheus == set()


@pytest.mark.parametrize("name", ["gpuledger.yaml", "fleet.yaml"])
def test_the_program_takes_the_arguments_of_the_manifests(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them, with their values."""
    kinds = ("DaemonSet", "Deployment")
    containers = [
        container
        for one in objects(DEPLOY / "kubernetes" / name)
        if one["kind"] in kinds
        for container in one["spec"]["template"]["spec"]["containers"]
    ]
    (arguments,) = ours(containers)

    assert main([*arguments, "--print-config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["web"]["listen-address"] in ([":9400"], [":9401"])


def test_compose_mounts_what_is_there() -> None:
    """Each file of this repository that it mounts exists, and each service is locked up."""
    services = yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"]

    for name, service in services.items():
        assert "ALL" in service["cap_drop"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:"), f"{name} is open to everybody"
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            if source.startswith(".") and "mixin" not in source:
                assert (DEPLOY / source).is_file(), source
    assert services["gpuledger"]["pid"] == "host"
    assert services["gpuledger"]["read_only"] is True


def test_the_image_gets_what_it_copies() -> None:
    """.dockerignore lets through each thing that the Dockerfile copies, and each is there."""
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    names = {word.rstrip("*") for line in copied for word in line.split()}

    assert {"src", "pyproject.toml", "NOTICE"} <= names
    assert {f"!{name}" for name in names} <= set(ignored)
    assert all((ROOT / name).exists() for name in names - {"deploy/wheels"})  # those only where there is no index
