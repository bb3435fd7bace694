"""Check the installed dependencies of gpuledger and its extras for known vulnerabilities, with PyPI.

Exits with 1 if there is a vulnerability, and with 2 if PyPI answered for no package, or with --strict, not for all.
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
"""The image contains `auth`; `top` may run in the terminal of root."""


def audit(read: Read) -> tuple[list[str], list[str]]:
    """Known vulnerabilities, and packages that could not be checked."""
    vulnerabilities: list[str] = []
    unchecked: list[str] = []
    packages = needed(OURS, *EXTRAS)
    del packages[OURS]
    for package in packages.values():
        name, version = package.metadata["Name"], package.version
        try:
            project = json.loads(read(f"https://pypi.org/pypi/{name}/{version}/json"))
        except (OSError, ValueError) as error:
            unchecked.append(f"{name} {version}: {error.reason if isinstance(error, URLError) else error}")
            continue
        vulnerabilities += [f"{name} {version}: {line}" for line in _vulnerabilities(project)]
    return vulnerabilities, unchecked


def exit_code(vulnerabilities: list[str], unchecked: list[str], *, strict: bool) -> int:
    """1 if there is a vulnerability, 2 if nothing is known of the packages."""
    if vulnerabilities:
        return 1
    return 2 if len(unchecked) >= (1 if strict else len(needed(OURS, *EXTRAS)) - 1) else 0


def _vulnerabilities(project: dict[str, Any]) -> Iterator[str]:
    for entry in project.get("vulnerabilities", ()):
        if not entry.get("withdrawn"):
            fixed = ", ".join(entry.get("fixed_in", ())) or "no version"
            yield f"{entry['id']}, fixed in {fixed}: {entry.get('summary') or entry.get('link') or ''}"


def _get(url: str) -> bytes:
    with urlopen(url, timeout=20) as response:  # noqa: S310 - always https
        return bytes(response.read())


if __name__ == "__main__":
    vulnerable, unknown = audit(_get)
    for line in vulnerable:
        print(f"vulnerable: {line}")
    for line in unknown:
        print(f"not checked: {line}")
    print(f"{len(vulnerable)} known vulnerabilities in dependencies; {len(unknown)} packages could not be checked")
    sys.exit(exit_code(vulnerable, unknown, strict="--strict" in sys.argv))
