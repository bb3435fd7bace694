"""Questions that several dashboards ask. Nothing is counted twice, however many scrape the same exporter."""

from __future__ import annotations

from collections.abc import Callable

from tools.dashboards.variables import GPU, of

JOULES_PER_KWH = "3.6e6"
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
    return f"max by ({', '.join(['uuid', *labels])}) ({expression})"


def of_containers(metric: str, by: str, over: OverTime, *matchers: str, method: bool = False) -> str:
    """A container's counter, exited processes too; `by` are labels of it."""
    parts = [*by.split(", "), "container_id", *(["method"] if method and "method" not in by else [])]
    return f"sum by ({by}) ({once(over(of(metric, GPU, *matchers)), *parts)})"


def of_host(metric: str, by: str, over: OverTime, *, method: bool = False) -> str:
    """The same of processes in no container: they have no total but their own."""
    parts = [*by.split(", "), "pid", *(["method"] if method and "method" not in by else [])]
    return f"sum by ({by}) ({once(over(of(metric, GPU, NO_CONTAINER)), *parts)})"


NO_CONTAINER = 'container_id=""'
OWNER = "namespace, pod, container"


def energy_of_containers(by: str, over: OverTime) -> str:
    """Joules, or watts, of containers."""
    return of_containers("container_gpu_energy_joules_total", by, over, method=True)


def energy_of_host(by: str, over: OverTime) -> str:
    """Joules, or watts, of processes outside of containers."""
    return of_host("gpu_process_energy_joules_total", by, over, method=True)


def device(metric: str, over: OverTime, *matchers: str, by: str = "") -> str:
    """A counter of GPUs, all of them together or by a label of theirs."""
    grouped = f"sum by ({by})" if by else "sum"
    labels = by.split(", ") if by else []
    return f"{grouped} ({once(over(of(metric, GPU, *matchers)), *labels)})"


def as_workload(expression: str) -> str:
    """With one label `workload`: ml/trainer-0/main in Kubernetes, triton where there is only a container."""
    joined = f'label_join({expression}, "workload", "/", "namespace", "pod", "container")'
    return f'label_replace({joined}, "workload", "$1", "workload", "/*(.*?)/*")'


def as_process(expression: str) -> str:
    """The same for processes: with their name at the end, which is all there is of one outside of containers."""
    joined = f'label_join({expression}, "workload", "/", "namespace", "pod", "container", "process_name")'
    return f'label_replace({joined}, "workload", "$1", "workload", "/*(.*?)/*")'


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
