"""Taking names out of what is sent to others: the same name becomes the same token, in one archive and in no other."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from hashlib import blake2b
from typing import Any

from gpuledger.config import Config

PLAIN_LABELS = frozenset({
    "architecture", "board_part_number", "call", "cause", "clock", "compute_capability", "compute_instance_id",
    "cuda_version", "driver_version", "error", "evidence", "fan", "file", "gpu", "gpu_instance_id", "kind", "limit",
    "method", "minor", "mode", "multiprocessors", "name", "nvml_version", "pci_bus_id", "pid", "policy", "profile",
    "provider", "python_version", "reason", "resource", "runtime", "sensor", "source", "stage", "state", "uid",
    "vbios_version", "version", "workload_kind", "xid",
})  # fmt: skip
"""Those that name nobody and no single device. A label that is not here is hashed, also one that is new."""
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
HIDDEN = "***"
SECRETS = (
    (re.compile(r"[^\s/'\"`]*:[^\s/'\"`]*@"), f"{HIDDEN}@"),  # user and password of an address
    (re.compile(r"(\w+://[^\s?'\"`]*\?)[^\s'\"`]+"), rf"\1{HIDDEN}"),  # its query, where others have tokens
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
"""What looks like a device, a pod, a container, an account or somebody's home."""
SHORTEST = 2
"""Letters. A name of one letter would be found in every text."""
SHORTEST_SECRET = 3
"""The same; shorter ones are found by where they stand."""


def secret_parts(address: str) -> Iterator[str]:
    """User, password and query of an address, each as it may turn up again in a message."""
    _, scheme, rest = address.partition("://")
    if not scheme:
        return
    login, query = rest.rpartition("@")[0], rest.partition("?")[2]  # an @ in a query hides too much, not too little
    parts = (login, login.partition(":")[2], query, *(pair.partition("=")[2] for pair in query.split("&")))
    yield from (part for part in parts if len(part) >= SHORTEST_SECRET)


class Redactor:
    """Has a key of its own, so that a token cannot be tried against a list of likely names."""

    def __init__(self, names: Iterable[str] = (), addresses: Iterable[str] = ()) -> None:
        self._key = secrets.token_bytes(32)
        self._known: dict[str, str] = {}
        for name in names:
            self.token(name)
        self._secrets = sorted({part for one in addresses for part in secret_parts(one)}, key=len, reverse=True)

    def token(self, name: str) -> str:
        """What stands for this name; nothing stands for nothing."""
        if not name:
            return ""
        if name not in self._known:
            self._known[name] = f"x{blake2b(name.encode('utf-8', 'replace'), key=self._key, digest_size=6).hexdigest()}"
        return self._known[name]

    def metrics(self, text: str) -> str:
        """Metrics in the text format, all labels but the plain ones hashed."""
        return "".join(line if line.startswith("#") else self._series(line) for line in text.splitlines(keepends=True))

    def text(self, text: str) -> str:
        """Words meant for people, without secrets, names met before, and what looks like one."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        for pattern, shown in SECRETS:
            text = pattern.sub(shown, text)
        known = sorted((name for name in self._known if len(name) >= SHORTEST), key=len, reverse=True)
        if known:
            found = re.compile(rf"(?<![\w])(?:{'|'.join(map(re.escape, known))})(?![\w])")
            text = found.sub(lambda match: self._known[match[0]], text)
        return NAMES.sub(lambda match: match[0] if match[0][1:] in self._tails() else self.token(match[0]), text)

    def settings(self, settings: Config) -> Config:
        """The settings, each text in them treated as such."""
        changed: dict[str, Any] = {}
        for field in fields(settings):
            value = getattr(settings, field.name)
            if isinstance(value, str):
                changed[field.name] = self.text(value)
            elif isinstance(value, tuple):
                changed[field.name] = tuple(self.text(one) for one in value)
        return replace(settings, **changed)

    def _series(self, line: str) -> str:
        return LABEL.sub(lambda m: m[0] if m[1] in PLAIN_LABELS else f'{m[1]}="{self.token(m[2])}"', line)

    def _tails(self) -> set[str]:
        return {token[1:] for token in self._known.values()}
