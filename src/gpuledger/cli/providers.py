"""Creates the name providers that are configured or that exist on this host."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from gpuledger.config.exporter import Config
from gpuledger.owners.providers.provider import PolledProvider, Provider


def providers(settings: Config, environment: Mapping[str, str]) -> list[PolledProvider]:
    """All providers, not started yet.

    `auto` selects those that exist on this host. A configured provider is polled even if its socket is missing, so that
    metrics and log report it as down.
    """
    named = set(settings.environment) | ({"kubernetes"} if settings.kubernetes_enabled else set())
    auto = "auto" in named
    is_node = settings.kubernetes_enabled is not False
    if not is_node:
        named.discard("kubernetes")
    chosen: list[Provider] = [
        *_docker(settings, environment, named, auto=auto),
        *_containerd(settings, named, auto=auto),
        *_cri(settings, named, auto=auto and is_node),
        *_kubelet(settings, named, auto=auto and is_node),
        *(_kubernetes(settings, environment) if is_node else ()),
        *_job_directory(settings),
    ]
    return [PolledProvider(provider) for provider in _numbered(chosen)]


def _numbered(chosen: list[Provider]) -> list[Provider]:
    """Number several daemons of a kind, such as rootless ones: docker, docker-2."""
    counts: Counter[str] = Counter()
    for provider in chosen:
        counts[provider.name] += 1
        if counts[provider.name] > 1:
            provider.name += f"-{counts[provider.name]}"
    return chosen


def _docker(settings: Config, environment: Mapping[str, str], named: set[str], *, auto: bool) -> list[Provider]:
    from gpuledger.owners.providers.docker import (
        USERS_PART,
        DockerProvider,
        Endpoint,
        default_urls,
        endpoint,
        is_of_user,
    )

    chosen = [daemon for daemon in default_urls(environment, os.getuid()) if auto or daemon.name in named]
    if settings.docker_host:
        chosen = [endpoint(url, environment) for url in settings.docker_host]
    for name, url in (("docker", "/var/run/docker.sock"), ("podman", "/run/podman/podman.sock")):
        if name in named and not any(daemon.name == name for daemon in chosen):
            chosen.append(Endpoint(name, url))
    of_users = [is_of_user(daemon.url) for daemon in chosen]
    parts = [USERS_PART * sum(of_users) if is_user else 1 for is_user in of_users]
    return [
        DockerProvider(daemon.url, name=daemon.name, ca=daemon.ca, cert=daemon.cert, key=daemon.key, part=part)
        for daemon, part in zip(chosen, parts, strict=True)
    ]


def _containerd(settings: Config, named: set[str], *, auto: bool) -> list[Provider]:
    from gpuledger.owners.providers.containerd import SOCKET, ContainerdProvider, is_usable

    # Docker's containerd may have containers of nerdctl, too; that of a node belongs to the CRI.
    if "containerd" in named or (auto and is_usable(SOCKET) and not settings.cri_socket and not _is_node(settings)):
        return [ContainerdProvider(settings.cri_socket or SOCKET)]
    return []


def _cri(settings: Config, named: set[str], *, auto: bool) -> list[Provider]:
    is_named = bool({"containerd", "kubernetes"} & named)
    if not (is_named or settings.cri_socket or (auto and _is_node(settings))):
        return []  # Docker's own containerd has its CRI disabled
    from gpuledger.owners.providers.cri import CriProvider, default_sockets

    # k3s and RKE2 run their own containerd, possibly besides another one.
    existing = sorted(default_sockets(), key=lambda path: "k3s" not in path)
    sockets = [settings.cri_socket] if settings.cri_socket else existing
    if not sockets and is_named:
        sockets = ["/run/containerd/containerd.sock"]
    return [CriProvider(socket) for socket in sockets[:1]]


def _is_node(settings: Config) -> bool:
    """Whether the kubelet's directory exists."""
    return os.path.exists(Path(settings.pod_resources_socket).parent)  # noqa: PTH110 - pathlib raises without permission


def _kubelet(settings: Config, named: set[str], *, auto: bool) -> list[Provider]:
    socket = settings.pod_resources_socket
    if "kubernetes" in named or (auto and _is_node(settings)):
        from gpuledger.owners.providers.podresources import PodResourcesProvider

        return [PodResourcesProvider(socket, extra_resources=settings.kubernetes_resource_names)]
    return []


def _kubernetes(settings: Config, environment: Mapping[str, str]) -> list[Provider]:
    if not settings.kubernetes_api:
        return []
    from gpuledger.net.kubeapi import ApiAccess
    from gpuledger.owners.providers.kubernetes import KubernetesProvider

    node = settings.kubernetes_node_name or environment.get("NODE_NAME", "") or os.uname().nodename
    kubeconfig = settings.kubernetes_kubeconfig
    access = ApiAccess.from_kubeconfig(Path(kubeconfig)) if kubeconfig else ApiAccess.in_cluster()
    return [KubernetesProvider(access, node, settings.kubernetes_pod_labels)]


def _job_directory(settings: Config) -> list[Provider]:
    if not settings.slurm_job_mapping_dir:
        return []
    from gpuledger.owners.providers.hpcdir import HpcProvider

    return [HpcProvider(Path(settings.slurm_job_mapping_dir))]
