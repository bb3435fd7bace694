"""Energy dashboard: energy and cost by owner, and the attribution methods. Parts add up to the hardware counters."""

from __future__ import annotations

from tools.dashboards.grafana import BAD_ABOVE_0, Dashboard, Query, Row, bars, stat, table, timeseries
from tools.dashboards.queries import (
    JOULES_PER_KWH,
    OWNER,
    OverTime,
    as_host_workload,
    as_namespace,
    as_process,
    as_unattributed,
    as_workload,
    device,
    energy_of_containers,
    energy_of_host,
    in_range,
    per_second,
    with_label,
)
from tools.dashboards.variables import GPU, gpus, places, select, text

COST = "* $pue * $price"
CARBON = "* $pue * $carbon / 1000"


def kwh(joules: str) -> str:
    """Joules converted to kilowatt-hours."""
    return f"({joules}) / {JOULES_PER_KWH}"


TOTAL = device("gpu_energy_joules_total", in_range)
IDLE = device("gpu_idle_energy_joules_total", in_range)
UNATTRIBUTED = device("gpu_unattributed_energy_joules_total", in_range)


def attributed(over: OverTime, *more: str) -> str:
    """Energy of containers and of processes outside of containers, by method."""
    outside = with_label(
        energy_of_host("method", over, *more), "outside", "yes"
    )  # prevents identical label sets in `or`
    return f"sum by (method) ({energy_of_containers('method', over, *more)} or {outside})"


EXCLUSIVE = attributed(in_range, 'method="exclusive"')
PARKED = attributed(in_range, 'method="parked"')


def by_workload(over: OverTime) -> str:
    """One row per workload, one for idle energy, one per reason of unattributed energy. They add up to the device."""
    return " or ".join([
        as_workload(energy_of_containers(OWNER, over)),
        as_host_workload(energy_of_host("process_name", over)),
        with_label(device("gpu_idle_energy_joules_total", over), "workload", "idle"),
        as_unattributed(device("gpu_unattributed_energy_joules_total", over, by="reason")),
    ])  # fmt: skip


def by_namespace(over: OverTime) -> str:
    """Like `by_workload`, but by namespace. Energy without a namespace has its own rows."""
    return " or ".join([
        as_namespace(energy_of_containers("namespace", over)),
        with_label(f"sum({energy_of_host('process_name', over)})", "namespace", "(host processes)"),
        with_label(device("gpu_idle_energy_joules_total", over), "namespace", "(idle)"),
        with_label(device("gpu_unattributed_energy_joules_total", over), "namespace", "(unattributed)"),
    ])  # fmt: skip


def by_method(over: OverTime) -> str:
    """Energy by attribution method."""
    return " or ".join([
        attributed(over),
        with_label(device("gpu_idle_energy_joules_total", over), "method", "idle (measured)"),
        with_label(device("gpu_unattributed_energy_joules_total", over), "method", "unattributed"),
    ])  # fmt: skip


def money(joules: str) -> dict[str, tuple[str, str]]:
    """Columns of an energy table."""
    return {
        "kWh": (kwh(joules), "none"),
        "Cost": (f"{kwh(joules)} {COST}", "none"),
        "kg CO2": (f"{kwh(joules)} {CARBON}", "none"),
        "Share": (f"({joules}) / scalar({TOTAL})", "percentunit"),
    }


SUMS = Row("Selected time range", (
    stat("Energy", "Increase of the energy counters of the selected GPUs. The panels below add up to it.", "kwatth",
         kwh(TOTAL)),
    stat("Cost ($currency)", "Energy x PUE x price, with the values set at the top.", "none", f"{kwh(TOTAL)} {COST}"),
    stat("CO2", "Energy x PUE x carbon intensity, with the values set at the top.", "masskg", f"{kwh(TOTAL)} {CARBON}"),
    stat("Power", "Current power of the selected GPUs, from their energy counters.", "watt",
         device("gpu_energy_joules_total", per_second)),
    stat("Idle", "Part of the energy that was used while no process was on the GPU.", "percentunit",
         f"{IDLE} / {TOTAL}",
         most=1, steps=((None, "green"), (0.3, "yellow"), (0.6, "red"))),
    stat("Unattributed", "Part of the energy that belongs to no process. See the alert GpuEnergyUnattributed.",
         "percentunit", f"{UNATTRIBUTED} / {TOTAL}", most=1, steps=((None, "green"), (0.05, "yellow"), (0.1, "red"))),
    stat("Measured", "Part of the energy of processes that is measured, because the process was alone on its GPU. The "
         "rest is a share of measured energy.", "percentunit",
         f"(sum({EXCLUSIVE}) or vector(0)) / sum({attributed(in_range)})", most=1),
    stat("Cost of idle GPUs ($currency)", "Cost of the energy of GPUs without processes, and of parked processes.",
         "none", f"{kwh(f'{IDLE} + (sum({PARKED}) or vector(0))')} {COST}"),
))  # fmt: skip

