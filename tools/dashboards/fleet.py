"""Fleet dashboard: GPUs of all nodes, their use, their users and their health."""

from __future__ import annotations

from tools.dashboards.grafana import BAD_ABOVE_0, Dashboard, Query, Row, bars, stat, table, timeseries
from tools.dashboards.node import WORKLOAD_URL
from tools.dashboards.queries import (
    NO_CONTAINER,
    OWNER,
    as_host_workload,
    as_namespace,
    as_workload,
    dedup,
    device,
    energy_of_containers,
    energy_of_host,
    in_range,
    per_second,
)
from tools.dashboards.variables import GPU, gpus, places, select

NODE_URL = "/d/gpuledger-node?${__url_time_range}&var-datasource=${datasource}&var-instance=${__value.text}"


def gpu(metric: str, *more: str) -> str:
    """Selector for a metric of the selected GPUs."""
    return select(metric, GPU, *more)


def each(metric: str) -> str:
    """Like `gpu`, with one series per GPU and node."""
    return dedup(gpu(metric), "instance")


def mean_rate(counter: str) -> str:
    """Mean rate of a counter over the time range of the dashboard."""
    return f"rate({counter}[$__range])"


NONE = f"0 * count({gpu('gpu_up')})"
INSTALLED = f"""count({dedup(gpu("gpu_up", 'uuid!=""'))})"""
IN_USE = f"sum({dedup(gpu('gpu_in_use'))})"
BUSY = f"count({dedup(gpu('gpu_utilization_ratio'))} > 0) or {NONE}"
ALLOCATED = (
    f"count(max by (instance, gpu) ({gpu('gpu_pod_allocation_info')} or {gpu('gpu_container_allocation_info')} "
    f"or {gpu('gpu_job_allocation_info')})) or {NONE}"
)
MIG_ACTIVE = "gpu_mig_graphics_active_ratio"
USED, MEMORY = each("gpu_memory_used_bytes"), each("gpu_memory_total_bytes")
MODELS = f"* on (cluster, job, instance, uuid) group_left (name) {gpu('gpu_info')}"


def while_in_use(by: str = "") -> str:
    """Busy time / time in use, in total or by model. GPUs that do not report busy time are excluded."""
    labels, joined, grouped = ([by], f" {MODELS}", f"sum by ({by})") if by else ([], "", "sum")
    busy = dedup(per_second(gpu("gpu_busy_seconds_total")) + joined, *labels)
    used = dedup(per_second(gpu("gpu_in_use_seconds_total")) + joined, *labels)
    return f"{grouped} ({busy}) / ({grouped} ({used} and on (uuid) {busy}) > 0)"


WHILE_IN_USE = f"{while_in_use()} or {NONE}"


def allocation(metric: str, *more: str) -> str:
    """Selector for a metric of the allocations of the selected GPUs, with one series per allocation and node."""
    return f"max by ({ALLOCATION}) ({gpu(metric, *more)})"


def allocated(counter: str, by: str = "") -> str:
    """Rate of a counter of allocations: seconds per second are a number of devices, joules per second are watts."""
    labels = ", ".join(filter(None, ("uuid", OWNER, "container_id, batch_job", by)))
    return f"sum by ({by}) (max by ({labels}) ({per_second(gpu(counter))}))"


ALLOCATION = f"instance, gpu, uuid, {OWNER}, container_id, batch_job"
IS_IDLE = f"and on ({ALLOCATION}) " + allocation("gpu_allocation_state", 'state=~"no_process|parked|low"')
BUSY_SHARE = (
    f"max by ({ALLOCATION}) ({in_range(gpu('gpu_allocation_busy_seconds_total'))})"
    f" / (max by ({ALLOCATION}) ({in_range(gpu('gpu_allocation_seconds_total'))}) > 0)"
)


NOW = Row("Now", (
    stat("Nodes", "Number of nodes with a running exporter.", "short",
         f"count(max by (instance) ({select('gpuledger_up')}))"),
    stat("GPUs", "Number of GPUs. A GPU that is scraped twice counts once.", "short", INSTALLED),
    stat("GPUs that do not answer", "Number of GPUs on which driver calls fail or hang. See the alert GpuLost.",
         "short",
         f"sum(1 - min by (instance, gpu) ({gpu('gpu_up')}))", steps=BAD_ABOVE_0),
    stat("GPUs allocated", "Number of GPUs that are allocated to a pod, a container or a batch job, used or not. A GPU "
         "with an allocated MIG instance or replica counts as one.", "short", ALLOCATED),
    stat("GPUs in use", "Number of GPUs with at least one process, busy or not.", "short", IN_USE),
    stat("GPUs busy", "Number of GPUs on which a kernel runs. GPUs in MIG mode do not report it.", "short", BUSY),
    stat("Utilization while in use", "Busy time / time in use. GPUs without processes are excluded.", "percentunit",
         WHILE_IN_USE, most=1, steps=((None, "red"), (0.3, "yellow"), (0.6, "green"))),
    stat("Power", "Current power draw of all GPUs.", "watt", f"sum({dedup(gpu('gpu_power_watts'))})"),
))  # fmt: skip

