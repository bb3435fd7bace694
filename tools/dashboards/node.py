"""Node dashboard: every GPU of the selected nodes, its processes, and the exporter."""

from __future__ import annotations

from tools.dashboards.grafana import BAD_ABOVE_0, Dashboard, Panel, Query, Row, stat, table, timeseries
from tools.dashboards.queries import (
    NO_CONTAINER,
    OWNER,
    as_host_workload,
    as_workload,
    dedup,
    energy_of_containers,
    energy_of_host,
    per_second,
)
from tools.dashboards.variables import GPU, gpus, places, select

EACH = "{{instance}} GPU {{gpu}}"
DEVICE = "instance, gpu, uuid"
PROCESS_LABELS = f"instance, gpu, pid, process_name, {OWNER}"
MODELS = f"on (cluster, job, instance, gpu, uuid) group_left (name) {select('gpu_info', GPU)}"
WORKLOAD_URL = "/d/gpuledger-workload?${__url_time_range}&var-datasource=${datasource}"


def gpu(metric: str, *more: str) -> str:
    """Selector for a metric of the selected GPUs or of their processes."""
    return select(metric, GPU, *more)


def by_gpu(title: str, description: str, unit: str, *metrics: tuple[str, str], **more: object) -> Panel:
    """Time series per GPU; each metric has a suffix for the legend."""
    return timeseries(
        title, description, unit, *(Query(promql, f"{EACH} {name}".strip()) for promql, name in metrics), **more
    )


NOW = Row("Now", (
    stat("GPUs", "Number of GPUs that the driver lists.", "short", f"count({gpu('gpu_up')})"),
    stat("GPUs that do not answer", "Number of GPUs on which driver calls fail or hang. See the alert GpuLost.",
         "short",
         f"sum(1 - {gpu('gpu_up')})", steps=BAD_ABOVE_0),
    stat("GPUs in use", "Number of GPUs with at least one process, busy or not.", "short", f"sum({gpu('gpu_in_use')})"),
    stat("Utilization",
         "Mean share of time in which a kernel ran. For GPUs in MIG mode, the graphics activity of their "
         "instances.", "percentunit",
         f"avg({gpu('gpu_utilization_ratio')} or {gpu('gpu_mig_graphics_active_ratio')})", most=1),
    stat("Memory used", "Used memory / total memory of the selected GPUs.", "percentunit",
         f"sum({gpu('gpu_memory_used_bytes')}) / sum({gpu('gpu_memory_total_bytes')})", most=1,
         steps=((None, "green"), (0.9, "yellow"), (0.98, "red"))),
    stat("Power", "Current power draw of the selected GPUs.", "watt", f"sum({gpu('gpu_power_watts')})"),
    stat("Highest temperature", "Hottest of the selected GPUs. Many GPUs slow down at 87 to 90 degrees.", "celsius",
         f"""max({gpu("gpu_temperature_celsius", 'sensor="gpu"')})""",
         steps=((None, "green"), (80, "yellow"), (87, "red"))),
    stat("Age of readings", "Time since the last tick. If it exceeds a few ticks, see the alert GpuledgerStale.",
         "s", f"max(time() - {select('gpuledger_tick_timestamp_seconds')})",
         steps=((None, "green"), (30, "yellow"), (60, "red"))),
    table("GPUs, one by one", "Model and current state of each GPU.", {
        "GPU is up": (f"min by ({DEVICE}, name) ({gpu('gpu_up')} * {MODELS})", "none"),
        "Utilization": (f"max by ({DEVICE}) ({gpu('gpu_utilization_ratio')})", "percentunit"),
        "Memory used": (f"max by ({DEVICE}) ({gpu('gpu_memory_used_bytes')})", "bytes"),
        "Memory": (f"max by ({DEVICE}) ({gpu('gpu_memory_total_bytes')})", "bytes"),
        "Power": (f"max by ({DEVICE}) ({gpu('gpu_power_watts')})", "watt"),
        "Temperature": (f"""max by ({DEVICE}) ({gpu("gpu_temperature_celsius", 'sensor="gpu"')})""", "celsius"),
        "Processes": (f"max by ({DEVICE}) ({gpu('gpu_processes')})", "none"),
    }),
))  # fmt: skip

