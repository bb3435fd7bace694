"""Metrics of language-model servers, with --tokens.scrape. Tokens stand next to energy and never change it."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.catalog.family import C, Family, G, Series, at
from gpuledger.catalog.kinds import EXPORTER, SERVER
from gpuledger.model import Tick, TokenServer

COUNTERS = "servers of --tokens.scrape"
JOIN = "energy books, servers of --tokens.scrape"


def _counts(field: str) -> Callable[[TokenServer], Series]:
    return lambda server: [((count.engine, count.model), getattr(count, field)) for count in server.counts]


def _phases(prompt: str, output: str) -> Callable[[TokenServer], Series]:
    fields = (("prefill", at(f"phases.{prompt}")), ("decode", at(f"phases.{output}")))
    return lambda server: [((phase,), joules) for phase, read in fields if (joules := read(server)) is not None]


def _up(tick: Tick) -> Series:
    return [((server.name,), int(server.up)) for server in tick.servers or ()]


def _failures(tick: Tick) -> Series:
    return [((server.name, reason), n) for server in tick.servers or () for reason, n in server.failures]


FAMILIES: tuple[Family, ...] = (
    Family("gpu_server_prompt_tokens_total", C, SERVER, "Prompt tokens of a model.",
           COUNTERS, series=_counts("prompt"), labels=("engine", "model_name"), needs="servers"),
    Family("gpu_server_output_tokens_total", C, SERVER, "Output tokens of a model.",
           COUNTERS, series=_counts("output"), labels=("engine", "model_name"), needs="servers"),
    Family("gpu_server_work_energy_joules_total", C, SERVER,
           "Energy of the server's owner above parked power, since the exporter started.",
           JOIN, at("work_mj", 1000), unit="joules", needs="servers"),
    Family("gpu_server_parked_energy_joules_total", C, SERVER,
           "Parked energy of the server's owner, since the exporter started.",
           JOIN, at("parked_mj", 1000), unit="joules", needs="servers"),
    Family("gpu_server_output_token_energy_joules", G, SERVER,
           "Energy above parked power per output token, over the last minute.",
           JOIN, at("rates.joules_per_output_token"), unit="joules", needs="servers"),
    Family("gpu_server_token_energy_joules", G, SERVER,
           "Energy above parked power per token, prompt and output together, over the last minute.",
           JOIN, at("rates.joules_per_token"), unit="joules", needs="servers"),
    Family("gpu_server_phase_token_energy_joules", G, SERVER,
           "Estimated energy above parked power of a prompt token (prefill) and of an output token (decode), over the "
           "last minutes; absent if the server's load does not determine both.",
           JOIN, series=_phases("prompt_j", "output_j"), labels=("phase",), unit="joules", needs="servers"),
    Family("gpu_server_phase_token_energy_error_joules", G, SERVER,
           "Standard error of gpu_server_phase_token_energy_joules.",
           JOIN, series=_phases("prompt_error_j", "output_error_j"), labels=("phase",), unit="joules", needs="servers"),
    Family("gpuledger_tokens_up", G, EXPORTER,
           "1 if the server of --tokens.scrape answers with token counters.",
           COUNTERS, series=_up, labels=("server",), needs="servers"),
    Family("gpuledger_tokens_failures_total", C, EXPORTER,
           "Failed reads of the server of --tokens.scrape, by reason.",
           COUNTERS, series=_failures, labels=("server", "reason"), needs="servers"),
)  # fmt: skip
