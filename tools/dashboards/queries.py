"""PromQL that several dashboards share. An exporter that is scraped by several jobs counts once."""

from __future__ import annotations

from collections.abc import Callable

from tools.dashboards.variables import GPU, select

JOULES_PER_KWH = "3.6e6"
OWNER = "namespace, pod, container"
NO_CONTAINER = 'container_id=""'
NO_NAMESPACE = "(no namespace)"

OverTime = Callable[[str], str]
"""Turns a counter into its rate or increase."""


def per_second(series: str) -> str:
    """Rate of a counter; joules become watts."""
    return f"rate({series}[$__rate_interval])"


def in_range(series: str) -> str:
    """Increase of a counter in the time range of the dashboard."""
    return f"increase({series}[$__range])"


def dedup(expression: str, *labels: str) -> str:
    """One series per device and per value of these labels."""
    names = ", ".join(dict.fromkeys(["uuid", *labels]))
    return f"max by ({names}) ({expression})"


def energy_of_containers(by: str, over: OverTime, *more: str) -> str:
    """Energy of containers, including their exited processes, by labels of the containers."""
    series = over(select("container_gpu_energy_joules_total", GPU, *more))
    return f"sum by ({by}) ({dedup(series, *by.split(', '), 'container_id', 'method')})"


def energy_of_host(by: str, over: OverTime, *more: str) -> str:
    """Energy of processes outside of containers, which are in no container total."""
    series = over(select("gpu_process_energy_joules_total", GPU, NO_CONTAINER, *more))
    return f"sum by ({by}) ({dedup(series, *by.split(', '), 'pid', 'method')})"


def device(metric: str, over: OverTime, by: str = "") -> str:
    """A GPU counter, in total or by labels."""
    grouped = f"sum by ({by})" if by else "sum"
    labels = by.split(", ") if by else []
    return f"{grouped} ({dedup(over(select(metric, GPU)), *labels)})"


def as_workload(expression: str, *labels: str) -> str:
    """Add the label `workload`, such as ml/trainer-0/main in Kubernetes or triton for a container without a pod."""
    names = ", ".join(f'"{label}"' for label in (*OWNER.split(", "), *labels))
    joined = f'label_join({expression}, "workload", "/", {names})'
    return f'label_replace({joined}, "workload", "$1", "workload", "/*(.*?)/*")'


def as_process(expression: str) -> str:
    """Add the label `workload` that ends with the process name; a host process has only that name."""
    return as_workload(expression, "process_name")


def as_host_workload(expression: str) -> str:
    """Add the label `workload` to processes outside of containers, by process name."""
    return f'label_replace({expression}, "workload", "host: $1", "process_name", "(.*)")'


def as_unattributed(expression: str) -> str:
    """Add the label `workload` to unattributed energy, by reason."""
    return f'label_replace({expression}, "workload", "unattributed: $1", "reason", "(.*)")'


def as_namespace(expression: str) -> str:
    """Replace an empty namespace with a placeholder."""
    return f'label_replace({expression}, "namespace", "{NO_NAMESPACE}", "namespace", "")'


def with_label(expression: str, label: str, value: str) -> str:
    """Add a label with a fixed value."""
    return f'label_replace({expression}, "{label}", "{value}", "", "")'