TREND = Row("Over time", (
    timeseries("GPUs by use", "Number of GPUs: installed, allocated, in use, busy.", "short",
               Query(INSTALLED, "installed"), Query(ALLOCATED, "allocated"), Query(IN_USE, "in use"),
               Query(BUSY, "busy")),
    timeseries("Utilization while GPUs are in use", "Busy time / time in use, in total and by model.", "percentunit",
               Query(WHILE_IN_USE, "all"),
               Query(while_in_use("name"), "{{name}}"), most=1),
    timeseries("Memory used", "Used memory / total memory of all GPUs.", "percentunit",
               Query(f"sum({dedup(gpu('gpu_memory_used_bytes'))}) / sum({dedup(gpu('gpu_memory_total_bytes'))})",
                     "all"),
               most=1),
    timeseries("Power by node", "Power draw of the GPUs of each node.", "watt",
               Query(f"sum by (instance) ({each('gpu_power_watts')})", "{{instance}}"), stacked=True),
    timeseries("Power by namespace", "Power of containers by namespace, of host processes and of idle GPUs, and "
               "unattributed power by reason.", "watt",
               Query(as_namespace(energy_of_containers("namespace", per_second)), "{{namespace}}"),
               Query(f"sum({energy_of_host('process_name', per_second)})", "host processes"),
               Query(device("gpu_idle_energy_joules_total", per_second), "idle"),
               Query(device("gpu_unattributed_energy_joules_total", per_second, by="reason"),
                     "unattributed: {{reason}}"),
               stacked=True),
    timeseries("Busy GPUs by namespace", "Busy seconds per second on the compute engine: 1 is one fully busy GPU.",
               "short",
               Query(as_namespace("sum by (namespace) (" + dedup(
                   per_second(gpu("container_gpu_busy_seconds_total")), "container_id", "namespace") + ")"),
                   "{{namespace}}"),
               Query("sum(" + dedup(per_second(gpu("gpu_process_busy_seconds_total", NO_CONTAINER)), "pid") + ")",
                     "host processes"), stacked=True),
))  # fmt: skip

NODES = Row("Nodes and versions", (
    table("Nodes, one by one", "Current state of each node. Click a node to open its dashboard.", {
        "GPUs": (f"count by (instance) ({each('gpu_up')})", "none"),
        "In use": (f"sum by (instance) ({each('gpu_in_use')})", "none"),
        "Utilization": (f"avg by (instance) ({each('gpu_utilization_ratio')} or {each(MIG_ACTIVE)})", "percentunit"),
        "Memory used": (f"sum by (instance) ({USED}) / sum by (instance) ({MEMORY})", "percentunit"),
        "Power": (f"sum by (instance) ({each('gpu_power_watts')})", "watt"),
    }, links={"instance": NODE_URL}),
    bars("GPUs by model", "Number of GPUs of each model.", "short",
         Query(f"count by (name) (max by (uuid, name) ({gpu('gpu_info')}))", "{{name}}")),
    bars("Nodes by driver", "Number of nodes with each version of the NVIDIA driver.", "short",
         Query(f"count by (driver_version) (max by (instance, driver_version) ({select('gpuledger_driver_info')}))",
               "{{driver_version}}")),
    bars("Nodes by version of gpuledger", "Number of nodes with each version; several during a rollout.", "short",
         Query(f"count by (version) (max by (instance, version) ({select('gpuledger_build_info')}))", "{{version}}")),
))  # fmt: skip

