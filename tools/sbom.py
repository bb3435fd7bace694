"""Write a bill of materials: gpuledger and what it needs as installed here, in CycloneDX's JSON, to standard output."""

from __future__ import annotations

import json
import re
from importlib.metadata import Distribution, distribution
from typing import Any

from packaging.requirements import Requirement

OURS = "gpuledger"
CLASSIFIED = {"MIT License": "MIT", "BSD License": "BSD-3-Clause", "Apache Software License": "Apache-2.0"}
"""What older packages say in place of an SPDX expression; the one under BSD has three clauses in its file."""


def bill() -> dict[str, Any]:
    """The same for the same packages: no time and no random number is in it."""
    found = needed(OURS)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": _component(found.pop(OURS), "application")},
        "components": [_component(found[name], "library") for name in sorted(found)],
        "dependencies": [
            {
                "ref": _reference(distribution(name)),
                "dependsOn": sorted(_reference(distribution(n)) for n in _names(name)),
            }
            for name in sorted({OURS, *found})
        ],
    }


def needed(name: str, *extras: str) -> dict[str, Distribution]:
    """A package and all that it needs, with these extras of it."""
    found = {name: distribution(name)}
    left = _names(name, *extras)
    while left:
        name = left.pop()
        if name not in found:
            found[name] = distribution(name)
            left += _names(name)
    return found


def _names(name: str, *extras: str) -> list[str]:
    """What a package needs here; extras nobody asked for are left out."""
    wanted = [Requirement(text) for text in distribution(name).requires or ()]
    return [
        _plain(one.name)
        for one in wanted
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _reference(package: Distribution) -> str:
    return f"pkg:pypi/{_plain(package.metadata['Name'])}@{package.version}"


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
    raise LookupError(f"{package.metadata['Name']} names no licence that is known; add it to CLASSIFIED")


if __name__ == "__main__":
    print(json.dumps(bill(), indent=2))