WORK = Row("Utilization and activity", (
    by_gpu("Utilization by GPU", "Share of time in which any kernel ran. GPUs in MIG mode do not report it.",
           "percentunit", (gpu("gpu_utilization_ratio"), ""), most=1),
    by_gpu("Activity",
           "Active share of SMs, tensor cores and memory bandwidth, and occupancy (resident warps / maximum). "
           "Hopper and newer; source: GPM.", "percentunit",
           (gpu("gpu_sm_active_ratio"), "SM"), (gpu("gpu_tensor_active_ratio"), "tensor"),
           (gpu("gpu_dram_active_ratio"), "DRAM"), (gpu("gpu_sm_occupancy_ratio"), "occupancy"), most=1),
    by_gpu("Activity of MIG instances", "Active share of the SMs of each MIG instance. Hopper and newer; source: GPM.",
           "percentunit",
           (gpu("gpu_mig_sm_active_ratio") + " * on (cluster, job, instance, uuid) group_left (profile) "
            + gpu("gpu_mig_info"), "{{profile}} {{uuid}} SM"), most=1),
    by_gpu("Video and image engines", "Utilization of encoders, decoders, JPEG and optical flow engines.",
           "percentunit",
           (gpu("gpu_encoder_utilization_ratio"), "encoder"), (gpu("gpu_decoder_utilization_ratio"), "decoder"),
           (gpu("gpu_jpeg_utilization_ratio"), "JPEG"), (gpu("gpu_optical_flow_utilization_ratio"), "optical flow"),
           most=1),
    by_gpu("Processes on GPUs", "Number of processes that the driver lists.", "short", (gpu("gpu_processes"), "")),
    by_gpu("Pipes", "Active share of the arithmetic pipes, without tensor cores. Hopper and newer; source: GPM.",
           "percentunit",
           (gpu("gpu_fp64_active_ratio"), "fp64"), (gpu("gpu_fp32_active_ratio"), "fp32"),
           (gpu("gpu_fp16_active_ratio"), "fp16"), (gpu("gpu_integer_active_ratio"), "integer"), most=1),
))  # fmt: skip

MEMORY = Row("Memory", (
    by_gpu("Memory used by GPU", "Used memory / total memory of each GPU and of each MIG instance.",
           "percentunit", (f"{gpu('gpu_memory_used_bytes')} / {gpu('gpu_memory_total_bytes')}", ""),
           (f"{gpu('gpu_mig_memory_used_bytes')} / {gpu('gpu_mig_memory_total_bytes')}", "{{uuid}}"), most=1,
           steps=((None, "green"), (0.98, "red"))),
    timeseries("Memory by category", "All memory of the selected GPUs: held by listed processes (known), by contexts "
               "(overhead), by unlisted processes (unknown), by the driver (reserved), and free.", "bytes",
               *(Query(f"sum({gpu(f'gpu_memory_{part}_bytes')})", part)
                 for part in ("known", "overhead", "unknown", "reserved", "free")), stacked=True),
    timeseries("Memory by workload", "Memory of listed processes (nvml), and unlisted memory that is inferred to a "
               "container (inference).", "bytes",
               Query(as_workload(f"sum by ({OWNER}, method) ({gpu('container_gpu_memory_bytes')})"),
                     "{{workload}} {{method}}"),
               Query(as_host_workload(
                   f"sum by (process_name) ({gpu('gpu_process_memory_used_bytes', NO_CONTAINER)})"), "{{workload}}"),
               stacked=True),
))  # fmt: skip

POWER = Row("Power and temperature", (
    by_gpu("Power by GPU", "Power draw of the board.", "watt", (gpu("gpu_power_watts"), "")),
    by_gpu("Power / power limit", "At 100 % the power limit reduces the clocks.", "percentunit",
           (f"{gpu('gpu_power_average_watts')} / {gpu('gpu_power_limit_watts')}", "")),
    timeseries("Power by workload", "Power of containers, host processes and idle GPUs, and unattributed power by "
               "reason. They add up to the power draw of the GPUs.", "watt",
               Query(as_workload(energy_of_containers(OWNER, per_second)), "{{workload}}"),
               Query(as_host_workload(energy_of_host("process_name", per_second)), "{{workload}}"),
               Query(f"sum({dedup(per_second(gpu('gpu_idle_energy_joules_total')))})", "idle"),
               Query("sum by (reason) ("
                     + dedup(per_second(gpu("gpu_unattributed_energy_joules_total")), "reason") + ")",
                     "unattributed: {{reason}}"), stacked=True),
    by_gpu("Idle and parked power",
           "Learned while no process was on the GPU (idle), and while its processes did not work "
           "(parked).", "watt", (gpu("gpu_idle_power_watts"), "idle"), (gpu("gpu_parked_power_watts"), "parked")),
    by_gpu("Temperature", "Temperature by sensor, and the temperature at which the GPU slows down.", "celsius",
           (gpu("gpu_temperature_celsius"), "{{sensor}}"),
           (gpu("gpu_temperature_limit_celsius", 'limit="slowdown"'), "slowdown")),
    by_gpu("Fans", "Requested speed / maximum speed. Absent if the server controls the fans.", "percentunit",
           (gpu("gpu_fan_speed_ratio"), "fan {{fan}}"), most=1),
    by_gpu("Clocks", "Clocks of the SMs and of the memory.", "hertz",
           (gpu("gpu_clock_hertz", 'clock=~"sm|memory"'), "{{clock}}")),
    timeseries("GPUs with reduced clocks", "Number of GPUs whose clocks are reduced now, by reason. Under full load, "
               "sw_power_cap is normal.", "short",
               Query(f"""sum by (reason) ({gpu("gpu_clock_event_active", 'reason!="gpu_idle"')})""", "{{reason}}")),
    by_gpu("Time with reduced clocks", "Share of time in which the clocks were reduced, by policy.", "percentunit",
           (per_second(gpu("gpu_clock_event_seconds_total")), "{{policy}}")),
))  # fmt: skip

