"""The archive for a bug report: findings, settings, versions, one scrape and the log, without names and secrets.

Never in it: environments and command lines, of this process or of any other.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gpuledger.config import Config, dump
from gpuledger.doctor.finding import Finding
from gpuledger.doctor.redact import Redactor
from gpuledger.wholefile import replacing

FOLDER = "gpuledger-doctor"


def report(findings: Sequence[Finding], versions: dict[str, str]) -> str:
    """The findings as JSON."""
    told = {"version": 1, "versions": versions, "findings": [asdict(finding) for finding in findings]}
    return json.dumps(told, indent=1) + "\n"


@dataclass(frozen=True, slots=True)
class Contents:
    """What goes into it, as it is; names are taken out on the way."""

    findings: Sequence[Finding]
    settings: Config
    versions: dict[str, str]
    metrics: str
    log: Sequence[str]


def write(path: str | Path, contents: Contents) -> None:
    """Write it, whole or not at all."""
    settings = contents.settings
    addresses = (*settings.docker_host, settings.dcgm_exporter_url, os.environ.get("DOCKER_HOST", ""))
    names = Redactor((os.uname().nodename, settings.kubernetes_node_name), addresses)
    # First, because it says which names there are.
    scrape = names.metrics(contents.metrics)
    hidden = [Finding(f.name, f.level, names.text(f.text), names.text(f.fix)) for f in contents.findings]
    files = {
        "doctor.json": report(hidden, contents.versions),
        "config.yaml": dump(names.settings(settings)),
        "versions.json": json.dumps(contents.versions, indent=1) + "\n",
        "metrics.prom": scrape,
        "log.txt": "".join(f"{names.text(line)}\n" for line in contents.log),
    }
    with replacing(path) as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in files.items():
            data = text.encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o644
            archive.addfile(entry, io.BytesIO(data))
