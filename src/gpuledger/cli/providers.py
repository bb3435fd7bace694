"""Who is asked for names, as the configuration says or as this host looks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from gpuledger.config import Config
from gpuledger.owners.provider import Background, Provider


def providers(settings: Config, environment: Mapping[str, str]) -> list[Background]:
    """One for each place names may come from, not started yet.

    `auto` takes what exists on this host. An environment that is named is asked also when its socket is missing, so
    that metrics and log say so.
    """
    named = set(settings.environment) | ({"kubernetes"} if settings.kubernetes_enabled else set())
    auto = "auto" in named
    found: list[Provider] = [
        *_docker(settings, environment, named, auto=auto),
        *_cri(settings, named, auto=auto),
        *_kubelet(settings, named, auto=auto),
        *_kubernetes(settings, environment),
        *_job_directory(settings),
    ]
    return [Background(provider) for provider in _distinct(found)]


def _distinct(found: list[Provider]) -> list[Provider]:
    """Several daemons of a kind (rootless ones of users) are told apart by a number."""
    names: Counter[str] = Counter()
    for provider in found:
        names[provider.name] += 1
        if names[provider.name] > 1:
            provider.name += f"-{names[provider.name]}"
    return found


def _docker(settings: Config, environment: Mapping[str, str], named: set[str], *, auto: bool) -> list[Provider]:
    from gpuledger.owners.docker import DockerProvider, Endpoint, default_urls, endpoint

    chosen = [found for found in default_urls(environment, os.getuid()) if auto or found.name in named]
    if settings.docker_host:
        chosen = [endpoint(url, environment) for url in settings.docker_host]
    for name, url in (("docker", "/var/run/docker.sock"), ("podman", "/run/podman/podman.sock")):
        if name in named and not any(found.name == name for found in chosen):
            chosen.append(Endpoint(name, url))
    return [DockerProvider(e.url, name=e.name, ca=e.ca, cert=e.cert, key=e.key) for e in chosen]


def _cri(settings: Config, named: set[str], *, auto: bool) -> list[Provider]:
    wanted = bool({"containerd", "kubernetes"} & named)
    if not (wanted or settings.cri_socket or (auto and _is_node(settings))):
        return []  # Docker brings a containerd of its own, with its CRI switched off
    from gpuledger.owners.cri import CriProvider, default_sockets

    # k3s and RKE2 run a containerd of their own, also beside another one.
    found = sorted(default_sockets(), key=lambda path: "k3s" not in path)
    sockets = [settings.cri_socket] if settings.cri_socket else found
    if not sockets and wanted:
        sockets = ["/run/containerd/containerd.sock"]
    return [CriProvider(socket) for socket in sockets[:1]]


def _is_node(settings: Config) -> bool:
    return os.path.exists(Path(settings.pod_resources_socket).parent)  # noqa: PTH110 - also where we may not look


def _kubelet(settings: Config, named: set[str], *, auto: bool) -> list[Provider]:
    socket = settings.pod_resources_socket
    if "kubernetes" in named or (auto and _is_node(settings)):
        from gpuledger.owners.podresources import PodResourcesProvider

        return [PodResourcesProvider(socket, extra_resources=settings.kubernetes_resource_names)]
    return []


def _job_directory(settings: Config) -> list[Provider]:
    if not settings.slurm_job_mapping_dir:
        return []
    from gpuledger.owners.hpcdir import HpcProvider

    return [HpcProvider(Path(settings.slurm_job_mapping_dir))]


def _kubernetes(settings: Config, environment: Mapping[str, str]) -> list[Provider]:
    if not settings.kubernetes_api:
        return []
    from gpuledger.owners.kubernetes import ApiAccess, KubernetesProvider

    node = settings.kubernetes_node_name or environment.get("NODE_NAME", "") or os.uname().nodename
    kubeconfig = settings.kubernetes_kubeconfig
    access = ApiAccess.from_kubeconfig(Path(kubeconfig)) if kubeconfig else ApiAccess.in_cluster()
    return [KubernetesProvider(access, node, settings.kubernetes_pod_labels)]
