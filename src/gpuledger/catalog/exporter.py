"""Metrics of the exporter itself."""

from __future__ import annotations

import platform
from collections.abc import Callable
from operator import attrgetter

from gpuledger import __version__
from gpuledger.catalog.family import C, Family, G, I, Series, Value, at, flag, named, time
from gpuledger.catalog.kinds import EXPORTER
from gpuledger.model import ProviderHealth, Tick

SELF = "gpuledger"


def _build(tick: Tick) -> Series:
    return (((__version__, platform.python_version(), tick.source), 1),)


def _providers(read: Callable[[ProviderHealth], Value | None]) -> Callable[[Tick], Series]:
    return lambda tick: [((p.name,), value) for p in tick.owners.providers if (value := read(p)) is not None]


def _driver(tick: Tick) -> Series:
    driver = tick.driver
    if not driver.driver_version:
        return ()
    return (((driver.driver_version, driver.nvml_version, driver.cuda_version), 1),)


def _dcgm(tick: Tick) -> Series:
    health = tick.dcgm
    return () if health is None else (((health.version, health.library, health.mode), 1),)


FAMILIES: tuple[Family, ...] = (
    Family("gpuledger_build_info", I, EXPORTER, "Versions of gpuledger and Python, and the source of the readings.",
           SELF, series=_build, labels=("version", "python_version", "source")),
    Family("gpuledger_up", G, EXPORTER, "1 if the driver can be read; the log has the reason if not.",
           "nvmlInit", flag("driver.up")),
    Family("gpuledger_driver_info", I, EXPORTER, "Versions of the driver, its library and CUDA.",
           "nvmlSystemGet*Version", series=_driver, labels=("driver_version", "nvml_version", "cuda_version")),
    Family("gpuledger_driver_errors_total", C, EXPORTER, "Driver calls that failed unexpectedly.",
           "every NVML call", series=attrgetter("health.driver_errors"), labels=("call", "error")),
    Family("gpuledger_tick_timestamp_seconds", G, EXPORTER,
           "Unix time of the exposed readings. A scrape does not call the driver.",
           SELF, at("time_ns", 1e9), unit="seconds"),
    Family("gpuledger_tick_interval_seconds", G, EXPORTER, "Configured time between two readings.",
           SELF, at("health.interval_ns", 1e9), unit="seconds"),
    Family("gpuledger_tick_duration_seconds", G, EXPORTER, "Duration of the last tick.",
           SELF, at("health.duration_ns", 1e9), unit="seconds"),
    Family("gpuledger_ticks_total", C, EXPORTER, "Ticks since the start.", SELF, at("health.ticks")),
    Family("gpuledger_ticks_missed_total", C, EXPORTER, "Ticks skipped because an earlier one took too long.",
           SELF, at("health.missed_ticks")),
    Family("gpuledger_stage_duration_seconds", G, EXPORTER, "Duration of each stage of the last tick.",
           SELF, series=lambda t: [((s.name,), s.duration_ns / 1e9) for s in t.health.stages],
           labels=("stage",), unit="seconds"),
    Family("gpuledger_stage_success", G, EXPORTER, "1 if the stage of the last tick succeeded.",
           SELF, series=lambda t: [((s.name,), int(s.success)) for s in t.health.stages], labels=("stage",)),
    Family("process_resident_memory_bytes", G, EXPORTER, "Resident memory of the exporter.",
           "/proc/self/statm", at("health.resident_memory_bytes"), unit="bytes"),
    Family("process_virtual_memory_bytes", G, EXPORTER, "Virtual memory of the exporter.",
           "/proc/self/statm", at("health.virtual_memory_bytes"), unit="bytes"),
    Family("process_cpu_seconds_total", C, EXPORTER, "CPU time of the exporter, user and system.",
           "getrusage", at("health.cpu_ms", 1000), unit="seconds"),
    Family("process_open_fds", G, EXPORTER, "Open file descriptors of the exporter.",
           "/proc/self/fd", at("health.open_fds")),
    Family("process_max_fds", G, EXPORTER, "Limit of open file descriptors of the exporter.",
           "getrlimit", at("health.max_fds")),
    Family("gpuledger_threads", G, EXPORTER, "Threads of the exporter.", SELF, at("health.threads")),
    Family("process_start_time_seconds", G, EXPORTER, "Unix time at which the exporter started.",
           SELF, at("health.start_time_ms", 1000), unit="seconds"),
    Family("gpuledger_http_connections", G, EXPORTER, "Open HTTP connections at the last tick.",
           SELF, at("health.http_connections")),
    Family("gpuledger_http_connections_rejected_total", C, EXPORTER,
           "HTTP connections closed, or rejected with 503, because of the connection limit.",
           SELF, at("health.http_rejected")),
    Family("gpuledger_provider_up", G, EXPORTER, "1 if the name provider answers.",
           SELF, series=_providers(flag("up")), labels=("provider",)),
    Family("gpuledger_provider_changed_timestamp_seconds", G, EXPORTER,
           "Unix time at which the provider last went up or down.",
           SELF, series=_providers(at("since_ns", 1e9)), labels=("provider",),
           unit="seconds"),
    Family("gpuledger_provider_success_timestamp_seconds", G, EXPORTER, "Unix time of the provider's last success.",
           SELF, labels=("provider",), unit="seconds",
           series=_providers(time("last_success_ns"))),
    Family("gpuledger_provider_requests_total", C, EXPORTER, "Requests to the provider.",
           SELF, series=_providers(at("fetches")), labels=("provider",)),
    Family("gpuledger_provider_failures_total", C, EXPORTER, "Failed requests to the provider.",
           SELF, series=_providers(at("failures")), labels=("provider",)),
    Family("gpuledger_processes_unresolved", G, EXPORTER,
           "Processes on GPUs whose owner is not fully resolved, by reason.",
           SELF, series=named("owners.unresolved"), labels=("reason",)),
    Family("gpuledger_attribution_conflicts_total", C, EXPORTER,
           "Processes on a device that is allocated to another pod.", SELF, at("owners.conflicts")),
    Family("gpuledger_unknown_device_ids", G, EXPORTER, "Device ids of the kubelet whose format is unknown.",
           SELF, at("owners.unknown_device_ids")),
    Family("gpuledger_journal_written_timestamp_seconds", G, EXPORTER,
           "Unix time of the last tick in the journal.", SELF, at("journal.written_ns", 1e9), unit="seconds"),
    Family("gpuledger_journal_size_bytes", G, EXPORTER, "Size of the journal.",
           SELF, at("journal.size_bytes"), unit="bytes"),
    Family("gpuledger_journal_write_failures_total", C, EXPORTER,
           "Failed writes of the journal.", SELF, at("journal.failures")),
    Family("gpuledger_processes_dropped_total", C, EXPORTER,
           "Process rows dropped because of --process.max, summed over ticks.", SELF, at("dropped_processes")),
    Family("gpuledger_allocations_dropped", G, EXPORTER,
           "Allocations that are left out because of --allocation.max.", SELF, at("dropped_allocations")),
    Family("gpuledger_host_pid_namespace", G, EXPORTER,
           "1 if the exporter runs in the host's PID namespace; if 0, the driver lists no processes.",
           "/proc/self/ns/pid", flag("owners.host_pid_namespace")),
    Family("gpuledger_procfs_readable", G, EXPORTER, "1 if this file of processes of other users is readable.",
           "/proc/1/cgroup and the capabilities of the exporter", series=named("owners.readable"), labels=("file",)),
    Family("gpuledger_upstream_up", G, EXPORTER,
           "1 if the dcgm-exporter of --dcgm-exporter.url answers.",
           SELF, flag("health.upstream.up")),
    Family("gpuledger_upstream_success_timestamp_seconds", G, EXPORTER,
           "Unix time of the dcgm-exporter's last valid response.",
           SELF, time("health.upstream.last_success_ns"), unit="seconds"),
    Family("gpuledger_upstream_duration_seconds", G, EXPORTER,
           "Time to read and label the dcgm-exporter's last valid response.",
           SELF, at("health.upstream.duration_ns", 1e9), unit="seconds"),
    Family("gpuledger_upstream_series", G, EXPORTER, "Exposed series of the dcgm-exporter.",
           SELF, at("health.upstream.series")),
    Family("gpuledger_upstream_pod_series", G, EXPORTER, "Exposed series of the dcgm-exporter that have a pod label.",
           SELF, at("health.upstream.with_pod")),
    Family("gpuledger_upstream_duplicates_total", C, EXPORTER,
           "Series of the dcgm-exporter dropped because of duplicate labels.",
           SELF, at("health.upstream.duplicates")),
    Family("gpuledger_upstream_failures_total", C, EXPORTER,
           "Failed reads of the dcgm-exporter, by reason.",
           SELF, series=named("health.upstream.failures"), labels=("reason",)),
    Family("gpuledger_otlp_up", G, EXPORTER,
           "1 if the collector of --otlp.endpoint accepts metrics.",
           SELF, flag("health.otlp.up")),
    Family("gpuledger_otlp_success_timestamp_seconds", G, EXPORTER,
           "Unix time at which the collector last accepted a request.",
           SELF, time("health.otlp.last_success_ns"), unit="seconds"),
    Family("gpuledger_otlp_waiting_requests", G, EXPORTER, "Requests to the collector that are not sent yet.",
           SELF, at("health.otlp.waiting")),
    Family("gpuledger_otlp_sent_points_total", C, EXPORTER, "Data points in requests that the collector accepted.",
           SELF, at("health.otlp.sent_points")),
    Family("gpuledger_otlp_rejected_points_total", C, EXPORTER,
           "Data points that the collector rejected in these requests.", SELF, at("health.otlp.rejected_points")),
    Family("gpuledger_otlp_dropped_requests_total", C, EXPORTER,
           "Requests to the collector that were dropped, by reason.",
           SELF, series=named("health.otlp.dropped"), labels=("reason",)),
    Family("gpuledger_dcgm_up", G, EXPORTER,
           "1 if DCGM answers. Absent without --collector.dcgm.",
           "every DCGM call", flag("dcgm.up")),
    Family("gpuledger_dcgm_info", I, EXPORTER,
           "Version of DCGM, its library, and its mode: embedded, or hostengine.",
           "dcgmHostengineVersionInfo", series=_dcgm, labels=("version", "library", "mode")),
)  # fmt: skip
