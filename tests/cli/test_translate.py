"""`gpuledger translate`: a diff, a change on request, and what it could not do."""

from __future__ import annotations

from pathlib import Path

from tests.cli.running import gpuledger

RULE = "expr: avg(DCGM_FI_DEV_GPU_UTIL) > 80\n"
NEW = "expr: avg((DCGM_FI_DEV_GPU_UTIL_RATIO * 100)) > 80\n"


def test_it_shows_and_changes_only_on_request(tmp_path: Path) -> None:
    """A unified diff; with --write the file changes, and --to old brings it back."""
    path = tmp_path / "rule.yml"
    path.write_text(RULE)

    shown = gpuledger("translate", str(path))
    assert (shown.returncode, shown.stderr, path.read_text()) == (0, "", RULE)
    assert shown.stdout == f"--- {path}\n+++ {path}\n@@ -1 +1 @@\n-{RULE}+{NEW}"
    assert gpuledger("translate", "--write", str(path)).returncode == 0
    assert path.read_text() == NEW
    assert gpuledger("translate", "--to", "old", "--write", str(path)).returncode == 0
    assert path.read_text() == RULE
    assert gpuledger("translate", "--to", "old", str(path)).stdout == ""


def test_line_ends_stay(tmp_path: Path) -> None:
    """A file of Windows stays one."""
    path = tmp_path / "rule.yml"
    path.write_bytes(f"a: 1\r\n{RULE}".encode())

    assert gpuledger("translate", "--write", str(path)).returncode == 0
    assert path.read_bytes() == f"a: 1\r\n{NEW}".encode()


def test_what_is_left_is_listed(tmp_path: Path) -> None:
    """With file and line, and exit code 1."""
    path = tmp_path / "rule.yml"
    path.write_text(f"{RULE}summary: DCGM_FI_DEV_GPU_UTIL\n")
    done = gpuledger("translate", str(path))

    assert done.returncode == 1
    assert done.stderr == f"{path}:2: not translated: DCGM_FI_DEV_GPU_UTIL: `summary` is no PromQL\n"


def test_bad_files_are_named(tmp_path: Path) -> None:
    """A missing file, one that is no text, and a template: one line each, exit code 2."""
    path = tmp_path / "chart.yaml"
    path.write_text("{{- if .Values.x }}\na: b\n{{- end }}\n")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")

    for name, reason in (
        (path, f"{path} is neither YAML nor JSON: "),
        (binary, f"{binary} is not a text file in UTF-8"),
        (tmp_path / "none", f"cannot read {tmp_path / 'none'}: No such file or directory"),
    ):
        done = gpuledger("translate", str(name))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith(f"gpuledger: {reason}")