HEALTH = Row("Health", (
    by_gpu("XIDs",
           "Number of XID errors since the exporter started, by code. Source: NVIDIA driver. 13, 31, 43 and 45 are "
           "usually application errors.", "short", (gpu("gpu_xid_errors_total"), "XID {{xid}}")),
    by_gpu("ECC errors",
           "Number of ECC errors over the lifetime of the board. An uncorrected error makes a process fail.", "short",
           (gpu("gpu_ecc_errors_total"), "{{error}}")),
    by_gpu("Remapped rows",
           "Number of memory rows replaced with spare rows, by cause. pending: the GPU needs a reset; failed: "
           "replace the board.", "short", (gpu("gpu_remapped_rows_total"), "{{cause}}"), (gpu("gpu_row_remap_pending"),
           "pending"),
           (gpu("gpu_row_remap_failed"), "failed")),
    by_gpu("PCIe replays", "Retransmitted packets per second. A continuous rate indicates a bad link.", "short",
           (per_second(gpu("gpu_pcie_replays_total")), "")),
    by_gpu("PCIe lanes", "Lanes in use / maximum of board and slot. If it is below 100 %, check seating and slot.",
           "percentunit",
           (f"{gpu('gpu_pcie_link_width')} / {gpu('gpu_pcie_link_max_width')}", "lanes"), most=1),
    by_gpu("NVLinks", "Number of links, by state.", "short", (gpu("gpu_nvlink_links"), "{{state}}")),
    by_gpu("NVLink errors", "Errors per second, by kind.", "short",
           (per_second(gpu("gpu_nvlink_errors_total")), "{{error}}")),
    by_gpu("PCIe traffic", "Bytes per second from the GPU (sent) and to the GPU (received).", "Bps",
           (gpu("gpu_pcie_transmit_bytes_per_second"), "sent"),
           (gpu("gpu_pcie_receive_bytes_per_second"), "received")),
    by_gpu("NVLink traffic", "Bytes per second over all links of the GPU.", "Bps",
           (per_second(gpu("gpu_nvlink_transmit_bytes_total")), "sent"),
           (per_second(gpu("gpu_nvlink_receive_bytes_total")), "received")),
))  # fmt: skip

PROCESSES = Row("Processes and owners", (
    table("Processes", "Processes on the selected GPUs and their owners.", {
        "Memory": (f"max by ({PROCESS_LABELS}) ({gpu('gpu_process_memory_used_bytes')})", "bytes"),
        "SM time": (f"max by ({PROCESS_LABELS}) ({gpu('gpu_process_sm_utilization_ratio')})", "percentunit"),
        "Power": (f"sum by ({PROCESS_LABELS}) ({per_second(gpu('gpu_process_energy_joules_total'))})", "watt"),
    }, links={"pod": WORKLOAD_URL + "&var-namespace=${__data.fields.namespace}&var-pod=${__value.text}"}),
    timeseries("Processes without a complete owner",
               "Number of processes, by reason. Names may arrive a moment later.", "short",
               Query(f"sum by (instance, reason) ({select('gpuledger_processes_unresolved')})",
               "{{instance}} {{reason}}"),
               width=24, height=6),
))  # fmt: skip

EXPORTER = Row("Exporter", (
    timeseries("Tick duration", "Duration of a tick and of each stage, and the interval between two ticks.", "s",
               Query(select("gpuledger_tick_duration_seconds"), "{{instance}} all"),
               Query(select("gpuledger_stage_duration_seconds"), "{{instance}} {{stage}}"),
               Query(select("gpuledger_tick_interval_seconds"), "{{instance}} interval")),
    by_gpu("Time in driver calls", "Time in driver calls during the last tick, by GPU.", "s",
           (gpu("gpuledger_driver_seconds"), "")),
    timeseries("Providers", "1 if the provider (Docker, container runtime, kubelet, ...) answers.", "short",
               Query(select("gpuledger_provider_up"), "{{instance}} {{provider}}"), most=1),
    timeseries("Missed ticks and driver errors", "Per second. Ticks are missed if one takes longer than the interval.",
               "short",
               Query(per_second(select("gpuledger_ticks_missed_total")), "{{instance}} missed ticks"),
               Query(per_second(select("gpuledger_driver_errors_total")), "{{instance}} {{call}} {{error}}")),
    timeseries("Memory of the exporter", "Resident memory.", "bytes",
               Query(select("process_resident_memory_bytes"), "{{instance}}")),
    timeseries("CPU of the exporter", "Number of CPU cores in use, user and system time.", "short",
               Query(per_second(select("process_cpu_seconds_total")), "{{instance}}")),
))  # fmt: skip

NODE = Dashboard(
    "node",
    "gpuledger / Node",
    "Every GPU of a node: activity, memory, power, temperature, health and processes; and the exporter itself.",
    (*places(all_nodes=False), gpus()),
    (NOW, WORK, MEMORY, POWER, HEALTH, PROCESSES, EXPORTER),
)
