"""A release: one version, archives that can be made again, what is in them, and what it stands on."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tools import audit, man, sbom

from gpuledger import __version__, cli
from gpuledger.cli import COMMANDS, version_text
from gpuledger.config import OPTIONS
from gpuledger.fleet.settings import OPTIONS as FLEET_OPTIONS
from tests import checkout

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two copies of what git knows, at different places and with different times."""
    copies = [tmp_path_factory.mktemp(name) for name in ("one", "another")]
    for number, copy in enumerate(copies):
        checkout.copy_to(copy)
        for path in copy.rglob("*"):
            os.utime(path, (number * 1e9, number * 1e9))
    return copies


def build(tree: Path, kind: str) -> Path:
    """One archive, as `make dist` makes it."""
    environment = {"PATH": os.environ["PATH"], "SOURCE_COMMIT": "c0ffee", "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", "out"], cwd=tree, env=environment,
                   check=True, capture_output=True)  # fmt: skip
    return next((tree / "out").glob("*.whl" if kind == "wheel" else "*.tar.gz"))


def digest(path: Path) -> str:
    """Of its bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_archives_can_be_made_again(trees: list[Path], tmp_path: Path) -> None:
    """Two trees give the same bytes, and so does the sdist, unpacked where git knows nothing."""
    wheels = [build(tree, "wheel") for tree in trees]
    sdists = [build(tree, "sdist") for tree in trees]
    subprocess.run(["tar", "-xzf", sdists[0], "-C", tmp_path], check=True)

    again = build(tmp_path / f"gpuledger-{__version__}", "wheel")

    assert digest(wheels[0]) == digest(wheels[1]) == digest(again)
    assert digest(sdists[0]) == digest(sdists[1])


def test_what_is_in_the_wheel(trees: list[Path]) -> None:
    """The program with its recording, commit, licences and manual; no tests and no tools."""
    with zipfile.ZipFile(build(trees[0], "wheel")) as wheel:
        names = set(wheel.namelist())
        commit = json.loads(wheel.read("gpuledger/build.json"))

    info = f"gpuledger-{__version__}.dist-info"
    wanted = {"gpuledger/demo.jsonl.gz", "gpuledger/py.typed", f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE"}
    assert wanted <= names
    assert f"gpuledger-{__version__}.data/data/share/man/man1/gpuledger.1" in names
    assert commit == {"commit": "c0ffee", "date": "2023-11-14"}
    assert {name.partition("/")[0] for name in names} == {"gpuledger", info, f"gpuledger-{__version__}.data"}


def test_the_version_says_of_which_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As the wheel has it; a file that is broken is as good as none."""
    monkeypatch.setattr(cli, "BUILD", tmp_path / "build.json")
    for text, said in (('{"commit": "c0ffee", "date": "2023-11-14"}', "commit c0ffee, 2023-11-14"),
                       ('{"commit": "c0ffee", "date": ""}', "commit c0ffee"),
                       ("[]", "from a source tree"), ("{", "from a source tree")):  # fmt: skip
        cli.BUILD.write_text(text)
        assert version_text().startswith(f"gpuledger {__version__} ({said})\n")


def test_the_manual_is_fresh_and_whole() -> None:
    """Every command and every setting is in it, as the code has them now."""
    text = man.PAGE.read_text()

    assert text == man.page(), "run `make docs`"
    for option in (*OPTIONS, *FLEET_OPTIONS):
        assert "\\fB" + f"--{option.key}".replace("-", "\\-") + "\\fR" in text
    assert all(f".B {name}\n" in text for name in COMMANDS)


def test_the_bill_of_materials_names_what_is_needed() -> None:
    """All that a bare installation brings, each with version and licence, and nothing that only tests need."""
    bill = sbom.bill()
    parts = {part["name"].lower(): part for part in bill["components"]}

    assert bill["metadata"]["component"]["version"] == __version__
    assert set(parts) == {"h2", "hpack", "hyperframe", "nvidia-ml-py", "pyyaml"}
    assert {part["licenses"][0]["expression"] for part in parts.values()} == {"MIT", "BSD-3-Clause"}
    references = {part["bom-ref"] for part in (*bill["components"], bill["metadata"]["component"])}
    assert {one["ref"] for one in bill["dependencies"]} == references
    assert {ref for one in bill["dependencies"] for ref in one["dependsOn"]} < references


def test_the_notice_names_what_is_needed() -> None:
    """Each package of the bill of materials, with the licence it has there."""
    notice = (ROOT / "NOTICE").read_text()
    lines = [line for line in notice.splitlines() if line.startswith("  ")]

    for part in sbom.bill()["components"]:
        assert any(part["name"] in line and part["licenses"][0]["expression"] in line for line in lines), part["name"]


def test_known_weaknesses_are_told() -> None:
    """Those that were not withdrawn, of the versions installed here, of extras too; who cannot be asked for is told."""
    weakness = {"id": "PYSEC-1", "fixed_in": ["9.9"], "summary": "bad", "withdrawn": None}
    withdrawn = weakness | {"id": "PYSEC-2", "withdrawn": "2026-01-01"}

    def read(url: str) -> bytes:
        if "/h2/" in url or "/bcrypt/" in url:
            return json.dumps({"vulnerabilities": [weakness, withdrawn]}).encode()
        if "/hpack/" in url:
            raise TimeoutError("no answer")
        return b'{"vulnerabilities": []}'

    weak, silent = audit.audit(read)

    assert sorted(line.partition(" ")[0] for line in weak) == ["bcrypt", "h2"]
    assert all(line.endswith("PYSEC-1, fixed in 9.9: bad") for line in weak)
    assert [line.partition(" ")[0] for line in silent] == ["hpack"]
