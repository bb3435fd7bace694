"""One node, or some: every GPU, who is on it, and the exporter itself."""

from __future__ import annotations

from tools.dashboards.grafana import BAD_ABOVE_0, Dashboard, Panel, Query, Row, stat, table, timeseries
from tools.dashboards.queries import (
    NO_CONTAINER,
    OWNER,
    as_host_workload,
    as_workload,
    energy_of_containers,
    energy_of_host,
    once,
    per_second,
)
from tools.dashboards.variables import GPU, gpus, of, places

EACH = "{{instance}} GPU {{gpu}}"
DEVICE = "instance, gpu, uuid"
PERSON = f"instance, gpu, pid, process_name, {OWNER}"
MODELS = f"on (cluster, job, instance, gpu, uuid) group_left (name) {of('gpu_info', GPU)}"
WORKLOAD_URL = "/d/gpuledger-workload?${__url_time_range}&var-datasource=${datasource}"


def gpu(metric: str, *more: str) -> str:
    """A metric of the GPUs chosen, or of who is on them."""
    return of(metric, GPU, *more)


def by_gpu(title: str, description: str, unit: str, *metrics: tuple[str, str], **more: object) -> Panel:
    """Lines for each GPU; each metric with what to say beside the GPU."""
    return timeseries(
        title, description, unit, *(Query(promql, f"{EACH} {name}".strip()) for promql, name in metrics), **more
    )


NOW = Row("Now", (
    stat("GPUs", "GPUs that the driver lists.", "short", f"count({gpu('gpu_up')})"),
    stat("GPUs that do not answer", "GPUs whose calls fail or hang. See the alert GpuLost.", "short",
         f"sum(1 - {gpu('gpu_up')})", steps=BAD_ABOVE_0),
    stat("GPUs in use", "GPUs with some process on them, busy or not.", "short", f"sum({gpu('gpu_in_use')})"),
    stat("Utilization", "Mean share of time in which a kernel ran. Of GPUs that are cut, activity of their instances.",
         "percentunit",
         f"avg({gpu('gpu_utilization_ratio')} or {gpu('gpu_mig_graphics_active_ratio')})", most=1),
    stat("Memory used", "Of all memory of the GPUs chosen.", "percentunit",
         f"sum({gpu('gpu_memory_used_bytes')}) / sum({gpu('gpu_memory_total_bytes')})", most=1,
         steps=((None, "green"), (0.9, "yellow"), (0.98, "red"))),
    stat("Power", "Drawn now by all GPUs chosen.", "watt", f"sum({gpu('gpu_power_watts')})"),
    stat("Hottest", "The hottest GPU chosen; 87 to 90 degrees is where many slow down.", "celsius",
         f"""max({gpu("gpu_temperature_celsius", 'sensor="gpu"')})""",
         steps=((None, "green"), (80, "yellow"), (87, "red"))),
    stat("Age of readings", "A scrape shows the last reading. More than a few ticks: see the alert GpuledgerStale.",
         "s", f"max(time() - {of('gpuledger_tick_timestamp_seconds')})",
         steps=((None, "green"), (30, "yellow"), (60, "red"))),
    table("GPUs, one by one", "What each GPU is and does now.", {
        "GPU is up": (f"min by ({DEVICE}, name) ({gpu('gpu_up')} * {MODELS})", "none"),
        "Utilization": (f"max by ({DEVICE}) ({gpu('gpu_utilization_ratio')})", "percentunit"),
        "Memory used": (f"max by ({DEVICE}) ({gpu('gpu_memory_used_bytes')})", "bytes"),
        "Memory": (f"max by ({DEVICE}) ({gpu('gpu_memory_total_bytes')})", "bytes"),
        "Power": (f"max by ({DEVICE}) ({gpu('gpu_power_watts')})", "watt"),
        "Temperature": (f"""max by ({DEVICE}) ({gpu("gpu_temperature_celsius", 'sensor="gpu"')})""", "celsius"),
        "Processes": (f"max by ({DEVICE}) ({gpu('gpu_processes')})", "none"),
    }),
))  # fmt: skip

