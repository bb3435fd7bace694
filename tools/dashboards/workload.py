"""Workload dashboard: one pod, container or process over its lifetime."""

from __future__ import annotations

from tools.dashboards.grafana import Dashboard, Query, Row, stat, table, timeseries
from tools.dashboards.queries import JOULES_PER_KWH, NO_CONTAINER, OWNER, as_process, as_workload, dedup, per_second
from tools.dashboards.variables import OWNED, PROCESS, places, select, workloads

PLACE = "cluster, job, instance"
EACH = "{{instance}} GPU {{gpu}}"
PROCESS_LABELS = f"{OWNER}, process_name"
NAME = f"{{{{workload}}}} {EACH}"


def proc(metric: str, *more: str) -> str:
    """Selector for a metric of the selected processes."""
    return select(metric, OWNED, PROCESS, *more)


def with_selected_process(expression: str) -> str:
    """Keep containers that had a process with a selected name."""
    return f"{expression} and on (container_id) last_over_time({proc('gpu_process_active')}[$__range])"


def so_far(containers: str, processes: str) -> str:
    """Totals of containers since their start, including exited processes, and of processes outside of containers.

    Grouped by id, because a container whose name arrived late has the same energy under two names.
    """
    contained = dedup(f"last_over_time({select(containers, OWNED)}[$__range])", "container_id", "method")
    outside = dedup(f"last_over_time({proc(processes, NO_CONTAINER)}[$__range])", "pid", "process_name", "method")
    return f"sum({with_selected_process(contained)} or {outside})"


def by_device(together: str, metric: str) -> str:
    """A metric of the selected processes, by workload and GPU."""
    return as_process(f"{together} by (instance, gpu, {PROCESS_LABELS}) ({proc(metric)})")


def on_same_gpus(expression: str) -> str:
    """Keep GPUs with a selected process, matched by index: a process on a MIG instance has the uuid of the instance."""
    return f"({expression}) and on ({PLACE}, gpu) {proc('gpu_process_active')}"


NOW = Row("Totals", (
    stat("Running since", "Start time of the oldest running process of the workload.", "dateTimeFromNow",
         f"min({proc('gpu_process_start_time_seconds')}) * 1000", width=4),
    stat("Devices", "Number of GPUs and MIG instances with a process of the workload.", "short",
         f"count(count by ({PLACE}, uuid) ({proc('gpu_process_active')} == 1))"),
    stat("Power", "Current power, from the energy of the processes.", "watt",
         f"sum({per_second(proc('gpu_process_energy_joules_total'))})"),
    stat("Energy so far",
         "Since the start of the container, including exited processes. Host processes count as long as "
         "they are exposed.", "kwatth", width=4,
         promql=f"{so_far('container_gpu_energy_joules_total', 'gpu_process_energy_joules_total')} / {JOULES_PER_KWH}"),
    stat("Busy so far", "Time on the compute engine, summed over devices.", "s",
         so_far("container_gpu_busy_seconds_total", "gpu_process_busy_seconds_total"), width=4),
    stat("Measured", "Part of the energy in the selected time range that is measured, because the process was alone on "
         "its GPU. The rest is a share of measured energy.", "percentunit",
         f"""(sum(increase({proc("gpu_process_energy_joules_total", 'method="exclusive"')}[$__range])) or vector(0)) """
         f"/ sum(increase({proc('gpu_process_energy_joules_total')}[$__range]))", most=1),
    stat("Memory", "GPU memory that the processes hold now.", "bytes", f"sum({proc('gpu_process_memory_used_bytes')})"),
))  # fmt: skip

