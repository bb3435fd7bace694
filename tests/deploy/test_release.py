"""Releases: reproducible archives, their content, and the dependencies."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution
from pathlib import Path

import pytest
import yaml

from gpuledger import __version__, cli
from gpuledger.cli import COMMANDS, version_text
from gpuledger.config.exporter import OPTIONS
from gpuledger.config.settings import options_of
from gpuledger.tools.fleet.settings import FleetSettings
from tests import checkout
from tools import audit, hashes, kubectlzip, man, sbom

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two copies of the tracked files, in different directories and with different timestamps."""
    copies = [tmp_path_factory.mktemp(name) for name in ("one", "another")]
    for number, copy in enumerate(copies):
        checkout.copy_to(copy)
        for path in copy.rglob("*"):
            os.utime(path, (number * 1e9, number * 1e9))
    return copies


def build(tree: Path, kind: str) -> Path:
    """Build one archive, like `make dist`."""
    environment = {"PATH": os.environ["PATH"], "SOURCE_COMMIT": "c0ffee", "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", "out"], cwd=tree, env=environment,
                   check=True, capture_output=True)  # fmt: skip
    return next((tree / "out").glob("*.whl" if kind == "wheel" else "*.tar.gz"))


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.needs("git")
def test_archives_are_reproducible(trees: list[Path], tmp_path: Path) -> None:
    """Two trees give identical archives, and so does the unpacked sdist outside of git."""
    wheels = [build(tree, "wheel") for tree in trees]
    sdists = [build(tree, "sdist") for tree in trees]
    subprocess.run(["tar", "-xzf", sdists[0], "-C", tmp_path], check=True)

    from_sdist = build(tmp_path / f"gpuledger-{__version__}", "wheel")

    assert digest(wheels[0]) == digest(wheels[1]) == digest(from_sdist)
    assert digest(sdists[0]) == digest(sdists[1])


