"""One pod, container or process through its life."""

from __future__ import annotations

from tools.dashboards.grafana import Dashboard, Query, Row, stat, table, timeseries
from tools.dashboards.queries import JOULES_PER_KWH, NO_CONTAINER, OWNER, as_process, as_workload, once, per_second
from tools.dashboards.variables import PROCESS, WHO, of, places, workloads

PLACE = "cluster, job, instance"
EACH = "{{instance}} GPU {{gpu}}"
PERSON = f"{OWNER}, process_name"
NAME = f"{{{{workload}}}} {EACH}"


def its(metric: str, *more: str) -> str:
    """A metric of the processes chosen."""
    return of(metric, WHO, PROCESS, *more)


def with_its_process(expression: str) -> str:
    """Of containers that had a process with a name that is chosen."""
    return f"{expression} and on (container_id) last_over_time({its('gpu_process_active')}[$__range])"


def so_far(containers: str, processes: str) -> str:
    """All of a container since it began, exited processes too; of processes outside of containers, their own.

    By id: a container whose name came later was there under two names, with the same joules.
    """
    contained = once(f"last_over_time({of(containers, WHO)}[$__range])", "container_id", "method")
    outside = once(f"last_over_time({its(processes, NO_CONTAINER)}[$__range])", "pid", "process_name", "method")
    return f"sum({with_its_process(contained)} or {outside})"


def by_device(together: str, metric: str) -> str:
    """A metric of the processes chosen, by what they are and where."""
    return as_process(f"{together} by (instance, gpu, {PERSON}) ({its(metric)})")


def on_its_gpus(expression: str) -> str:
    """Of the GPUs it is on; by index, because the uuid of who is on an instance is the instance's."""
    return f"({expression}) and on ({PLACE}, gpu) {its('gpu_process_active')}"


NOW = Row("So far", (
    stat("Running since", "When the first of its processes that are still there started.", "dateTimeFromNow",
         f"min({its('gpu_process_start_time_seconds')}) * 1000", width=4),
    stat("Devices", "GPUs and MIG instances its processes are on.", "short",
         f"count(count by ({PLACE}, uuid) ({its('gpu_process_active')} == 1))"),
    stat("Power", "Now.", "watt", f"sum({per_second(its('gpu_process_energy_joules_total'))})"),
    stat("Energy so far", "Since the container began, its exited processes too; of the host's own processes, as long "
         "as they are shown.", "kwatth", width=4,
         promql=f"{so_far('container_gpu_energy_joules_total', 'gpu_process_energy_joules_total')} / {JOULES_PER_KWH}"),
    stat("Busy so far", "Time on the compute engine, added up over devices.", "s",
         so_far("container_gpu_busy_seconds_total", "gpu_process_busy_seconds_total"), width=4),
    stat("Measured", "The part of its energy in this time range that is measured: it was alone on its GPU. The rest "
         "is a share of a measured sum.", "percentunit",
         f"""(sum(increase({its("gpu_process_energy_joules_total", 'method="exclusive"')}[$__range])) or vector(0)) """
         f"/ sum(increase({its('gpu_process_energy_joules_total')}[$__range]))", most=1),
    stat("Memory", "GPU memory its processes hold now.", "bytes", f"sum({its('gpu_process_memory_used_bytes')})"),
))  # fmt: skip

