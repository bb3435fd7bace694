"""Workflows of GitHub Actions: what they run exists, and only the publishing jobs may write."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuledger import __version__

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def read(path: Path) -> dict[str, Any]:
    """A workflow."""
    return dict(yaml.safe_load(path.read_text()))


def required(job: dict[str, Any]) -> set[str]:
    """The jobs that must succeed before this one."""
    names = job.get("needs", [])
    return {names} if isinstance(names, str) else set(names)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_commands_exist_and_rights_are_few(path: Path) -> None:
    """Targets of make and files of this repository exist; a workflow as a whole may only read."""
    workflow = read(path)
    text = path.read_text()

    assert workflow["permissions"] == {"contents": "read"}
    assert set(re.findall(r"run: make ([\w-]+)", text)) <= TARGETS
    assert all((ROOT / name).exists() for name in re.findall(r"(?:bash|uses:) (\.[\w./-]+)", text))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    """A tag or branch can be moved; Dependabot updates the commit and the version behind it."""
    actions = re.findall(r"uses: ([^.\s].*)", path.read_text())

    assert actions
    assert [action for action in actions if not re.match(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action)] == []


def test_a_release_is_tested_signed_and_approved() -> None:
    """From a tag: tests first, then all artifacts with attestations, an SBOM, and the image for both architectures."""
    jobs = read(FOLDER / "release.yml")["jobs"]
    text = json.dumps(jobs)

    assert all("test" in required(jobs[name]) for name in ("packages", "image"))
    assert required(jobs["publish"]) == {"packages", "image"}
    assert jobs["publish"]["environment"] == "release"
    for name in ("packages", "image"):
        assert {"id-token", "attestations"} <= set(jobs[name]["permissions"])
    assert "linux/amd64,linux/arm64" in text
    assert text.count("attest-build-provenance") == 2
    assert "sbom.cdx.json" in text


def test_an_image_has_no_tag_before_it_is_approved() -> None:
    """Its job pushes by digest only; the job that a maintainer approves tags this digest."""
    jobs = read(FOLDER / "release.yml")["jobs"]
    (build,) = (step["with"] for step in jobs["image"]["steps"] if "build-push-action" in step.get("uses", ""))
    (tag,) = (step for step in jobs["publish"]["steps"] if "imagetools create" in step.get("run", ""))

    assert {"push", "tags"} & set(build) == set()
    assert "push-by-digest=true" in build["outputs"]
    assert jobs["image"]["outputs"]["digest"] == "${{ steps.build.outputs.digest }}"
    assert tag["env"]["DIGEST"] == "${{ needs.image.outputs.digest }}"
    assert jobs["publish"]["permissions"]["packages"] == "write"


def test_the_citation_has_the_version() -> None:
    """Of the program; the release checklist names both places."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())

    assert citation["version"] == __version__
    assert citation["license"] == "Apache-2.0"
    assert "CITATION.cff" in (ROOT / "CONTRIBUTING.md").read_text()


def test_dependencies_are_updated() -> None:
    """Dependabot knows each kind of dependency that this repository pins."""
    updates = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())["updates"]

    assert {entry["package-ecosystem"] for entry in updates} == {"github-actions", "docker", "pip"}
