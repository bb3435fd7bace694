"""What people call an owner, in one line."""

from __future__ import annotations

from gpuledger.model import Owner, ProcessUse


def who(owner: Owner) -> str:
    """As `namespace/pod/container`, or whatever is known; empty when nothing is. It stays the same over a restart."""
    container = owner.container or owner.container_id[:12]
    if owner.pod:
        return "/".join(part for part in (owner.namespace, owner.pod, container) if part)
    return container or owner.pod_uid or owner.job or owner.unit


def whose(use: ProcessUse) -> str:
    """The owner of a process; itself when it has none."""
    return who(use.owner) or (use.facts.name if use.facts else "") or f"pid {use.resident.pid}"