USERS = Row("Users", (
    bars("Workloads with the highest power",
         "The 15 largest by mean power in the selected time range. Host processes are "
         "shown by name.", "watt",
         Query("topk(15, " + as_workload(energy_of_containers(OWNER, mean_rate)) + " or "
               + as_host_workload(energy_of_host("process_name", mean_rate)) + ")", "{{workload}}"), height=10),
    bars("Workloads with the most memory",
         "The 15 largest by current GPU memory: of listed processes, and inferred where no "
         "process is listed.", "bytes",
         Query("topk(15, " + as_workload(
             f"sum by ({OWNER}) ({dedup(gpu('container_gpu_memory_bytes'), OWNER, 'container_id', 'method')})"
         ) + ")", "{{workload}}"), height=10),
    bars("Busy seconds by namespace", "Time on the compute engine in the selected time range.", "s",
         Query(as_namespace("sum by (namespace) (" + dedup(
             in_range(gpu("container_gpu_busy_seconds_total")), "namespace", "container_id") + ")"), "{{namespace}}"),
         height=10),
))  # fmt: skip

IDLE = Row("Idle allocations", (
    timeseries("Allocated devices by state", "Number of allocated devices that are busy, idle by reason, or unknown. "
               "See docs/idle.md.", "short",
               Query(allocated("gpu_allocation_busy_seconds_total"), "busy"),
               Query(allocated("gpu_allocation_idle_seconds_total", "reason"), "{{reason}}"),
               Query(allocated("gpu_allocation_unknown_seconds_total"), "unknown"), stacked=True),
    timeseries("Power of idle allocations", "Power while allocations are idle: of their parked processes, and of GPUs "
               "without a process.", "watt",
               Query(allocated("gpu_allocation_idle_energy_joules_total", "reason"), "{{reason}}"), stacked=True),
    table("Idle now", "Allocations that are idle, with the time since they were last busy, and the GPU time and energy "
          "since then. gpuledger idle also shows the cost and the command that would free each of them.", {
              "Idle for": (f"sort_desc(time() - {allocation('gpu_allocation_idle_since_timestamp_seconds')} {IS_IDLE})",
                           "s"),
              "GPU time": (f"{allocation('gpu_allocation_idle_period_gpu_seconds')} {IS_IDLE}", "s"),
              "Energy": (f"{allocation('gpu_allocation_idle_period_energy_joules')} {IS_IDLE}", "joule"),
          }, links={"instance": NODE_URL}),
    table("Busy share of allocations", "Share of the allocated time in the selected time range in which the owner "
          "used the device; 0 % means allocated but not used.", {"Busy": (f"sort({BUSY_SHARE})", "percentunit")},
          links={"instance": NODE_URL,
                 "pod": WORKLOAD_URL + "&var-namespace=${__data.fields.namespace}&var-pod=${__value.text}"}),
))  # fmt: skip

HEALTH = Row("Health", (
    timeseries("XIDs", "Number of XID errors since the exporters started, by code. Source: NVIDIA driver.", "short",
               Query(f"sum by (xid) ({dedup(gpu('gpu_xid_errors_total'), 'xid')})", "XID {{xid}}")),
    timeseries("GPUs with reduced clocks", "Number of GPUs whose clocks are reduced now, by reason.", "short",
               Query("sum by (reason) (" + dedup(gpu("gpu_clock_event_active", 'reason!="gpu_idle"'), "reason") + ")",
                     "{{reason}}")),
    timeseries("Memory errors",
               "Uncorrected ECC errors over the lifetime of the boards, and GPUs that need a reset (remap "
               "pending) or a replacement (remap failed).", "short",
               Query("sum(" + dedup(gpu("gpu_ecc_errors_total", 'error="uncorrected"')) + ")", "uncorrected errors"),
               Query(f"sum({dedup(gpu('gpu_row_remap_pending'))})", "remap pending"),
               Query(f"sum({dedup(gpu('gpu_row_remap_failed'))})", "remap failed")),
    timeseries("Unattributed energy", "Share of all energy, by reason.", "percentunit",
               Query(device("gpu_unattributed_energy_joules_total", per_second, by="reason")
                     + f" / scalar({device('gpu_energy_joules_total', per_second)})", "{{reason}}")),
    timeseries("Age of the oldest readings", "Maximum over all nodes. If it exceeds a few ticks, see the alert "
               "GpuledgerStale.", "s",
               Query(f"max(time() - max by (instance) ({select('gpuledger_tick_timestamp_seconds')}))", "oldest")),
    timeseries("Providers that do not answer", "Number of nodes, by provider. See the alert GpuledgerProviderDown.",
               "short",
               Query(f"sum by (provider) (1 - max by (instance, provider) ({select('gpuledger_provider_up')}))",
                     "{{provider}}")),
))  # fmt: skip

FLEET = Dashboard(
    "fleet",
    "gpuledger / Fleet",
    "GPUs of all nodes: how many are installed, allocated, in use and busy; their users; their health.",
    (*places(), gpus()),
    (NOW, TREND, NODES, USERS, IDLE, HEALTH),
)
