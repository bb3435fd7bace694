"""Tokens dashboard: joules, cost and CO2 per token by language model. Needs mixin/rules/gpuledger-tokens.yml."""

from __future__ import annotations

from tools.dashboards.energy import CARBON, COST, PRICES, kwh
from tools.dashboards.grafana import Dashboard, Query, Row, stat, table, timeseries
from tools.dashboards.variables import datasource, labels

CHOSEN = 'namespace=~"$namespace", model_name=~"$model"'
MILLION = "1e6"


def model(amount: str, by: str = "") -> str:
    """An amount of the recording rules in the time range, in total or by labels."""
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} (sum_over_time(model:gpu_server_{amount}:minute{{{CHOSEN}}}[$__range]))"


def tokens(by: str = "") -> str:
    """Prompt and output tokens in the time range."""
    return f"({model('prompt_tokens', by)} + {model('output_tokens', by)} > 0)"


def per_million(joules: str, by: str = "") -> str:
    """Kilowatt-hours per million tokens."""
    return f"{kwh(joules)} / {tokens(by)} * {MILLION}"


WORK, PARKED = model("work_joules"), model("parked_joules")
BY_MODEL = "namespace, model_name"
WORK_OF_MODEL, PARKED_OF_MODEL = model("work_joules", BY_MODEL), model("parked_joules", BY_MODEL)

SUMS = Row("Selected time range", (
    stat("Output tokens", "Tokens that the servers generated.", "short", model("output_tokens")),
    stat("Prompt tokens", "Tokens of the prompts that the servers processed.", "short", model("prompt_tokens")),
    stat("Energy per output token", "Energy above parked power divided by output tokens.", "joule",
         f"{WORK} / ({model('output_tokens')} > 0)"),
    stat("Energy per token", "Energy above parked power divided by prompt and output tokens.", "joule",
         f"{WORK} / {tokens()}"),
    stat("Cost per million tokens ($currency)", "Cost of the energy above parked power, with the values at the top.",
         "none", f"{per_million(WORK)} {COST}"),
    stat("CO2 per million tokens", "Emissions of the energy above parked power, with the values set at the top.",
         "masskg", f"{per_million(WORK)} {CARBON}"),
    stat("Parked", "Part of the servers' energy that their GPUs draw while all processes wait.", "percentunit",
         f"{PARKED} / ({WORK} + {PARKED} > 0)", most=1),
    stat("Cost of parked servers ($currency)", "Cost of the parked energy, which is in no energy per token.", "none",
         f"{kwh(PARKED)} {COST}"),
))  # fmt: skip


def rate(name: str, *, by_pod: bool = False) -> str:
    """Recorded series of the chosen models."""
    return f"{'pod' if by_pod else 'model'}:gpu_server_{name}:rate5m{{{CHOSEN}}}"


LEGEND = "{{namespace}} {{model_name}}"
OVER_TIME = Row("Over time", (
    timeseries("Energy per output token by model", "Energy above parked power per output token.", "joule",
               Query(rate("joules_per_output_token"), LEGEND)),
    timeseries("Energy per token by model", "Energy above parked power per token, prompt and output together.", "joule",
               Query(rate("joules_per_token"), LEGEND)),
    timeseries("Tokens per second", "Output and prompt tokens of each model.", "short",
               Query(rate("output_tokens"), f"{LEGEND} output"), Query(rate("prompt_tokens"), f"{LEGEND} prompt")),
    timeseries("Power above parked power", "Power of the pods of each model, over all their GPUs.", "watt",
               Query(rate("work_watts"), LEGEND), stacked=True),
    timeseries("Parked power", "What GPUs draw while all processes wait, as part of each model.", "watt",
               Query(rate("parked_watts"), LEGEND), stacked=True),
    timeseries("Energy per output token by pod", "Servers of the same model compared.", "joule",
               Query(rate("joules_per_output_token", by_pod=True), "{{namespace}}/{{pod}} {{model_name}}")),
))  # fmt: skip

MODELS = Row("Models and phases", (
    table("Models", "In the selected time range. Energy per token, cost and CO2 are above parked power.", {
        "Prompt tokens": (model("prompt_tokens", BY_MODEL), "short"),
        "Output tokens": (model("output_tokens", BY_MODEL), "short"),
        "J per output token": (f"{WORK_OF_MODEL} / ({model('output_tokens', BY_MODEL)} > 0)", "none"),
        "J per token": (f"{WORK_OF_MODEL} / {tokens(BY_MODEL)}", "none"),
        "Cost per million": (f"{per_million(WORK_OF_MODEL, BY_MODEL)} {COST}", "none"),
        "kg CO2 per million": (f"{per_million(WORK_OF_MODEL, BY_MODEL)} {CARBON}", "none"),
        "Parked kWh": (kwh(PARKED_OF_MODEL), "none"),
    }, height=10),
    timeseries("Prefill and decode", "Estimated energy of a prompt token and of an output token, from exporters with "
               "--tokens.scrape. Absent if the load of the server does not determine both.", "joule",
               Query('gpu_server_phase_token_energy_joules{namespace=~"$namespace"}', "{{server}} {{phase}}"),
               width=12),
    timeseries("Error of prefill and decode", "Standard error of the estimate.", "joule",
               Query('gpu_server_phase_token_energy_error_joules{namespace=~"$namespace"}', "{{server}} {{phase}}"),
               width=12),
))  # fmt: skip

SERIES = "model:gpu_server_output_tokens:rate5m"
TOKENS = Dashboard(
    "tokens",
    "gpuledger / Tokens",
    "Joules, cost and CO2 per token by language model, with parked energy separate. Needs the recording rules of "
    "mixin/rules/gpuledger-tokens.yml.",
    (
        datasource(),
        labels("namespace", "Namespace", SERIES),
        labels("model", "Model", f'{SERIES}{{namespace=~"$namespace"}}', label="model_name"),
        *PRICES,
    ),
    (SUMS, OVER_TIME, MODELS),
    span="now-24h",
)