LIFE = Row("Over time", (
    timeseries("Processes", "Number of processes on GPUs. Exited processes are 0 while they are still exposed.",
               "short",
               Query(as_process(f"sum by ({PROCESS_LABELS}) ({proc('gpu_process_active')})"), "{{workload}}")),
    timeseries("Compute engine", "Share of time on the compute engine (SM time), by device.", "percentunit",
               Query(by_device("sum", "gpu_process_sm_utilization_ratio"), NAME)),
    timeseries("GPU memory", "Memory of listed processes, by device.", "bytes",
               Query(by_device("sum", "gpu_process_memory_used_bytes"), NAME), stacked=True),
    timeseries("Power by method", "exclusive is measured; the other methods are shares of measured energy. See "
               "docs/attribution.md.", "watt",
               Query(f"sum by (method) ({per_second(proc('gpu_process_energy_joules_total'))})", "{{method}}"),
               stacked=True),
    timeseries("Energy of containers", "Energy since the start of each container, including exited processes.", "joule",
               Query(as_workload(f"sum by ({OWNER}) ("
                                 + with_selected_process(select("container_gpu_energy_joules_total", OWNED)) + ")"),
                     "{{workload}}")),
    timeseries("Error of the energy share",
               "Standard deviation of the latest energy share. Absent while the process is "
               "alone on its GPU.", "percentunit",
               Query(by_device("max", "gpu_process_energy_share_error_ratio"), NAME)),
    timeseries("Inferred memory", "Part of the memory that no listed process holds, inferred to the container.",
               "bytes",
               Query(as_workload("sum by (" + OWNER + ") ("
                                 + select("container_gpu_memory_bytes", OWNED, 'method="inference"') + ")"),
                                 "{{workload}}")),
    timeseries("Memory bandwidth", "Share of time in which the processes accessed memory; with --collector.engines.",
               "percentunit",
               Query(by_device("sum", "gpu_process_memory_utilization_ratio"), NAME)),
    timeseries("Video", "Utilization of encoders and decoders by the workload; with --collector.engines.",
               "percentunit",
               Query(f"sum by (instance, gpu) ({proc('gpu_process_encoder_utilization_ratio')})", f"{EACH} encoder"),
               Query(f"sum by (instance, gpu) ({proc('gpu_process_decoder_utilization_ratio')})", f"{EACH} decoder")),
))  # fmt: skip

GPUS = Row("GPUs of the workload", (
    timeseries("Utilization of its GPUs", "Utilization by all processes; for MIG instances, the graphics activity.",
               "percentunit",
               Query(on_same_gpus(select("gpu_utilization_ratio")), EACH),
               Query(on_same_gpus(select("gpu_mig_graphics_active_ratio")), f"{EACH} {{{{uuid}}}}"), most=1),
    timeseries("Memory of its GPUs", "Used memory / total memory, of all processes.", "percentunit",
               Query(on_same_gpus(f"{select('gpu_memory_used_bytes')} / {select('gpu_memory_total_bytes')}"), EACH),
               most=1),
    timeseries("Power of all processes on its GPUs",
               "Power of this workload and of the workloads that share its GPUs.", "watt",
               Query(as_process(f"sum by ({PROCESS_LABELS}) ("
                                + on_same_gpus(per_second(select("gpu_process_energy_joules_total"))) + ")"),
                     "{{workload}}"), stacked=True),
    timeseries("Temperature of its GPUs", "Temperature by sensor.", "celsius",
               Query(on_same_gpus(select("gpu_temperature_celsius")), f"{EACH} {{{{sensor}}}}")),
    timeseries("GPUs with reduced clocks", "Number of its GPUs, by reason. Under full load, sw_power_cap is normal.",
               "short",
               Query("sum by (reason) (" + on_same_gpus(select("gpu_clock_event_active", 'reason!="gpu_idle"')) + ")",
                     "{{reason}}")),
    timeseries("XIDs of its GPUs",
               "Number of XID errors, by code. Source: NVIDIA driver. 13, 31, 43 and 45 are usually "
               "application errors.", "short", Query(on_same_gpus(select("gpu_xid_errors_total")),
               f"{EACH} XID {{{{xid}}}}")),
))  # fmt: skip

INFO = proc("gpu_process_info")
OWNERS = f"last_over_time({select('gpu_owner_info', OWNED)}[$__range])"
ALLOCATED = f"{select('gpu_pod_allocation_info', OWNED)} or {select('gpu_container_allocation_info', OWNED)}"
IDENTITY = Row("Identity", (
    table("Its processes", "User, systemd unit and batch job of each process.", {
        "On the GPU": (f"max by (instance, gpu, pid, user, unit, batch_job, {PROCESS_LABELS}) ({INFO})", "none"),
    }),
    table("Its containers", "Image, runtime and workload of each container.", {
        "Present": (f"max by ({OWNER}, image, runtime, workload_kind, workload_name) ({OWNERS})", "none"),
    }, width=12),
    table("Its devices", "Allocated devices, used or not.", {
        "Allocated": (f"max by (instance, gpu, uuid, resource, {OWNER}) ({ALLOCATED})", "none"),
    }, width=12),
))  # fmt: skip

WORKLOAD = Dashboard(
    "workload",
    "gpuledger / Workload",
    "One pod, container or process over its lifetime. Select it at the top. Without Kubernetes, leave namespace and "
    "pod at All.",
    (*places(), *workloads()),
    (NOW, LIFE, GPUS, IDENTITY),
    span="now-6h",
)