USERS = Row("Energy by user", (
    timeseries("Power by workload", "Power of containers, host processes and idle GPUs, and unattributed power by "
               "reason. The line is the total from the energy counters.", "watt",
               Query(by_workload(per_second), "{{workload}}"),
               Query(device("gpu_energy_joules_total", per_second), "counted"), stacked=True, total="counted", width=16,
               height=10),
    bars("Energy by namespace",
         "In the selected time range. Host processes, idle and unattributed energy have their own bars.",
         "kwatth",
         Query(kwh(by_namespace(in_range)), "{{namespace}}"), height=10),
    table("Energy and cost by workload", "In the selected time range. Idle and unattributed energy have their own "
          "rows. The rows add up to the increase of the energy counters.", money(by_workload(in_range)),
          hidden=[*OWNER.split(", "), "process_name", "reason"], height=12),
    table("Energy and cost by namespace", "Energy of the workloads, aggregated by namespace.",
          money(by_namespace(in_range)), width=12),
    table("Energy and cost by GPU", "Increase of each energy counter in the selected time range.",
          money(device("gpu_energy_joules_total", in_range, by="instance, gpu")), width=12),
))  # fmt: skip

CHECKED = (
    f"{select('gpu_energy_over_power_ratio', GPU)} * on (cluster, job, instance, uuid) group_left (source) "
    f"{select('gpu_energy_source_info', GPU)}"
)
HOW = Row("Methods and checks", (
    timeseries("Power by method", "exclusive and idle are measured; fingerprint, power, sm_time, mps, mig, edge, gap "
               "and parked are shares of measured energy. See docs/attribution.md.", "watt",
               Query(by_method(per_second), "{{method}}"),
               Query(device("gpu_energy_joules_total", per_second), "counted"), stacked=True, total="counted"),
    bars("Energy by method", "In the selected time range.", "kwatth", Query(kwh(by_method(in_range)), "{{method}}")),
    timeseries("Unattributed power by reason", "before: energy used before the exporter started. See "
               "docs/attribution.md for the other reasons.", "watt",
               Query(device("gpu_unattributed_energy_joules_total", per_second, by="reason"), "{{reason}}"),
               stacked=True),
    timeseries("Balance",
               "Largest difference between the ledger of a GPU and its energy counter. It must be 0. See the alert "
               "GpuledgerOutOfBalance.", "joule",
               Query(f"max(abs({select('gpuledger_ledger_residual_joules', GPU)}))", "difference"), steps=BAD_ABOVE_0),
    timeseries("Energy counter / power", "Energy counter divided by power x time: 1 if both agree. The GPUs with the "
               "highest and the lowest ratio, by source of the counter.", "none",
               *(Query(f"{which} by (source) ({CHECKED})", f"{which} by {{{{source}}}}") for which in ("max", "min"))),
    timeseries("Error of the energy shares", "Standard deviation of the latest energy share of each workload.",
               "percentunit", Query(as_process(f"max by ({OWNER}, process_name) "
                                               f"({select('gpu_process_energy_share_error_ratio', GPU)})"),
                                    "{{workload}}")),
))  # fmt: skip

PRICES = (
    text("price", "Price per kWh", "0.30", "Price of one kilowatt-hour."),
    text("currency", "Currency", "EUR", "Name of the currency in panel titles."),
    text("pue", "PUE", "1", "Power usage effectiveness (facility energy / IT energy); 1 counts the GPUs alone."),
    text("carbon", "g CO2 per kWh", "400", "Carbon intensity of the grid, in grams per kilowatt-hour."),
)

ENERGY = Dashboard(
    "energy",
    "gpuledger / Energy and cost",
    "Energy and cost by workload and namespace, and the attribution methods. Parts add up to the hardware counters.",
    (*places(), gpus(), *PRICES),
    (SUMS, USERS, HOW),
    span="now-24h",
)
