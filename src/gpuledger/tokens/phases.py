"""Energy of prefill and decode: a fit of a server's energy to its prompt and output tokens. Pure.

In each window i, with the energy above parked power e_i, prompt tokens p_i and output tokens o_i,

    e_i = a p_i + b o_i + noise,    a, b >= 0

The least-squares solution has the covariance s^2 (X'X)^-1 with s^2 = RSS / (n - 2). A server whose ratio of prompt to
output tokens is always the same does not determine a and b: both errors become large, and there is no estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from gpuledger.model import PhaseEnergy

LEAST_WINDOWS = 8
LARGEST_ERROR = 0.5
"""Largest standard error of a and b, relative to their values, up to which they are published."""
SINGULAR = 1e-6
"""Least 1 - r^2 of prompt and output tokens for which the equations are solved."""


@dataclass(frozen=True, slots=True)
class Window:
    """Energy above parked power and tokens in one span of time."""

    joules: float
    prompt: float
    output: float


def fit(windows: Sequence[Window]) -> PhaseEnergy | None:
    """The energy of a prompt token and of an output token; None if the windows do not determine both."""
    used = [window for window in windows if window.prompt > 0 or window.output > 0]
    if len(used) < LEAST_WINDOWS:
        return None
    pp, oo, po = (sum([x * y for x, y in pairs]) for pairs in (
        [(w.prompt, w.prompt) for w in used], [(w.output, w.output) for w in used], [(w.prompt, w.output) for w in used]
    ))  # fmt: skip
    pe, oe = sum([w.prompt * w.joules for w in used]), sum([w.output * w.joules for w in used])
    determinant = pp * oo - po * po
    if not pp or not oo or determinant < SINGULAR * pp * oo:
        return None
    prompt_j, output_j = (oo * pe - po * oe) / determinant, (pp * oe - po * pe) / determinant
    # Where the unconstrained solution is negative, the constrained one is 0 there, which is no estimate of that phase.
    if prompt_j <= 0 or output_j <= 0:
        return None
    residual = sum([(w.joules - prompt_j * w.prompt - output_j * w.output) ** 2 for w in used])
    variance = residual / (len(used) - 2)
    prompt_error_j, output_error_j = sqrt(variance * oo / determinant), sqrt(variance * pp / determinant)
    if prompt_error_j > LARGEST_ERROR * prompt_j or output_error_j > LARGEST_ERROR * output_j:
        return None
    return PhaseEnergy(prompt_j, prompt_error_j, output_j, output_error_j, len(used))
