"""The commands of the README, for the tests that run them."""

from __future__ import annotations

import re

from tests.checkout import ROOT

TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS: list[str] = [
    part for block in BLOCKS for line in block.replace("\\\n", "").splitlines() for part in line.split(" && ")
]


def command(begin: str) -> str:
    """The only command that begins so."""
    (found,) = [line for line in COMMANDS if line.startswith(begin)]
    return found
