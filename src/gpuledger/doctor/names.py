"""Everybody who is asked for names: Docker, Podman, the CRI, the kubelet, the API server, a scheduler's directory."""

from __future__ import annotations

from gpuledger.config import Config
from gpuledger.doctor.finding import Finding, ok, problem, unused, warning
from gpuledger.model import Owners, ProviderHealth
from gpuledger.owners.resolver import GONE
from gpuledger.view import advice


def names(owners: Owners, settings: Config) -> list[Finding]:
    """One line for each who is asked, and one for those who could be but are not."""
    found = [_provider(health) for health in owners.providers]
    asked = {advice.kind_of(health) for health in owners.providers}
    if not asked & {"docker", "podman", "cri"}:
        found.append(unused("runtime", "no socket of Docker, Podman or a CRI runtime is here, or none is wanted"))
    if "podresources" not in asked:
        found.append(unused("kubelet", f"{settings.pod_resources_socket} is not here, or not wanted"))
    if "kubernetes" not in asked and not settings.kubernetes_api:
        found.append(unused("api server", "--kubernetes.api is off"))
    return found


def _provider(health: ProviderHealth) -> Finding:
    name = advice.called(health)
    if health.up:
        return ok(name, "answers")
    if not health.fetches:
        return problem(name, "has not answered in the time there is", "see whether it hangs; its log may say why")
    return problem(name, *advice.of_provider(health))


def owned(owners: Owners, *, blind: bool) -> list[Finding]:
    """Whether everybody on a GPU has a full owner. When somebody who knows is down, or /proc is, that is why."""
    found = []
    if owners.unknown_device_ids:
        text = f"{owners.unknown_device_ids} device ids of the kubelet or a runtime have a form nobody knows"
        fix = "`gpuledger explain --device-id ID` shows how an id is read; please report it"
        found.append(warning("device ids", text, fix))
    if not blind and all(health.up for health in owners.providers):
        found += [
            warning("owners", f"{count} processes: {reason}", advice.OWNER_FIX)
            for reason, count in owners.unresolved
            if reason != GONE  # told by whoever compares the list with /proc
        ]
    return found
