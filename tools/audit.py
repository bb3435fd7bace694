"""Ask PyPI whether a weakness is known in what gpuledger and its extras need, at the versions installed here.

Exit code 1 when there is one. Where PyPI cannot be asked it says so, and with --strict that is 1 as well.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from tools.sbom import OURS, needed

Read = Callable[[str], bytes]
EXTRAS = ("auth", "top")
"""They are in the image, or on a terminal of somebody who may be root."""


def audit(read: Read) -> tuple[list[str], list[str]]:
    """The weaknesses, and the packages that could not be asked for."""
    known: list[str] = []
    unasked: list[str] = []
    packages = needed(OURS, *EXTRAS)
    del packages[OURS]
    for package in packages.values():
        name, version = package.metadata["Name"], package.version
        try:
            told = json.loads(read(f"https://pypi.org/pypi/{name}/{version}/json"))
        except (OSError, ValueError) as error:
            unasked.append(f"{name} {version}: {error.reason if isinstance(error, URLError) else error}")
            continue
        known += [f"{name} {version}: {line}" for line in _weaknesses(told)]
    return known, unasked


def _weaknesses(told: dict[str, Any]) -> Iterator[str]:
    for one in told.get("vulnerabilities", ()):
        if not one.get("withdrawn"):
            fixed = ", ".join(one.get("fixed_in", ())) or "no version"
            yield f"{one['id']}, fixed in {fixed}: {one.get('summary') or one.get('link') or ''}"


def _get(url: str) -> bytes:
    with urlopen(url, timeout=20) as response:  # noqa: S310 - always https
        return bytes(response.read())


if __name__ == "__main__":
    weak, silent = audit(_get)
    for line in weak:
        print(f"weakness: {line}")
    for line in silent:
        print(f"not audited: {line}")
    print(f"{len(weak)} known weaknesses in what gpuledger needs; {len(silent)} packages could not be asked for")
    sys.exit(bool(weak) or ("--strict" in sys.argv and bool(silent)))
