"""Where the energy went, what it cost, and how that is known. All of it together is what the hardware counted."""

from __future__ import annotations

from tools.dashboards.grafana import BAD_ABOVE_0, Dashboard, Query, Row, bars, stat, table, timeseries
from tools.dashboards.queries import (
    JOULES_PER_KWH,
    OWNER,
    OverTime,
    as_host_workload,
    as_namespace,
    as_nobody,
    as_process,
    as_workload,
    called,
    device,
    energy_of_containers,
    energy_of_host,
    in_range,
    per_second,
)
from tools.dashboards.variables import GPU, gpus, of, places, text

COST = "* $pue * $price"
CARBON = "* $pue * $carbon / 1000"


def kwh(joules: str) -> str:
    """Joules as kilowatt-hours."""
    return f"({joules}) / {JOULES_PER_KWH}"


TOTAL = device("gpu_energy_joules_total", in_range)
IDLE = device("gpu_idle_energy_joules_total", in_range)
NOBODY = device("gpu_unattributed_energy_joules_total", in_range)


def of_somebody(over: OverTime, *more: str) -> str:
    """By how it is known: of containers, and of processes outside of any."""
    outside = called(energy_of_host("method", over, *more), "outside", "yes")  # else it would be the same series
    return f"sum by (method) ({energy_of_containers('method', over, *more)} or {outside})"


EXCLUSIVE = of_somebody(in_range, 'method="exclusive"')
PARKED = of_somebody(in_range, 'method="parked"')


def everybody(over: OverTime) -> str:
    """One row for each workload, for idle and for each reason of nobody's: the whole device, nothing twice."""
    return " or ".join([
        as_workload(energy_of_containers(OWNER, over)),
        as_host_workload(energy_of_host("process_name", over)),
        called(device("gpu_idle_energy_joules_total", over), "workload", "idle"),
        as_nobody(device("gpu_unattributed_energy_joules_total", over, by="reason")),
    ])  # fmt: skip


def by_namespace(over: OverTime) -> str:
    """The same by namespace; what is in none has a name of its own."""
    return " or ".join([
        as_namespace(energy_of_containers("namespace", over)),
        called(f"sum({energy_of_host('process_name', over)})", "namespace", "(host processes)"),
        called(device("gpu_idle_energy_joules_total", over), "namespace", "(idle)"),
        called(device("gpu_unattributed_energy_joules_total", over), "namespace", "(nobody)"),
    ])  # fmt: skip


def by_method(over: OverTime) -> str:
    """How each joule is known."""
    return " or ".join([
        of_somebody(over),
        called(device("gpu_idle_energy_joules_total", over), "method", "idle (measured)"),
        called(device("gpu_unattributed_energy_joules_total", over), "method", "nobody's"),
    ])  # fmt: skip


def money(joules: str) -> dict[str, tuple[str, str]]:
    """Columns of a table about energy."""
    return {
        "kWh": (kwh(joules), "none"),
        "Cost": (f"{kwh(joules)} {COST}", "none"),
        "kg CO2": (f"{kwh(joules)} {CARBON}", "none"),
        "Share": (f"({joules}) / scalar({TOTAL})", "percentunit"),
    }


SUMS = Row("In this time range", (
    stat("Energy", "What the counters of the GPUs chosen rose by. Everything below adds up to it.", "kwatth",
         kwh(TOTAL)),
    stat("Cost ($currency)", "Energy times PUE times price, as typed in above.", "none", f"{kwh(TOTAL)} {COST}"),
    stat("CO2", "Energy times PUE times carbon of a kWh, as typed in above.", "masskg", f"{kwh(TOTAL)} {CARBON}"),
    stat("Power", "Drawn now.", "watt", device("gpu_energy_joules_total", per_second)),
    stat("Idle", "Part of the energy that was used with nobody on the GPU.", "percentunit", f"{IDLE} / {TOTAL}", most=1,
         steps=((None, "green"), (0.3, "yellow"), (0.6, "red"))),
    stat("Nobody's", "Part of the energy that is in nobody's account. See the alert GpuEnergyUnattributed.",
         "percentunit", f"{NOBODY} / {TOTAL}", most=1, steps=((None, "green"), (0.05, "yellow"), (0.1, "red"))),
    stat("Measured", "Part of the energy of processes that is measured: they were alone on their GPU. The rest is a "
         "share of a measured sum.", "percentunit",
         f"(sum({EXCLUSIVE}) or vector(0)) / sum({of_somebody(in_range)})", most=1),
    stat("Cost of waiting ($currency)", "Of empty GPUs, and of processes that were there and did nothing (parked).",
         "none", f"{kwh(f'{IDLE} + (sum({PARKED}) or vector(0))')} {COST}"),
))  # fmt: skip

