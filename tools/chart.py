"""Write what the Helm chart repeats: the version, and the mixin's files, which Helm cannot reach outside of it."""

from __future__ import annotations

import re
from pathlib import Path

from gpuledger import __version__

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "helm" / "gpuledger"
PATTERNS = ("rules/*.yml", "alerts/*.yml", "dashboards/*.json")


def copies() -> dict[Path, bytes]:
    """The chart's files, each with what must be in it."""
    mixin = ROOT / "mixin"
    found = [path for pattern in PATTERNS for path in sorted(mixin.glob(pattern))]
    return {CHART / "files" / path.relative_to(mixin): path.read_bytes() for path in found}


def present() -> set[Path]:
    """The chart's files that are there."""
    return {path for path in (CHART / "files").rglob("*") if path.is_file()}


def chart(text: str) -> str:
    """Chart.yaml with the program's version."""
    text = re.sub(r"^version: .*$", f"version: {__version__}", text, flags=re.MULTILINE)
    return re.sub(r"^appVersion: .*$", f'appVersion: "{__version__}"', text, flags=re.MULTILINE)


if __name__ == "__main__":
    wanted = copies()
    for path in present() - set(wanted):
        path.unlink()
    for path, content in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    yaml = CHART / "Chart.yaml"
    yaml.write_text(chart(yaml.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {len(wanted)} files of mixin/ and the version into deploy/helm/gpuledger")
