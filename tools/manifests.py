"""Render the chart to deploy/kubernetes, for installation without Helm: `python tools/manifests.py [HELM]`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from gpuledger import __version__

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "helm" / "gpuledger"
OUT = ROOT / "deploy" / "kubernetes"
NAMESPACE = "gpuledger"
HEAD = f"""\
# gpuledger {__version__}: rendered from deploy/helm/gpuledger by `make manifests`; do not edit.
"""
SPACE = """\
---
apiVersion: v1
kind: Namespace
metadata:
  name: gpuledger
  labels:
    # Lower levels do not allow hostPID and hostPath.
    pod-security.kubernetes.io/enforce: privileged
"""
FILES = {
    "gpuledger.yaml": (SPACE, ()),
    "fleet.yaml": ("", ("--show-only=templates/fleet.yaml", "--set=fleet.enabled=true", "--set=fleet.by={namespace}")),
    "monitors.yaml": ("", ("--show-only=templates/servicemonitor.yaml", "--show-only=templates/prometheusrule.yaml",
                           "--set=serviceMonitor.enabled=true", "--set=prometheusRule.enabled=true")),
}  # fmt: skip
"""File name: the text before the rendered output, and flags for Helm."""
HELM_ONLY = re.compile(r"^(# Source: .*| *(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*)\n", re.MULTILINE)


def render(helm: str, name: str) -> str:
    """Rendered content of one file, without the metadata that only Helm needs."""
    before, flags = FILES[name]
    done = subprocess.run(
        [helm, "template", "gpuledger", str(CHART), f"--namespace={NAMESPACE}", "--skip-tests", *flags],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return HEAD + before + HELM_ONLY.sub("", done.stdout)


def rule_files() -> list[Path]:
    """The rule files of the mixin."""
    return [path for folder in ("alerts", "rules") for path in sorted((ROOT / "mixin" / folder).glob("*.yml"))]


def rules() -> str:
    """ConfigMap with one key per rule file of the mixin, for Prometheus without an operator."""
    lines = [HEAD + "---", "apiVersion: v1", "kind: ConfigMap", "metadata:", "  name: gpuledger-rules",
             f"  namespace: {NAMESPACE}", "data:"]  # fmt: skip
    for path in rule_files():
        lines.append(f"  {path.parent.name}-{path.name}: |")
        lines += [f"    {line}".rstrip() for line in path.read_text(encoding="utf-8").splitlines()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    helm = sys.argv[1] if len(sys.argv) > 1 else "helm"
    for name in FILES:
        (OUT / name).write_text(render(helm, name), encoding="utf-8")
    (OUT / "prometheus-rules.yaml").write_text(rules(), encoding="utf-8")
    print(f"wrote {', '.join([*FILES, 'prometheus-rules.yaml'])} to deploy/kubernetes")
