"""Dashboard variables, and the selectors that use them.

They work with and without Kubernetes, and with one or many clusters in a Prometheus: "All" is `.*`, which also matches
series without the label.
"""

from __future__ import annotations

from tools.dashboards.grafana import SOURCE, Json

PLACE = 'cluster=~"$cluster", job=~"$job", instance=~"$instance"'
GPU = 'gpu=~"$gpu"'
OWNED = 'namespace=~"$namespace", pod=~"$pod", container=~"$container"'
PROCESS = 'process_name=~"$process"'
WORKLOADS = '__name__=~"gpu_process_active|gpu_pod_allocation_info|gpu_container_allocation_info"'
"""Workloads with a process on a GPU, and workloads with an allocated GPU."""


def select(metric: str, *more: str) -> str:
    """Selector for the series of a metric that match the variables."""
    return f"{metric}{{{', '.join([PLACE, *more])}}}"


def datasource() -> Json:
    """Variable for the Prometheus data source."""
    return {
        "current": {}, "hide": 0, "includeAll": False, "label": "Data source", "multi": False, "name": "datasource",
        "options": [], "query": "prometheus", "refresh": 1, "regex": "", "skipUrlSync": False, "type": "datasource",
    }  # fmt: skip


def places(*, all_nodes: bool = True) -> tuple[Json, ...]:
    """Variables for data source, cluster, job and node.

    Other jobs may have metrics with the same names, so the dashboard starts with the job gpuledger, if there is one.
    Without `all_nodes` the dashboard starts with one node, because one line for each GPU of a fleet would be too many.
    """
    return (
        datasource(),
        labels("cluster", "Cluster", "gpuledger_up"),
        labels("job", "Job", 'gpuledger_up{cluster=~"$cluster"}', chosen="gpuledger"),
        labels("instance", "Node", 'gpuledger_up{cluster=~"$cluster", job=~"$job"}', has_all=all_nodes),
    )


def gpus() -> Json:
    """Variable for GPUs, by index."""
    return labels("gpu", "GPU", select("gpu_up"))


def workloads() -> tuple[Json, ...]:
    """Variables for namespace, pod, container and process."""
    return (
        labels("namespace", "Namespace", f"{{{WORKLOADS}, {PLACE}}}"),
        labels("pod", "Pod", f'{{{WORKLOADS}, {PLACE}, namespace=~"$namespace"}}'),
        labels("container", "Container", f'{{{WORKLOADS}, {PLACE}, namespace=~"$namespace", pod=~"$pod"}}'),
        labels("process", "Process", select("gpu_process_active", OWNED), label="process_name"),
    )


def labels(name: str, shown: str, series: str, *, label: str = "", has_all: bool = True, chosen: str = "") -> Json:
    """Variable with the values of a label; `chosen` is selected at first, else all."""
    current: Json = {"selected": True, "text": [chosen or "All"], "value": [chosen or "$__all"]}
    query = f"label_values({series}, {label or name})"
    return {
        "allValue": ".*",
        "current": current if has_all else {},
        "datasource": SOURCE,
        "definition": query,
        "hide": 0,
        "includeAll": has_all,
        "label": shown,
        "multi": True,
        "name": name,
        "options": [],
        "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "refresh": 2,  # on time range change, so that exited workloads can be selected
        "regex": "",
        "skipUrlSync": False,
        "sort": 3,  # numerical
        "type": "query",
    }


def text(name: str, shown: str, value: str, description: str) -> Json:
    """Text box variable."""
    chosen = {"selected": True, "text": value, "value": value}
    return {
        "current": chosen, "description": description, "hide": 0, "label": shown, "name": name, "options": [chosen],
        "query": value, "skipUrlSync": False, "type": "textbox",
    }  # fmt: skip
