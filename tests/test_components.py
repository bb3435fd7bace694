"""What `make test` says of a machine that lacks something."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import components
from tests.checkout import ROOT
from tests.components import CHECKS, INDEX, NETWORK, PACKAGES, SEPARATE, TESTS, files_by_component, index_url, proxy_of

ESSENTIAL = {"bash", "dpkg", "util-linux"}
"""Packages that every Debian has."""


def nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any component."""
    monkeypatch.setattr(components, "find", lambda _: None)
    for name in CHECKS:
        monkeypatch.setitem(CHECKS, name, lambda: False)


def test_only_marks_skip_a_test() -> None:
    """A skip by other means is in no list, and STRICT=1 does not fail it."""
    other = re.compile(r"pytest\.(skip|importorskip)\(|mark\.(skip|skipif|xfail)\b")
    files = [path for path in TESTS.rglob("*.py") if path.relative_to(TESTS).parts[0] not in SEPARATE]
    found = [str(path.relative_to(ROOT)) for path in files if other.search(path.read_text())]

    assert sorted(found) == ["tests/components.py"]


def test_each_component_is_known() -> None:
    """A mark names a check or a program with its package, and .ci/run installs that package."""
    named = set(files_by_component())
    installed = re.findall(r"need\+=\(([^)]*)\)", (ROOT / ".ci" / "run").read_text())
    packages = {PACKAGES[name] for name in named - set(CHECKS)}

    assert named <= {*CHECKS, *PACKAGES}
    assert packages - ESSENTIAL <= {package for group in installed for package in group.split()}


def test_separate_folders_exist() -> None:
    """Each has tests, and its command is a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    for folder, command in SEPARATE.items():
        assert list((TESTS / folder).glob("test_*.py"))
        assert re.search(rf"^{command.removeprefix('make ')}:", makefile, re.MULTILINE)


def test_the_list_comes_before_the_network(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What is missing here is printed when the check of the network begins."""
    printed: list[str] = []

    def check() -> bool:
        printed.append(capsys.readouterr().out)
        return False

    nothing_here(monkeypatch)
    monkeypatch.setitem(CHECKS, NETWORK, check)
    monkeypatch.delenv("STRICT", raising=False)

    assert components.main() == 0
    assert "tests/image (make image-test)" in printed[0]
    assert "are left out:\n" in printed[0]
    assert "  openssl (apt install openssl): " in printed[0]
    assert capsys.readouterr().out.startswith("  a connection to pip's package index: tests/real/")


def test_the_summary_has_one_line_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """All packages of the components that are missing, once each, and what no package provides."""
    nothing_here(monkeypatch)

    left_out, packages, others = components.summary().splitlines()

    assert left_out.startswith("Tests were left out, because this machine lacks: cc, ")
    assert packages.startswith("Install with: apt install bash busybox-static chromium containerd curl docker.io dpkg ")
    assert len(packages.split()) == len(set(packages.split()))
    assert "root (with CAP_SYS_ADMIN)" in others


def test_without_a_compiler_tests_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not failed, and Zig is not downloaded."""
    monkeypatch.setenv("CC", "no-compiler")
    monkeypatch.setattr(components, "_has_compiler", lambda: False)
    monkeypatch.delenv("STRICT", raising=False)

    with pytest.raises(pytest.skip.Exception, match=r"cc \(apt install gcc or make zig\) is missing"):
        components.compiler()


def test_downloads_are_announced_with_their_size() -> None:
    """Before each step of make that downloads; the browser and the compiler are steps of their own."""
    makefile = (ROOT / "Makefile").read_text()
    steps = re.findall(r'@echo "(Downloading .*)"\n(?:\t.*venv.*\n)?\t\$\(PIP\) (.*(?:\\\n.*)*)', makefile)

    assert [bool(re.search(r"\d+ MB", announced)) for announced, _ in steps] == [True] * makefile.count("\t$(PIP) ")
    assert [words for _, words in steps][1:] == ["playwright", "ziglang"]
    assert not {"playwright", "ziglang"} & set(steps[0][1].split())


def test_a_missing_component_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """With STRICT=1, the list ends make, and a test fails."""
    nothing_here(monkeypatch)
    monkeypatch.setenv("STRICT", "1")

    assert components.main() == 1
    with pytest.raises(pytest.fail.Exception, match=r"tmux \(apt install tmux\) is missing"):
        components.leave_out("tmux")


def test_a_name_server_that_hangs() -> None:
    """The check ends within its limit."""
    release = threading.Event()

    def hang() -> None:
        release.wait()

    try:
        assert not components._within(0.01, hang)
    finally:
        release.set()


def test_the_index_is_the_one_of_pip(tmp_path: Path) -> None:
    """A mirror counts: by the variable, or by the last file with one; a damaged file is ignored."""
    first, second, damaged = tmp_path / "first", tmp_path / "second", tmp_path / "damaged"
    first.write_text("[global]\nindex-url = https://mirror.example/simple\ncert = %x\n")
    second.write_text("[install]\nindex-url = http://other.example:8080/simple\n")
    damaged.write_text("index-url\n")

    assert index_url({}, []) == INDEX
    assert index_url({}, [str(tmp_path / "none"), str(damaged), str(first)]) == "https://mirror.example/simple"
    assert index_url({"PIP_CONFIG_FILE": str(second)}, [str(first)]) == "http://other.example:8080/simple"
    assert index_url({"PIP_INDEX_URL": "https://v.example"}, [str(first)]) == "https://v.example"


def test_the_proxy_is_the_one_of_pip() -> None:
    """By the scheme of the index."""
    env = {"https_proxy": "http://proxy:3128", "HTTP_PROXY": "http://plain:3128"}

    assert proxy_of("https://pypi.org", env) == "http://proxy:3128"
    assert proxy_of("http://mirror", env) == "http://plain:3128"
    assert proxy_of("https://pypi.org", {}) is None


def test_it_needs_nothing_but_python() -> None:
    """No package of the virtual environment, because it comes first."""
    argv = [sys.executable, "-I", "-S", str(TESTS / "components.py")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={"PIP_INDEX_URL": "file:///"})

    assert done.stderr == ""
    assert done.returncode == 0