@pytest.mark.needs("git")
def test_content_of_the_wheel(trees: list[Path]) -> None:
    """The wheel has the program, recording, commit, licences and manual page, but no tests and no tools."""
    with zipfile.ZipFile(build(trees[0], "wheel")) as wheel:
        names = set(wheel.namelist())
        commit = json.loads(wheel.read("gpuledger/build.json"))

    info = f"gpuledger-{__version__}.dist-info"
    wanted = {"gpuledger/demo.jsonl.gz", "gpuledger/py.typed", f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE"}
    assert wanted <= names
    shared = ("man/man1/gpuledger.1", "bash-completion/completions/gpuledger")
    assert {f"gpuledger-{__version__}.data/data/share/{name}" for name in shared} <= names
    assert commit == {"commit": "c0ffee", "date": "2023-11-14"}
    assert {name.partition("/")[0] for name in names} == {"gpuledger", info, f"gpuledger-{__version__}.data"}


def test_the_version_names_the_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The commit of the wheel is shown; an invalid file counts as missing."""
    monkeypatch.setattr(cli, "BUILD", tmp_path / "build.json")
    for text, shown in (('{"commit": "c0ffee", "date": "2023-11-14"}', "commit c0ffee, 2023-11-14"),
                       ('{"commit": "c0ffee", "date": ""}', "commit c0ffee"),
                       ("[]", "from a source tree"), ("{", "from a source tree")):  # fmt: skip
        cli.BUILD.write_text(text)
        assert version_text().startswith(f"gpuledger {__version__} ({shown})\n")


def test_the_manual_page_is_current_and_complete() -> None:
    """The manual page is up to date and has every command and setting."""
    text = man.PAGE.read_text()

    assert text == man.page(), "run `make docs`"
    for option in (*OPTIONS, *options_of(FleetSettings)):
        assert "\\fB" + f"--{option.key}".replace("-", "\\-") + "\\fR" in text
    assert all(f".B {name}\n" in text for name in COMMANDS)


def test_the_bill_of_materials_lists_the_dependencies() -> None:
    """All dependencies of a plain installation, with version and licence, and no test dependencies."""
    bill = sbom.bill()
    parts = {part["name"].lower(): part for part in bill["components"]}

    assert bill["metadata"]["component"]["version"] == __version__
    assert set(parts) == {"h2", "hpack", "hyperframe", "pyyaml"}
    assert {part["licenses"][0]["expression"] for part in parts.values()} == {"MIT"}
    references = {part["bom-ref"] for part in (*bill["components"], bill["metadata"]["component"])}
    assert {item["ref"] for item in bill["dependencies"]} == references
    assert {ref for item in bill["dependencies"] for ref in item["dependsOn"]} < references


def test_the_notice_lists_the_dependencies() -> None:
    """NOTICE has each package of the bill of materials with its licence."""
    notice = (ROOT / "NOTICE").read_text()
    lines = [line for line in notice.splitlines() if line.startswith("  ")]

    for part in sbom.bill()["components"]:
        assert any(part["name"] in line and part["licenses"][0]["expression"] in line for line in lines), part["name"]


def test_known_vulnerabilities_are_reported() -> None:
    """Vulnerabilities of dependencies and extras, except withdrawn ones; packages without an answer are listed."""
    vulnerability = {"id": "PYSEC-1", "fixed_in": ["9.9"], "summary": "bad", "withdrawn": None}
    withdrawn = vulnerability | {"id": "PYSEC-2", "withdrawn": "2026-01-01"}

    def read(url: str) -> bytes:
        if "/h2/" in url or "/bcrypt/" in url:
            return json.dumps({"vulnerabilities": [vulnerability, withdrawn]}).encode()
        if "/hpack/" in url:
            raise TimeoutError("no answer")
        return b'{"vulnerabilities": []}'

    vulnerable, unchecked = audit.audit(read)

    assert sorted(line.partition(" ")[0] for line in vulnerable) == ["bcrypt", "h2"]
    assert all(line.endswith("PYSEC-1, fixed in 9.9: bad") for line in vulnerable)
    assert [line.partition(" ")[0] for line in unchecked] == ["hpack"]


def test_an_audit_of_nothing_fails() -> None:
    """Without an answer for any package, nothing was audited; without one for a single package, only with --strict."""
    silent = {"/"}

    def read(url: str) -> bytes:
        if any(part in url for part in silent):
            raise TimeoutError("no answer")
        return b'{"vulnerabilities": []}'

    nothing = audit.audit(read)
    silent.remove("/")
    silent.add("/hpack/")
    most = audit.audit(read)

    assert audit.exit_code(*nothing, strict=False) == 2
    assert audit.exit_code(*most, strict=False) == 0
    assert audit.exit_code(*most, strict=True) == 2
    assert audit.exit_code(["x"], nothing[1], strict=False) == 1


@pytest.mark.parametrize(
    ("file", "needed"), [(hashes.IMAGE, sbom.needed("gpuledger", "auth")), (hashes.BUILD, sbom.needed("hatchling"))]
)
def test_packages_of_the_image_have_hashes(file: Path, needed: dict[str, Distribution]) -> None:
    """All that `gpuledger[auth]` and its build need, as in constraints.txt, with wheels for both machines."""
    lines = file.read_text().replace("\\\n", "").splitlines()[1:]
    listed = dict(line.split()[0].split("==") for line in lines)

    assert listed == hashes.versions(file)
    assert {name.lower() for name in listed} == {name.lower() for name in needed} - {"gpuledger"}
    assert all(line.count("--hash=sha256:") >= (2 if "bcrypt" in line or "PyYAML" in line else 1) for line in lines)


def test_the_kubectl_plugin_is_one_file(tmp_path: Path) -> None:
    """It is reproducible, needs only Python, and its krew manifest has the checksum of the archive."""
    archive = kubectlzip.package()
    assert archive == kubectlzip.package()
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(tmp_path, filter="data")
    command = [sys.executable, "-S", "-I", str(tmp_path / "kubectl-gpu"), "top", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith("usage: kubectl gpu top")

    manifest = yaml.safe_load(kubectlzip.manifest(archive, "o/gpuledger"))
    (platform,) = manifest["spec"]["platforms"]
    assert platform["sha256"] == hashlib.sha256(archive).hexdigest()
    assert platform["uri"] == f"https://github.com/o/gpuledger/releases/download/v{__version__}/kubectl-gpu.tar.gz"
    assert manifest["spec"]["version"] == f"v{__version__}"