WORK = Row("Work", (
    by_gpu("Utilization by GPU", "Share of time in which a kernel ran, however small. Absent for GPUs that are cut.",
           "percentunit", (gpu("gpu_utilization_ratio"), ""), most=1),
    by_gpu("Activity", "How much of the chip works (Hopper and newer): SMs, tensor cores, memory bandwidth, and warps "
           "resident over the most there can be.", "percentunit",
           (gpu("gpu_sm_active_ratio"), "SM"), (gpu("gpu_tensor_active_ratio"), "tensor"),
           (gpu("gpu_dram_active_ratio"), "DRAM"), (gpu("gpu_sm_occupancy_ratio"), "occupancy"), most=1),
    by_gpu("Activity of MIG instances", "The same for each instance of a GPU that is cut.", "percentunit",
           (gpu("gpu_mig_sm_active_ratio") + " * on (cluster, job, instance, uuid) group_left (profile) "
            + gpu("gpu_mig_info"), "{{profile}} {{uuid}} SM"), most=1),
    by_gpu("Video and image engines", "Encoders, decoders, JPEG and optical flow.", "percentunit",
           (gpu("gpu_encoder_utilization_ratio"), "encoder"), (gpu("gpu_decoder_utilization_ratio"), "decoder"),
           (gpu("gpu_jpeg_utilization_ratio"), "JPEG"), (gpu("gpu_optical_flow_utilization_ratio"), "optical flow"),
           most=1),
    by_gpu("Processes on GPUs", "As the driver lists them.", "short", (gpu("gpu_processes"), "")),
    by_gpu("Pipes", "Which arithmetic runs (Hopper and newer); tensor cores are not in it.", "percentunit",
           (gpu("gpu_fp64_active_ratio"), "fp64"), (gpu("gpu_fp32_active_ratio"), "fp32"),
           (gpu("gpu_fp16_active_ratio"), "fp16"), (gpu("gpu_integer_active_ratio"), "integer"), most=1),
))  # fmt: skip

MEMORY = Row("Memory", (
    by_gpu("Memory used by GPU", "Over all memory of the device; instances beside the GPUs that are cut into them.",
           "percentunit", (f"{gpu('gpu_memory_used_bytes')} / {gpu('gpu_memory_total_bytes')}", ""),
           (f"{gpu('gpu_mig_memory_used_bytes')} / {gpu('gpu_mig_memory_total_bytes')}", "{{uuid}}"), most=1,
           steps=((None, "green"), (0.98, "red"))),
    timeseries("Memory by what is known", "All memory of the GPUs chosen: held by listed processes, needed by "
               "contexts, held by somebody who is not listed, kept by the driver, free.", "bytes",
               *(Query(f"sum({gpu(f'gpu_memory_{part}_bytes')})", part)
                 for part in ("known", "overhead", "unknown", "reserved", "free")), stacked=True),
    timeseries("Memory by workload", "Of listed processes (nvml), and the part of unlisted memory that is inferred to "
               "who may hold it (inference).", "bytes",
               Query(as_workload(f"sum by ({OWNER}, method) ({gpu('container_gpu_memory_bytes')})"),
                     "{{workload}} {{method}}"),
               Query(as_host_workload(
                   f"sum by (process_name) ({gpu('gpu_process_memory_used_bytes', NO_CONTAINER)})"), "{{workload}}"),
               stacked=True),
))  # fmt: skip

POWER = Row("Power and heat", (
    by_gpu("Power by GPU", "Drawn by the board.", "watt", (gpu("gpu_power_watts"), "")),
    by_gpu("Power over its limit", "At 100 % the power limit holds the clocks back.", "percentunit",
           (f"{gpu('gpu_power_average_watts')} / {gpu('gpu_power_limit_watts')}", "")),
    timeseries("Power by workload", "Watts of containers, of processes outside of any, of empty GPUs (idle), and of "
               "nobody, by reason. Together they are what the GPUs draw.", "watt",
               Query(as_workload(energy_of_containers(OWNER, per_second)), "{{workload}}"),
               Query(as_host_workload(energy_of_host("process_name", per_second)), "{{workload}}"),
               Query(f"sum({once(per_second(gpu('gpu_idle_energy_joules_total')))})", "idle"),
               Query(f"""sum by (reason) ({once(per_second(gpu("gpu_unattributed_energy_joules_total")), "reason")})""",
                     "nobody: {{reason}}"), stacked=True),
    by_gpu("Power at rest", "Learned while nobody was there (idle), and while who was there did nothing (parked).",
           "watt", (gpu("gpu_idle_power_watts"), "idle"), (gpu("gpu_parked_power_watts"), "parked")),
    by_gpu("Temperature", "By sensor, with the temperature at which the GPU slows down.", "celsius",
           (gpu("gpu_temperature_celsius"), "{{sensor}}"),
           (gpu("gpu_temperature_limit_celsius", 'limit="slowdown"'), "slows down at")),
    by_gpu("Fans", "Speed asked for, over the fan's highest. Absent where the server has the fans.", "percentunit",
           (gpu("gpu_fan_speed_ratio"), "fan {{fan}}"), most=1),
    by_gpu("Clocks", "Of the SMs and of the memory.", "hertz",
           (gpu("gpu_clock_hertz", 'clock=~"sm|memory"'), "{{clock}}")),
    timeseries("GPUs held back", "How many GPUs have their clocks held back now, by reason. At full load sw_power_cap "
               "is normal.", "short",
               Query(f"""sum by (reason) ({gpu("gpu_clock_event_active", 'reason!="gpu_idle"')})""", "{{reason}}")),
    by_gpu("Time held back", "Share of time in which the clocks were held back, by policy.", "percentunit",
           (per_second(gpu("gpu_clock_event_seconds_total")), "{{policy}}")),
))  # fmt: skip

