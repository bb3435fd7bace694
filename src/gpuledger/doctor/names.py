"""Everybody who is asked for names: Docker, Podman, the CRI, the kubelet, the API server, a scheduler's directory."""

from __future__ import annotations

from gpuledger.config import Config
from gpuledger.doctor.finding import Finding, explained, ok, problem, unused, warning
from gpuledger.model import Owners, ProviderHealth
from gpuledger.owners.resolver import GONE

CALLED = {
    "docker": "docker",
    "podman": "podman",
    "cri": "container runtime",
    "podresources": "kubelet",
    "kubernetes": "api server",
    "hpcdir": "job directory",
}
START = {
    "docker": "`sudo systemctl start docker`",
    "podman": "`sudo systemctl start podman.socket`",
    "cri": "`sudo systemctl start containerd` (or crio)",
    "podresources": "`sudo systemctl start kubelet`",
}
MAY_ASK = {
    "docker": "`sudo usermod -aG docker USER` for the user who runs gpuledger",
    "podman": "run as the user whose socket it is, or as root",
    "cri": "run as root: the socket is root's",
    "podresources": "run as root: the socket is root's",
}
API_FIX = (
    "`kubectl auth can-i watch pods --all-namespaces --as=system:serviceaccount:NAMESPACE:ACCOUNT` must say yes: give "
    "it a ClusterRole with get, list and watch of pods"
)


def names(owners: Owners, settings: Config) -> list[Finding]:
    """One line for each who is asked, and one for those who could be but are not."""
    found = [_provider(health) for health in owners.providers]
    asked = {_kind(health) for health in owners.providers}
    if not asked & {"docker", "podman", "cri"}:
        found.append(unused("runtime", "no socket of Docker, Podman or a CRI runtime is here, or none is wanted"))
    if "podresources" not in asked:
        found.append(unused("kubelet", f"{settings.pod_resources_socket} is not here, or not wanted"))
    if "kubernetes" not in asked and not settings.kubernetes_api:
        found.append(unused("api server", "--kubernetes.api is off"))
    return found


def _kind(health: ProviderHealth) -> str:
    return health.name.partition("-")[0]  # docker-2 is a second Docker


def _provider(health: ProviderHealth) -> Finding:
    kind = _kind(health)
    name = CALLED.get(kind, kind) + health.name.removeprefix(kind)
    if health.up:
        return ok(name, "answers")
    if not health.fetches:
        return problem(name, "has not answered in the time there is", "see whether it hangs; its log may say why")
    said = explained(name, health.reason)
    if "permission denied" in said.text and kind in MAY_ASK:
        return problem(name, said.text, MAY_ASK[kind])
    if any(words in said.text for words in ("no such", "refused", "nobody listens")) and kind in START:
        return problem(name, said.text, f"{START[kind]}; {said.fix}")
    if kind == "kubernetes" and any(code in said.text for code in ("(401", "(403")):
        return problem(name, said.text, API_FIX)
    return said


def owned(owners: Owners, *, blind: bool) -> list[Finding]:
    """Whether everybody on a GPU has a full owner. When somebody who knows is down, or /proc is, that is why."""
    found = []
    if owners.unknown_device_ids:
        text = f"{owners.unknown_device_ids} device ids of the kubelet or a runtime have a form nobody knows"
        fix = "`gpuledger explain --device-id ID` shows how an id is read; please report it"
        found.append(warning("device ids", text, fix))
    if not blind and all(health.up for health in owners.providers):
        found += [
            warning("owners", f"{count} processes: {reason}", "`gpuledger explain PID` shows how far it gets, and why")
            for reason, count in owners.unresolved
            if reason != GONE  # told by whoever compares the list with /proc
        ]
    return found
