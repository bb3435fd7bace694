"""The command that would free an allocated device. It is shown and never executed."""

from __future__ import annotations

from shlex import quote


def free_command(namespace: str, pod: str, container: str, job: str) -> str:
    """A shell command, with every name quoted: tenants choose names. Empty if a name cannot be part of a command."""
    names = (namespace, pod, container, job)
    if any(name.startswith("-") or not name.isprintable() for name in names if name):
        return ""
    if pod:
        return (
            f"kubectl delete pod -n {quote(namespace)} {quote(pod)}"
            if namespace
            else f"kubectl delete pod {quote(pod)}"
        )
    if job:
        return f"scancel {quote(job)}"
    return f"docker stop {quote(container)}" if container else ""
