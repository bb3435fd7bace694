"""Print a bill of materials of gpuledger and its installed dependencies, as CycloneDX JSON."""

from __future__ import annotations

import json
import re
from importlib.metadata import Distribution, distribution
from typing import Any

from packaging.requirements import Requirement

OURS = "gpuledger"
CLASSIFIED = {"MIT License": "MIT", "BSD License": "BSD-3-Clause", "Apache Software License": "Apache-2.0"}
"""SPDX expressions for classifiers of older packages. The only package with a BSD classifier has three clauses."""


def bill() -> dict[str, Any]:
    """Bill of materials. Reproducible: without timestamps and random ids."""
    packages = needed(OURS)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": _component(packages.pop(OURS), "application")},
        "components": [_component(packages[name], "library") for name in sorted(packages)],
        "dependencies": [
            {
                "ref": _reference(distribution(name)),
                "dependsOn": sorted(_reference(distribution(n)) for n in _names(name)),
            }
            for name in sorted({OURS, *packages})
        ],
    }


def needed(name: str, *extras: str) -> dict[str, Distribution]:
    """A package and its dependencies, direct and indirect, with these extras."""
    packages = {name: distribution(name)}
    pending = _names(name, *extras)
    while pending:
        name = pending.pop()
        if name not in packages:
            packages[name] = distribution(name)
            pending += _names(name)
    return packages


def _names(name: str, *extras: str) -> list[str]:
    """Direct dependencies of a package on this platform, with these extras."""
    requirements = [Requirement(text) for text in distribution(name).requires or ()]
    return [
        _normalized(item.name)
        for item in requirements
        if item.marker is None or any(item.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _reference(package: Distribution) -> str:
    return f"pkg:pypi/{_normalized(package.metadata['Name'])}@{package.version}"


def _component(package: Distribution, kind: str) -> dict[str, Any]:
    reference = _reference(package)
    return {
        "type": kind,
        "bom-ref": reference,
        "name": package.metadata["Name"],
        "version": package.version,
        "purl": reference,
        "licenses": [{"expression": _licence(package)}],
    }


def _licence(package: Distribution) -> str:
    if expressions := package.metadata.get_all("License-Expression"):
        return str(expressions[0])
    classifiers = package.metadata.get_all("Classifier") or []
    for name, expression in CLASSIFIED.items():
        if any(text.endswith(f":: {name}") for text in classifiers):
            return expression
    raise LookupError(f"{package.metadata['Name']} has no known licence classifier; add it to CLASSIFIED")


if __name__ == "__main__":
    print(json.dumps(bill(), indent=2))
