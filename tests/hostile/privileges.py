"""Sets of permissions of an exporter, and the table in docs/permissions.md with what each of them allows."""

from __future__ import annotations

import re

from tests.checkout import ROOT

HEADING = "## What uid 0 can do to other processes"
PAGE = (ROOT / "docs" / "permissions.md").read_text()
SECTION = PAGE.partition(HEADING)[2].partition("\n## ")[0]
ROW = re.compile(r"^\| .*(?:yes|no) \|$", re.MULTILINE)
ROWS = [[cell.strip() for cell in row.strip("|").split("|")] for row in ROW.findall(SECTION)]
PLAIN = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
NOBODY = ["--reuid=65534", "--regid=65534", "--clear-groups"]
EXPORTERS = {
    "uid 0 without capabilities": PLAIN,
    "nobody": [*PLAIN, *NOBODY],
    "uid 0 with SYS_PTRACE": ["--bounding-set=-all,+sys_ptrace", "--inh-caps=-all", "--no-new-privs"],
}
