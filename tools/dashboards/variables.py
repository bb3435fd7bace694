"""What can be chosen on top of a dashboard.

Each works with and without Kubernetes, and with one Prometheus or many clusters in it: "All" is `.*`, which also
matches series that do not have the label.
"""

from __future__ import annotations

from tools.dashboards.grafana import SOURCE, Json

HERE = 'cluster=~"$cluster", job=~"$job", instance=~"$instance"'
GPU = 'gpu=~"$gpu"'
WHO = 'namespace=~"$namespace", pod=~"$pod", container=~"$container"'
PROCESS = 'process_name=~"$process"'
WORKLOADS = '__name__=~"gpu_process_active|gpu_pod_allocation_info|gpu_container_allocation_info"'
"""Whoever is on a GPU, and who was given one and is not there."""


def of(metric: str, *more: str) -> str:
    """The series of a metric that are chosen."""
    return f"{metric}{{{', '.join([HERE, *more])}}}"


def datasource() -> Json:
    """Which Prometheus."""
    return {
        "current": {}, "hide": 0, "includeAll": False, "label": "Data source", "multi": False, "name": "datasource",
        "options": [], "query": "prometheus", "refresh": 1, "regex": "", "skipUrlSync": False, "type": "datasource",
    }  # fmt: skip


def places(*, all_nodes: bool = True) -> tuple[Json, ...]:
    """Which nodes; without `all_nodes` it begins with one, since lines for each GPU of a fleet are too many."""
    return (
        datasource(),
        labels("cluster", "Cluster", "gpuledger_up"),
        labels("job", "Job", 'gpuledger_up{cluster=~"$cluster"}'),
        labels("instance", "Node", 'gpuledger_up{cluster=~"$cluster", job=~"$job"}', has_all=all_nodes),
    )


def gpus() -> Json:
    """Which GPUs of them, by index."""
    return labels("gpu", "GPU", of("gpu_up"))


def workloads() -> tuple[Json, ...]:
    """Whose."""
    return (
        labels("namespace", "Namespace", f"{{{WORKLOADS}, {HERE}}}"),
        labels("pod", "Pod", f'{{{WORKLOADS}, {HERE}, namespace=~"$namespace"}}'),
        labels("container", "Container", f'{{{WORKLOADS}, {HERE}, namespace=~"$namespace", pod=~"$pod"}}'),
        labels("process", "Process", of("gpu_process_active", WHO), label="process_name"),
    )


def labels(name: str, shown: str, series: str, *, label: str = "", has_all: bool = True) -> Json:
    """The values of a label of some series."""
    query = f"label_values({series}, {label or name})"
    return {
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]} if has_all else {},
        "datasource": SOURCE,
        "definition": query,
        "hide": 0,
        "includeAll": has_all,
        "label": shown,
        "multi": True,
        "name": name,
        "options": [],
        "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "refresh": 2,  # when the time range changes: who ended in it can be chosen too
        "regex": "",
        "skipUrlSync": False,
        "sort": 3,  # as numbers, where they are
        "type": "query",
    }


def text(name: str, shown: str, value: str, description: str) -> Json:
    """Something to be typed in."""
    chosen = {"selected": True, "text": value, "value": value}
    return {
        "current": chosen, "description": description, "hide": 0, "label": shown, "name": name, "options": [chosen],
        "query": value, "skipUrlSync": False, "type": "textbox",
    }  # fmt: skip
