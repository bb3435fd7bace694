"""The address of an owner, and whether its allocation is exempt: from the pod, from a file, or from the Unix user."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpuledger.errors import ConfigError
from gpuledger.model.owners import job_id
from gpuledger.net.jsonvalues import as_dict, as_text
from gpuledger.net.kubeapi import ApiAccess
from gpuledger.tools.notify.config import NotifyConfig, addresses
from gpuledger.tools.notify.findings import Finding
from gpuledger.web.webconfig import Reloaded, file_state

TIMEOUT_S = 5.0
MAIL = re.compile(r"[A-Za-z0-9][\w.+-]{0,63}@([A-Za-z0-9][A-Za-z0-9.-]{0,251})", re.ASCII)
ADDRESS = re.compile(r"[A-Za-z0-9_][\w.@+-]{0,319}", re.ASCII)
"""What a tenant may write: no text of its own, and no `@channel` that wakes everybody."""
USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}", re.ASCII)
DATE = re.compile(r"(\d{4}-\d{2}-\d{2})(T\d{2}:\d{2}:\d{2}Z)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Contact:
    """Where the owner of an allocation can be reached."""

    address: str = ""
    """Empty if it is not known."""
    pod_uid: str = ""
    """Of the pod that was read; empty if the owner is no pod, or pods are not read."""
    exempt_until_s: float = 0.0


class Contacts:
    """Finds contacts. The mapping file is read again when it changes."""

    def __init__(self, config: NotifyConfig) -> None:
        self._config, path = config, config.mapping
        self._mapping: Callable[[], Mapping[str, str]] = dict
        if path:
            self._mapping = Reloaded(path, lambda: file_state([path]), lambda: addresses(path)).get

    def api(self) -> ApiAccess | None:
        """Access to the API server; None if pods are not read. Raises ConfigError."""
        path = self._config.kubeconfig
        if path is None:
            return None
        return ApiAccess.from_kubeconfig(Path(path)) if path else ApiAccess.in_cluster()

    def find(self, finding: Finding, now_s: float) -> Contact:
        """The contact of an owner. Raises GpuledgerError if its pod cannot be read: it may be exempt."""
        metadata, name = self._metadata(finding), self._config.annotation
        annotations, labels = as_dict(metadata.get("annotations")), as_dict(metadata.get("labels"))
        address = as_text(annotations.get(name)) or as_text(labels.get(name)) if name else ""
        if not address:
            address = self._mapped(finding)
        elif not ADDRESS.fullmatch(address):
            address = ""
        until_s = exempt_until(as_text(annotations.get(self._config.keep_until)))
        is_too_long = until_s > now_s + self._config.longest_exemption_s
        return Contact(address, as_text(metadata.get("uid")), 0.0 if is_too_long else until_s)

    def _mapped(self, finding: Finding) -> str:
        owner, mapping, user = finding.owner, self._mapping(), finding.user
        pod = f"{owner.namespace}/{owner.pod}" if owner.pod else ""
        for key in (pod, owner.namespace, job_id(owner.job), user, finding.account):
            if key and key in mapping:
                return mapping[key]
        domain = self._config.user_domain
        return "" if not USER.fullmatch(user) else f"{user}@{domain}" if domain else user

    def _metadata(self, finding: Finding) -> Mapping[str, Any]:
        owner = finding.owner
        access = self.api() if owner.pod else None
        if access is None:
            return {}
        path = f"/api/v1/namespaces/{quote(owner.namespace, safe='')}/pods/{quote(owner.pod, safe='')}"
        status, pod = access.ask(path, TIMEOUT_S)
        if status == 404:  # it ended since the last scrape
            return {}
        if status != 200 or not pod.get("metadata"):
            raise ConfigError(f"the API server answers with status {status} for pods", "allow the fleet to get pods")
        return as_dict(pod["metadata"])


def exempt_until(text: str) -> float:
    """The Unix time at which an exemption ends, at the end of a day in UTC; 0 if there is none."""
    if (match := DATE.fullmatch(text)) is None:
        return 0.0
    try:
        end = datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=timezone.utc)
    except ValueError:
        return 0.0
    return (end if match[2] else end + timedelta(days=1)).timestamp()


def is_mail_address(address: str, domains: frozenset[str]) -> bool:
    """Whether mail may be sent there: a user of this host, or an address of one of the domains."""
    match = MAIL.fullmatch(address)
    return USER.fullmatch(address) is not None if match is None else match[1].lower() in domains
