"""All nodes: how many GPUs there are, how many are used, by whom, and which are ill."""

from __future__ import annotations

from tools.dashboards.grafana import BAD_ABOVE_0, Dashboard, Query, Row, bars, stat, table, timeseries
from tools.dashboards.node import WORKLOAD_URL
from tools.dashboards.queries import (
    NO_CONTAINER,
    OWNER,
    as_host_workload,
    as_namespace,
    as_workload,
    device,
    energy_of_containers,
    energy_of_host,
    in_range,
    once,
    per_second,
)
from tools.dashboards.variables import GPU, gpus, of, places

NODE_URL = "/d/gpuledger-node?${__url_time_range}&var-datasource=${datasource}&var-instance=${__value.text}"


def gpu(metric: str, *more: str) -> str:
    """A metric of the GPUs chosen."""
    return of(metric, GPU, *more)


def each(metric: str) -> str:
    """The same, each GPU of a node once."""
    return once(gpu(metric), "instance")


NONE = f"0 * count({gpu('gpu_up')})"
THERE = f"""count({once(gpu("gpu_up", 'uuid!=""'))})"""
IN_USE = f"sum({once(gpu('gpu_in_use'))})"
BUSY = f"count({once(gpu('gpu_utilization_ratio'))} > 0) or {NONE}"
GIVEN = (
    f"count(max by (instance, gpu) ({gpu('gpu_pod_allocation_info')} or {gpu('gpu_container_allocation_info')} "
    f"or {gpu('gpu_job_allocation_info')})) or {NONE}"
)
MIG_ACTIVE = "gpu_mig_graphics_active_ratio"
USED, MEMORY = each("gpu_memory_used_bytes"), each("gpu_memory_total_bytes")
MODELS = f"* on (cluster, job, instance, uuid) group_left (name) {gpu('gpu_info')}"


def while_in_use(by: str = "") -> str:
    """Busy time over time in use, all together or by model; GPUs that do not tell how busy they are do not count."""
    labels, joined, grouped = ([by], f" {MODELS}", f"sum by ({by})") if by else ([], "", "sum")
    busy = once(per_second(gpu("gpu_busy_seconds_total")) + joined, *labels)
    used = once(per_second(gpu("gpu_in_use_seconds_total")) + joined, *labels)
    return f"{grouped} ({busy}) / ({grouped} ({used} and on (uuid) {busy}) > 0)"


WHILE_IN_USE = f"{while_in_use()} or {NONE}"


def allocated_busy() -> str:
    """Share of the time in which each pod with a device used it; MIG instances, which do not tell, are left out."""
    labels = f"instance, gpu, {OWNER}"
    given = (
        f"max by ({labels}) ({gpu('gpu_pod_allocation_info')} "
        f"unless on (cluster, job, instance, uuid) {gpu('gpu_mig_info')})"
    )
    used = f"""rate({gpu("container_gpu_busy_seconds_total", 'pod!=""')}[$__range])"""
    busy = f"sum by ({labels}) ({once(used, labels, 'container_id')})"
    return f"{busy} and on ({labels}) {given} or 0 * {given}"


NOW = Row("Now", (
    stat("Nodes", "Exporters that answer.", "short", f"count(max by (instance) ({of('gpuledger_up')}))"),
    stat("GPUs", "GPUs there are, each counted once.", "short", THERE),
    stat("GPUs that do not answer", "GPUs whose calls fail or hang. See the alert GpuLost.", "short",
         f"sum(1 - min by (instance, gpu) ({gpu('gpu_up')}))", steps=BAD_ABOVE_0),
    stat("GPUs allocated", "Given to a pod, a container or a batch job, whole or in part, used or not.", "short",
         GIVEN),
    stat("GPUs in use", "With some process on them, busy or not.", "short", IN_USE),
    stat("GPUs busy", "With a kernel running. GPUs that are cut do not tell.", "short", BUSY),
    stat("Utilization while in use", "Busy time over time in use: GPUs that nobody uses do not count.", "percentunit",
         WHILE_IN_USE, most=1, steps=((None, "red"), (0.3, "yellow"), (0.6, "green"))),
    stat("Power", "Drawn now.", "watt", f"sum({once(gpu('gpu_power_watts'))})"),
))  # fmt: skip

TREND = Row("Over time", (
    timeseries("GPUs by use", "There, given to somebody, in use, busy.", "short", Query(THERE, "there"),
               Query(GIVEN, "allocated"), Query(IN_USE, "in use"), Query(BUSY, "busy")),
    timeseries("Utilization while GPUs are in use", "Busy time over time in use, by model too.", "percentunit",
               Query(WHILE_IN_USE, "all"),
               Query(while_in_use("name"), "{{name}}"), most=1),
    timeseries("Memory used", "Over all memory there is.", "percentunit",
               Query(f"sum({once(gpu('gpu_memory_used_bytes'))}) / sum({once(gpu('gpu_memory_total_bytes'))})", "all"),
               most=1),
    timeseries("Power by node", "Drawn by its GPUs.", "watt",
               Query(f"sum by (instance) ({each('gpu_power_watts')})", "{{instance}}"), stacked=True),
    timeseries("Power by namespace", "Of containers by their namespace, of processes outside of any, of empty GPUs, "
               "and nobody's.", "watt",
               Query(as_namespace(energy_of_containers("namespace", per_second)), "{{namespace}}"),
               Query(f"sum({energy_of_host('process_name', per_second)})", "host processes"),
               Query(device("gpu_idle_energy_joules_total", per_second), "idle"),
               Query(device("gpu_unattributed_energy_joules_total", per_second, by="reason"), "nobody: {{reason}}"),
               stacked=True),
    timeseries("Busy GPUs by namespace", "Time on the compute engine, each second: 1 is one GPU all the time.", "short",
               Query(as_namespace("sum by (namespace) (" + once(
                   per_second(gpu("container_gpu_busy_seconds_total")), "container_id", "namespace") + ")"),
                   "{{namespace}}"),
               Query("sum(" + once(per_second(gpu("gpu_process_busy_seconds_total", NO_CONTAINER)), "pid") + ")",
                     "host processes"), stacked=True),
))  # fmt: skip

