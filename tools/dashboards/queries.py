"""Questions that several dashboards ask. Nothing is counted twice, however many scrape the same exporter."""

from __future__ import annotations

from collections.abc import Callable

from tools.dashboards.variables import GPU, of

JOULES_PER_KWH = "3.6e6"
OWNER = "namespace, pod, container"
NO_CONTAINER = 'container_id=""'
NO_NAMESPACE = "(no namespace)"

OverTime = Callable[[str], str]
"""A counter made into what it rose by."""


def per_second(series: str) -> str:
    """How fast it rises; of joules, watts."""
    return f"rate({series}[$__rate_interval])"


def in_range(series: str) -> str:
    """By how much it rose in the time range of the dashboard."""
    return f"increase({series}[$__range])"


def once(expression: str, *labels: str) -> str:
    """Each device once, and each of its series under these labels."""
    names = ", ".join(dict.fromkeys(["uuid", *labels]))
    return f"max by ({names}) ({expression})"


def energy_of_containers(by: str, over: OverTime, *more: str) -> str:
    """Joules, or watts, of containers, their exited processes too; `by` are labels of theirs."""
    series = over(of("container_gpu_energy_joules_total", GPU, *more))
    return f"sum by ({by}) ({once(series, *by.split(', '), 'container_id', 'method')})"


def energy_of_host(by: str, over: OverTime, *more: str) -> str:
    """The same of processes outside of containers: they have no total but their own."""
    series = over(of("gpu_process_energy_joules_total", GPU, NO_CONTAINER, *more))
    return f"sum by ({by}) ({once(series, *by.split(', '), 'pid', 'method')})"


def device(metric: str, over: OverTime, by: str = "") -> str:
    """A counter of GPUs, all of them together or by labels of theirs."""
    grouped = f"sum by ({by})" if by else "sum"
    labels = by.split(", ") if by else []
    return f"{grouped} ({once(over(of(metric, GPU)), *labels)})"


def as_workload(expression: str, *labels: str) -> str:
    """With one label `workload`: ml/trainer-0/main in Kubernetes, triton where there is only a container."""
    names = ", ".join(f'"{label}"' for label in (*OWNER.split(", "), *labels))
    joined = f'label_join({expression}, "workload", "/", {names})'
    return f'label_replace({joined}, "workload", "$1", "workload", "/*(.*?)/*")'


def as_process(expression: str) -> str:
    """The same for processes: with their name at the end, which is all there is of one outside of containers."""
    return as_workload(expression, "process_name")


def as_host_workload(expression: str) -> str:
    """The same for processes outside of containers, by their name."""
    return f'label_replace({expression}, "workload", "host: $1", "process_name", "(.*)")'


def as_nobody(expression: str) -> str:
    """The same for what nobody has, by reason."""
    return f'label_replace({expression}, "workload", "nobody: $1", "reason", "(.*)")'


def as_namespace(expression: str) -> str:
    """With a name for those in no namespace."""
    return f'label_replace({expression}, "namespace", "{NO_NAMESPACE}", "namespace", "")'


def called(expression: str, label: str, value: str) -> str:
    """With a label that says what it is."""
    return f'label_replace({expression}, "{label}", "{value}", "", "")'