HEALTH = Row("Health", (
    by_gpu("XIDs", "Errors the driver reported since the exporter started, by code. 13, 31, 43 and 45 are most often a "
           "program's own fault.", "short", (gpu("gpu_xid_errors_total"), "XID {{xid}}")),
    by_gpu("ECC errors", "Over the life of the board. Uncorrected ones cost a program.", "short",
           (gpu("gpu_ecc_errors_total"), "{{error}}")),
    by_gpu("Rows remapped", "Memory rows replaced by spare ones; pending waits for a reset; failed: replace the "
           "board.", "short", (gpu("gpu_remapped_rows_total"), "{{cause}}"), (gpu("gpu_row_remap_pending"), "pending"),
           (gpu("gpu_row_remap_failed"), "failed")),
    by_gpu("PCIe replays", "Packets sent again, each second: a bad link, when it goes on.", "short",
           (per_second(gpu("gpu_pcie_replays_total")), "")),
    by_gpu("PCIe lanes", "In use, over the most of board and slot. Less than 100 %: seating or slot.", "percentunit",
           (f"{gpu('gpu_pcie_link_width')} / {gpu('gpu_pcie_link_max_width')}", "lanes"), most=1),
    by_gpu("NVLinks", "By state.", "short", (gpu("gpu_nvlink_links"), "{{state}}")),
    by_gpu("NVLink errors", "By kind, each second.", "short",
           (per_second(gpu("gpu_nvlink_errors_total")), "{{error}}")),
    by_gpu("PCIe traffic", "From the GPU (sent) and to it (received).", "Bps",
           (gpu("gpu_pcie_transmit_bytes_per_second"), "sent"),
           (gpu("gpu_pcie_receive_bytes_per_second"), "received")),
    by_gpu("NVLink traffic", "Over all links of the GPU.", "Bps",
           (per_second(gpu("gpu_nvlink_transmit_bytes_total")), "sent"),
           (per_second(gpu("gpu_nvlink_receive_bytes_total")), "received")),
))  # fmt: skip

PROCESSES = Row("Who is there", (
    table("Processes", "Each process on the GPUs chosen, and whose it is.", {
        "Memory": (f"max by ({PERSON}) ({gpu('gpu_process_memory_used_bytes')})", "bytes"),
        "SM time": (f"max by ({PERSON}) ({gpu('gpu_process_sm_utilization_ratio')})", "percentunit"),
        "Power": (f"sum by ({PERSON}) ({per_second(gpu('gpu_process_energy_joules_total'))})", "watt"),
    }, links={"pod": WORKLOAD_URL + "&var-namespace=${__data.fields.namespace}&var-pod=${__value.text}"}),
    timeseries("Processes whose owner is not known", "By reason; names may come a moment later.", "short",
               Query(f"sum by (instance, reason) ({of('gpuledger_processes_unresolved')})", "{{instance}} {{reason}}"),
               width=24, height=6),
))  # fmt: skip

EXPORTER = Row("The exporter", (
    timeseries("Time of a tick", "From first to last stage, each stage, and between two ticks.", "s",
               Query(of("gpuledger_tick_duration_seconds"), "{{instance}} all"),
               Query(of("gpuledger_stage_duration_seconds"), "{{instance}} {{stage}}"),
               Query(of("gpuledger_tick_interval_seconds"), "{{instance}} interval")),
    by_gpu("Time in the driver", "Of the last tick, inside driver calls for each GPU.", "s",
           (gpu("gpuledger_driver_seconds"), "")),
    timeseries("Providers of names", "1 while Docker, the container runtime, the kubelet, ... answer.", "short",
               Query(of("gpuledger_provider_up"), "{{instance}} {{provider}}"), most=1),
    timeseries("Missed ticks and driver errors", "Each second. Ticks are missed when one takes too long.", "short",
               Query(per_second(of("gpuledger_ticks_missed_total")), "{{instance}} missed ticks"),
               Query(per_second(of("gpuledger_driver_errors_total")), "{{instance}} {{call}} {{error}}")),
    timeseries("Memory of the exporter", "Resident.", "bytes",
               Query(of("gpuledger_resident_memory_bytes"), "{{instance}}")),
    timeseries("CPU of the exporter", "Cores, user and system.", "short",
               Query(per_second(of("gpuledger_cpu_seconds_total")), "{{instance}}")),
))  # fmt: skip

NODE = Dashboard(
    "node",
    "gpuledger / Node",
    "Every GPU of a node: work, memory, power, heat, health, who is on it, and the exporter itself.",
    (*places(all_nodes=False), gpus()),
    (NOW, WORK, MEMORY, POWER, HEALTH, PROCESSES, EXPORTER),
)
