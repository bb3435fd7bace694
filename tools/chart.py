"""Copy the version and the files of mixin/ into the Helm chart, because Helm reads no files outside of a chart."""

from __future__ import annotations

import re
from pathlib import Path

from gpuledger import __version__

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "helm" / "gpuledger"
PATTERNS = ("rules/*.yml", "alerts/*.yml", "dashboards/*.json")


def copies() -> dict[Path, bytes]:
    """Expected files of the chart and their content."""
    mixin = ROOT / "mixin"
    sources = [path for pattern in PATTERNS for path in sorted(mixin.glob(pattern))]
    return {CHART / "files" / path.relative_to(mixin): path.read_bytes() for path in sources}


def present() -> set[Path]:
    """Existing files of the chart."""
    return {path for path in (CHART / "files").rglob("*") if path.is_file()}


def chart(text: str) -> str:
    """Chart.yaml with the current version."""
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
    print(f"wrote {len(wanted)} files of mixin/ and the version to deploy/helm/gpuledger")