WHO = Row("Who used it", (
    timeseries("Power by whom", "Containers, processes outside of any, empty GPUs (idle) and nobody, by reason; the "
               "line is what the counters say.", "watt",
               Query(everybody(per_second), "{{workload}}"),
               Query(device("gpu_energy_joules_total", per_second), "counted"), stacked=True, total="counted", width=16,
               height=10),
    bars("Energy by namespace", "In this time range; who is in none, and what nobody used, on their own.", "kwatth",
         Query(kwh(by_namespace(in_range)), "{{namespace}}"), height=10),
    table("Energy and cost by workload", "In this time range. Idle and nobody's are rows of their own; the sum of all "
          "is what the counters rose by.", money(everybody(in_range)),
          hidden=[*OWNER.split(", "), "process_name", "reason"], height=12),
    table("Energy and cost by namespace", "The same, summed further.", money(by_namespace(in_range)), width=12),
    table("Energy and cost by GPU", "What each counter rose by.",
          money(device("gpu_energy_joules_total", in_range, by="instance, gpu")), width=12),
))  # fmt: skip

CHECKED = (
    f"{of('gpu_energy_over_power_ratio', GPU)} * on (cluster, job, instance, uuid) group_left (source) "
    f"{of('gpu_energy_source_info', GPU)}"
)
HOW = Row("How it is known", (
    timeseries("Power by method", "exclusive and idle are measured; fingerprint, sm_time, mps, mig, edge, gap and "
               "parked are shares of a measured sum. See docs/attribution.md.", "watt",
               Query(by_method(per_second), "{{method}}"),
               Query(device("gpu_energy_joules_total", per_second), "counted"), stacked=True, total="counted"),
    bars("Energy by method", "In this time range.", "kwatth", Query(kwh(by_method(in_range)), "{{method}}")),
    timeseries("Why it is nobody's", "Watts by reason. before: until the exporter started.", "watt",
               Query(device("gpu_unattributed_energy_joules_total", per_second, by="reason"), "{{reason}}"),
               stacked=True),
    timeseries("Balance", "What is missing in the books of the GPU where most is: 0. See the alert "
               "GpuledgerOutOfBalance.", "joule",
               Query(f"max(abs({of('gpuledger_ledger_residual_joules', GPU)}))", "missing"), steps=BAD_ABOVE_0),
    timeseries("Counter over power", "The energy counter checked by power times time: 1 where both agree. The GPUs "
               "where it is most and least.", "none",
               *(Query(f"{which} by (source) ({CHECKED})", f"{which} by {{{{source}}}}") for which in ("max", "min"))),
    timeseries("How sure shares are", "Standard deviation of the share of the work that each was given last.",
               "percentunit", Query(as_process(f"max by ({OWNER}, process_name) "
                                               f"({of('gpu_process_energy_share_error_ratio', GPU)})"),
                                    "{{workload}}")),
))  # fmt: skip

PRICES = (
    text("price", "Price of a kWh", "0.30", "What you pay for a kilowatt-hour."),
    text("currency", "Currency", "EUR", "Only shown."),
    text("pue", "PUE", "1", "Power of the building over power of the machines; 1 counts the GPUs alone."),
    text("carbon", "g CO2 of a kWh", "400", "What your grid emits for a kilowatt-hour."),
)

ENERGY = Dashboard(
    "energy",
    "gpuledger / Energy and cost",
    "Where the energy went, what it cost, and how that is known. All of it together is what the hardware counted.",
    (*places(), gpus(), *PRICES),
    (SUMS, WHO, HOW),
    span="now-24h",
)