LIFE = Row("Through its life", (
    timeseries("Processes", "On GPUs; those that are gone are 0 until they are forgotten.", "short",
               Query(as_process(f"sum by ({PERSON}) ({its('gpu_process_active')})"), "{{workload}}")),
    timeseries("Compute engine", "Share of time its processes had it, by device.", "percentunit",
               Query(by_device("sum", "gpu_process_sm_utilization_ratio"), NAME)),
    timeseries("GPU memory", "Of listed processes, by device.", "bytes",
               Query(by_device("sum", "gpu_process_memory_used_bytes"), NAME), stacked=True),
    timeseries("Power by how it is known", "exclusive is measured; all others are shares of what is measured. See "
               "docs/attribution.md.", "watt",
               Query(f"sum by (method) ({per_second(its('gpu_process_energy_joules_total'))})", "{{method}}"),
               stacked=True),
    timeseries("Energy since it began", "Of each container, exited processes too.", "joule",
               Query(as_workload(f"sum by ({OWNER}) ("
                                 + with_its_process(of("container_gpu_energy_joules_total", WHO)) + ")"),
                     "{{workload}}")),
    timeseries("How sure its share is", "Standard deviation of the share of the work it was given last; absent where "
               "it is alone.", "percentunit",
               Query(by_device("max", "gpu_process_energy_share_error_ratio"), NAME)),
    timeseries("Memory that is inferred", "Its part of memory that no listed process holds.", "bytes",
               Query(as_workload("sum by (" + OWNER + ") ("
                                 + of("container_gpu_memory_bytes", WHO, 'method="inference"') + ")"), "{{workload}}")),
    timeseries("Memory bandwidth", "Share of time its processes had memory busy.", "percentunit",
               Query(by_device("sum", "gpu_process_memory_utilization_ratio"), NAME)),
    timeseries("Video", "Share of encoders and decoders it used.", "percentunit",
               Query(f"sum by (instance, gpu) ({its('gpu_process_encoder_utilization_ratio')})", f"{EACH} encoder"),
               Query(f"sum by (instance, gpu) ({its('gpu_process_decoder_utilization_ratio')})", f"{EACH} decoder")),
))  # fmt: skip

GPUS = Row("The GPUs it is on", (
    timeseries("Utilization of its GPUs", "By whomever; of instances, how active they are.", "percentunit",
               Query(on_its_gpus(of("gpu_utilization_ratio")), EACH),
               Query(on_its_gpus(of("gpu_mig_graphics_active_ratio")), f"{EACH} {{{{uuid}}}}"), most=1),
    timeseries("Memory of its GPUs", "Used by whomever, over all there is.", "percentunit",
               Query(on_its_gpus(f"{of('gpu_memory_used_bytes')} / {of('gpu_memory_total_bytes')}"), EACH), most=1),
    timeseries("Everybody on its GPUs", "Watts of all who share them, itself too.", "watt",
               Query(as_process(f"sum by ({PERSON}) ("
                                + on_its_gpus(per_second(of("gpu_process_energy_joules_total"))) + ")"),
                     "{{workload}}"), stacked=True),
    timeseries("Temperature of its GPUs", "By sensor.", "celsius",
               Query(on_its_gpus(of("gpu_temperature_celsius")), f"{EACH} {{{{sensor}}}}")),
    timeseries("Clocks held back", "How many of its GPUs, by reason. At full load sw_power_cap is normal.", "short",
               Query("sum by (reason) (" + on_its_gpus(of("gpu_clock_event_active", 'reason!="gpu_idle"')) + ")",
                     "{{reason}}")),
    timeseries("XIDs of its GPUs", "Errors the driver reported, by code. 13, 31, 43 and 45 are most often a program's "
               "own fault.", "short", Query(on_its_gpus(of("gpu_xid_errors_total")), f"{EACH} XID {{{{xid}}}}")),
))  # fmt: skip

INFO = its("gpu_process_info")
OWNERS = f"last_over_time({of('gpu_owner_info', WHO)}[$__range])"
GIVEN = f"{of('gpu_pod_allocation_info', WHO)} or {of('gpu_container_allocation_info', WHO)}"
WHO_IT_IS = Row("Who it is", (
    table("Its processes", "As which user, in which systemd unit or batch job.", {
        "On the GPU": (f"max by (instance, gpu, pid, user, unit, batch_job, {PERSON}) ({INFO})", "none"),
    }),
    table("Its containers", "Image, runtime, and the workload they belong to.", {
        "There": (f"max by ({OWNER}, image, runtime, workload_kind, workload_name) ({OWNERS})", "none"),
    }, width=12),
    table("Its devices", "What it was given, used or not.", {
        "Given": (f"max by (instance, gpu, uuid, resource, {OWNER}) ({GIVEN})", "none"),
    }, width=12),
))  # fmt: skip

WORKLOAD = Dashboard(
    "workload",
    "gpuledger / Workload",
    "One pod, container or process through its life: choose it above. Without Kubernetes, leave namespace and pod at "
    "All.",
    (*places(), *workloads()),
    (NOW, LIFE, GPUS, WHO_IT_IS),
    span="now-6h",
)