NODES = Row("Node by node", (
    table("Nodes, one by one", "A click on a node shows it.", {
        "GPUs": (f"count by (instance) ({each('gpu_up')})", "none"),
        "In use": (f"sum by (instance) ({each('gpu_in_use')})", "none"),
        "Utilization": (f"avg by (instance) ({each('gpu_utilization_ratio')} or {each(MIG_ACTIVE)})", "percentunit"),
        "Memory used": (f"sum by (instance) ({USED}) / sum by (instance) ({MEMORY})", "percentunit"),
        "Power": (f"sum by (instance) ({each('gpu_power_watts')})", "watt"),
    }, links={"instance": NODE_URL}),
    bars("GPUs by model", "What there is.", "short",
         Query(f"count by (name) (max by (uuid, name) ({gpu('gpu_info')}))", "{{name}}")),
    bars("Nodes by driver", "Versions of the NVIDIA driver.", "short",
         Query(f"count by (driver_version) (max by (instance, driver_version) ({of('gpuledger_driver_info')}))",
               "{{driver_version}}")),
    bars("Nodes by version of gpuledger", "More than one while it is rolled out.", "short",
         Query(f"count by (version) (max by (instance, version) ({of('gpuledger_build_info')}))", "{{version}}")),
))  # fmt: skip

PEOPLE = Row("Who", (
    bars("Who draws most", "The 15 largest in this time range, mean watts; processes outside of containers by name.",
         "watt", Query("topk(15, " + as_workload(energy_of_containers(OWNER, lambda s: f"rate({s}[$__range])")) + " or "
                       + as_host_workload(energy_of_host("process_name", lambda s: f"rate({s}[$__range])")) + ")",
                       "{{workload}}"), height=10),
    bars("Who holds most memory", "The 15 largest, now: listed, and inferred where nobody is listed.", "bytes",
         Query("topk(15, " + as_workload(
             f"sum by ({OWNER}) ({once(gpu('container_gpu_memory_bytes'), OWNER, 'container_id', 'method')})"
         ) + ")", "{{workload}}"), height=10),
    bars("Busy seconds by namespace", "Time on the compute engine in this time range.", "s",
         Query(as_namespace("sum by (namespace) (" + once(
             in_range(gpu("container_gpu_busy_seconds_total")), "namespace", "container_id") + ")"), "{{namespace}}"),
         height=10),
    table("Pods with a GPU, and how busy they were", "Share of this time range in which a kernel of the pod ran. 0 %: "
          "held and not used. Devices of which nobody can tell, as MIG instances, are not in it.",
          {"Busy": (f"sort({allocated_busy()})", "percentunit")},
          links={"instance": NODE_URL,
                 "pod": WORKLOAD_URL + "&var-namespace=${__data.fields.namespace}&var-pod=${__value.text}"}),
))  # fmt: skip

HEALTH = Row("Health", (
    timeseries("XIDs", "Errors the drivers reported since the exporters started, by code.", "short",
               Query(f"sum by (xid) ({once(gpu('gpu_xid_errors_total'), 'xid')})", "XID {{xid}}")),
    timeseries("GPUs held back", "How many have their clocks held back now, by reason.", "short",
               Query("sum by (reason) (" + once(gpu("gpu_clock_event_active", 'reason!="gpu_idle"'), "reason") + ")",
                     "{{reason}}")),
    timeseries("Memory errors", "Uncorrected ECC errors over the life of the boards, and GPUs that wait for a reset "
               "or for a new board.", "short",
               Query("sum(" + once(gpu("gpu_ecc_errors_total", 'error="uncorrected"')) + ")", "uncorrected errors"),
               Query(f"sum({once(gpu('gpu_row_remap_pending'))})", "remap pending"),
               Query(f"sum({once(gpu('gpu_row_remap_failed'))})", "remap failed")),
    timeseries("Energy in nobody's account", "Over all energy, by reason.", "percentunit",
               Query(device("gpu_unattributed_energy_joules_total", per_second, by="reason")
                     + f" / scalar({device('gpu_energy_joules_total', per_second)})", "{{reason}}")),
    timeseries("Age of the oldest readings", "Of the node that is furthest behind. More than a few ticks: see the "
               "alert GpuledgerStale.", "s",
               Query(f"max(time() - max by (instance) ({of('gpuledger_tick_timestamp_seconds')}))", "oldest")),
    timeseries("Providers that do not answer", "By provider. See the alert GpuledgerProviderDown.", "short",
               Query(f"sum by (provider) (1 - max by (instance, provider) ({of('gpuledger_provider_up')}))",
                     "{{provider}}")),
))  # fmt: skip

FLEET = Dashboard(
    "fleet",
    "gpuledger / Fleet",
    "All nodes: how many GPUs there are, how many are used, by whom, and which are ill.",
    (*places(), gpus()),
    (NOW, TREND, NODES, PEOPLE, HEALTH),
)
