"""The archive for a bug report: findings, settings, versions, one scrape and the log, without names and secrets.

It never contains environments or command lines, of this process or of any other.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from gpuledger.config.exporter import Config
from gpuledger.config.load import dump
from gpuledger.storage.atomicfile import replacing
from gpuledger.tools.doctor.finding import Finding

FOLDER = "gpuledger-doctor"
PLAIN_LABELS = frozenset({
    "action", "activity", "architecture", "board_part_number", "call", "cause", "chip_unit", "clique", "clock",
    "compute_capability", "compute_instance_id", "condition", "cuda_version", "driver_version", "engine", "error",
    "evidence", "fan", "file", "gpu", "gpu_instance_id", "kind", "limit", "method", "minor", "mode",
    "multiprocessors", "name", "nvml_version", "pci_bus_id", "phase", "pid", "policy", "profile", "provider",
    "python_version", "reason", "resource", "runtime", "sensor", "source", "stage", "state", "uid", "vbios_version",
    "version", "workload_kind", "xid",
})  # fmt: skip
"""Labels that identify no user and no single device. All other labels are hashed, including future ones."""
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
HIDDEN = "***"
SECRETS = (
    (re.compile(r"[^\s/'\"`]*:[^\s/'\"`]*@"), f"{HIDDEN}@"),  # user and password of an address
    (re.compile(r"(\w+://[^\s?'\"`]*\?)[^\s'\"`]+"), rf"\1{HIDDEN}"),  # the query, which may contain tokens
    (re.compile(r"(?i)((?:bearer|basic)\s+)[\w.~+/=-]{8,}"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)((?:token|password|passwd|secret|authorization|api[_-]?key)\w*['\"]?\s*[=:]\s*['\"]?)[^\s,;'\"]+"),
     rf"\1{HIDDEN}"),
)  # fmt: skip
NAMES = re.compile(
    r"(?:GPU|MIG)-[\w-]{8,}(?:/\d+/\d+)?"
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|\b[0-9a-f]{12,64}\b"
    r"|(?<=system:serviceaccount:)[\w.:-]+"
    r"|(?<=/home/)[^/\s'\"]+"
)
"""Text that looks like the id of a device, pod or container, a service account, or a home directory."""
SECRET_SETTINGS = ("otlp_headers",)
MIN_NAME = 2
"""Characters; a name of one character would match in every text."""
MIN_SECRET = 3
"""Characters; shorter secrets are recognised by their position."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents before redaction."""

    findings: Sequence[Finding]
    settings: Config
    versions: dict[str, str]
    metrics: str
    log: Sequence[str]


def report(findings: Sequence[Finding], versions: dict[str, str]) -> str:
    """The findings as JSON."""
    content = {"version": 1, "versions": versions, "findings": [asdict(finding) for finding in findings]}
    return json.dumps(content, indent=1) + "\n"


def write(path: str | Path, contents: Contents) -> None:
    """Write the archive atomically."""
    settings = contents.settings
    addresses = (*settings.docker_host, settings.dcgm_exporter_url, os.environ.get("DOCKER_HOST", ""))
    redactor = Redactor((os.uname().nodename, settings.kubernetes_node_name), addresses)
    metrics = redactor.metrics(contents.metrics)  # first, because it learns the names
    findings = [replace(f, text=redactor.text(f.text), fix=redactor.text(f.fix)) for f in contents.findings]
    files = {
        "doctor.json": report(findings, contents.versions),
        "config.yaml": dump(redactor.settings(settings)),
        "versions.json": json.dumps(contents.versions, indent=1) + "\n",
        "metrics.prom": metrics,
        "log.txt": "".join(f"{redactor.text(line)}\n" for line in contents.log),
    }
    with replacing(path) as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in files.items():
            data = text.encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o644
            archive.addfile(entry, io.BytesIO(data))


class Redactor:
    """Replaces each name by a token: the same token for the same name, but only within one archive.

    Tokens are keyed hashes, so that they cannot be compared with a list of likely names.
    """

    def __init__(self, names: Iterable[str] = (), addresses: Iterable[str] = ()) -> None:
        self._key = os.urandom(32)
        self._tokens: dict[str, str] = {}
        for name in names:
            self.token(name)
        parts = {part for address in addresses for part in secret_parts(address)}
        self._secrets = sorted(parts, key=len, reverse=True)

    def token(self, name: str) -> str:
        """The token of a name; empty for an empty name."""
        if not name:
            return ""
        if name not in self._tokens:
            digest = blake2b(name.encode("utf-8", "replace"), key=self._key, digest_size=6)
            self._tokens[name] = f"x{digest.hexdigest()}"
        return self._tokens[name]

    def metrics(self, text: str) -> str:
        """Metrics in the text format, with all labels hashed except PLAIN_LABELS."""
        # Split at "\n" alone: a label may contain other separators, at which splitlines would cut it in two.
        return "\n".join(line if line.startswith("#") else self._series(line) for line in text.split("\n"))

    def text(self, text: str) -> str:
        """Free text without secrets, known names, and text that looks like a name."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        for pattern, replacement in SECRETS:
            text = pattern.sub(replacement, text)
        names = {name: token for name, token in self._tokens.items() if len(name) >= MIN_NAME}
        known = {json.dumps(name)[1:-1]: token for name, token in names.items()} | names  # the log has JSON's escapes
        if known:
            forms = sorted(known, key=len, reverse=True)
            pattern = re.compile(rf"(?<![\w])(?:{'|'.join(map(re.escape, forms))})(?![\w])")
            text = pattern.sub(lambda match: known[match[0]], text)
        tokens = {token[1:] for token in self._tokens.values()}
        return NAMES.sub(lambda match: match[0] if match[0][1:] in tokens else self.token(match[0]), text)

    def settings(self, settings: Config) -> Config:
        """The settings, with all text in them redacted."""
        changed: dict[str, Any] = {}
        for field in fields(settings):
            value = getattr(settings, field.name)
            if field.name in SECRET_SETTINGS and value:
                changed[field.name] = HIDDEN
            elif isinstance(value, str):
                changed[field.name] = self.text(value)
            elif isinstance(value, tuple):
                changed[field.name] = tuple(self.text(item) for item in value)
        return replace(settings, **changed)

    def _series(self, line: str) -> str:
        return LABEL.sub(lambda m: m[0] if m[1] in PLAIN_LABELS else f'{m[1]}="{self.token(_unescape(m[2]))}"', line)


def _unescape(value: str) -> str:
    """The text of a label value."""
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], value)


def secret_parts(address: str) -> Iterator[str]:
    """Login, password and query of an address, each as it may appear in a message."""
    _, scheme, rest = address.partition("://")
    if not scheme:
        return
    login, query = rest.rpartition("@")[0], rest.partition("?")[2]  # an @ in a query hides too much, not too little
    parts = (login, login.partition(":")[2], query, *(pair.partition("=")[2] for pair in query.split("&")))
    yield from (part for part in parts if len(part) >= MIN_SECRET)
