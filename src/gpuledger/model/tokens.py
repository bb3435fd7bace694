"""Servers of language models: their token counts, joined with the energy of their owner."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.model.owners import Owner
from gpuledger.model.problem import Problem
from gpuledger.model.readings import Labelled


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of one model since its server started, as the server reports them."""

    engine: str
    """The kind of server: vllm, sglang, tgi, triton or dynamo."""
    model: str
    """The name of the language model; empty if the server reports none."""
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class PhaseEnergy:
    """Estimated energy of a prompt token (prefill) and of an output token (decode), with standard errors."""

    prompt_j: float
    prompt_error_j: float
    output_j: float
    output_error_j: float
    windows: int
    """Spans of time that the estimate is fitted to."""


def per_token(joules: float, tokens: float) -> float | None:
    """Energy of one token; None if there was none."""
    return joules / tokens if tokens > 0 else None


@dataclass(frozen=True, slots=True)
class TokenRates:
    """Tokens and energy of a server over the last minute. Parked energy is separate."""

    seconds: float
    prompt_tokens: float
    output_tokens: float
    work_j: float
    """Energy above parked power."""
    parked_j: float

    @property
    def joules_per_output_token(self) -> float | None:
        """Energy above parked power per output token; None if there was none."""
        return per_token(self.work_j, self.output_tokens)

    @property
    def joules_per_token(self) -> float | None:
        """Energy above parked power per token, prompt and output together; None if there was none."""
        return per_token(self.work_j, self.prompt_tokens + self.output_tokens)


@dataclass(frozen=True, slots=True)
class TokenServer:
    """The servers of one owner. Tokens are shown next to energy and never change it."""

    name: str
    """The owner as configured, or namespace and pod of an annotated pod."""
    up: bool
    problem: Problem | None = None
    failures: Labelled = ()
    """Failed reads, by kind."""
    owner: Owner | None = None
    """None while the owner has no process on a GPU; then its tokens are not shown."""
    counts: tuple[TokenCounts, ...] = ()
    work_mj: int = 0
    """Energy above parked power since the exporter started, over all GPUs."""
    parked_mj: int = 0
    rates: TokenRates | None = None
    phases: PhaseEnergy | None = None

    @property
    def reason(self) -> str:
        """The problem as one line; empty if there is none."""
        return str(self.problem or "")
