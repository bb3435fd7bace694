"""Energy of prefill and decode: a fit of a server's energy to its tokens and its activity. Pure.

In each window i, with the energy above parked power e_i, prompt tokens p_i and output tokens o_i,

    e_i = a p_i + b o_i + noise,    a, b >= 0

The least-squares solution has the covariance s^2 (X'X)^-1 with s^2 = RSS / (n - 2). A server whose ratio of prompt to
output tokens is always the same does not determine a and b: both errors become large, and there is no estimate.

Prefill is tensor-heavy, decode memory-heavy. Where the activity of the server is known, with the time t_i of the tensor
cores and d_i of the memory, the estimate goes through it:

    t_i = t_p p_i + t_o o_i,    d_i = d_p p_i + d_o o_i,    e_i = w_t t_i + w_d d_i
    a = w_t t_p + w_d d_p,      b = w_t t_o + w_d d_o

Energy and activity are of the same moments, tokens only nearly; so noise of the energy that is no activity does not
count. The difference between both ways is part of the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, sqrt

from gpuledger.model import PhaseEnergy

LEAST_WINDOWS = 8
LARGEST_ERROR = 0.5
"""Largest standard error of a and b, relative to their values, up to which they are published."""
SINGULAR = 1e-6
"""Least 1 - r^2 of two variables for which the equations are solved."""


@dataclass(frozen=True, slots=True)
class Window:
    """Energy above parked power, tokens and activity in one span of time."""

    joules: float
    prompt: float
    output: float
    tensor_s: float | None = None
    dram_s: float | None = None


@dataclass(frozen=True, slots=True)
class Plane:
    """The least-squares solution of z = a x + b y."""

    a: float
    b: float
    a_error: float
    b_error: float


def fit(windows: Sequence[Window]) -> PhaseEnergy | None:
    """The energy of a prompt token and of an output token; None if the windows do not determine both."""
    used = [window for window in windows if window.prompt > 0 or window.output > 0]
    if len(used) < LEAST_WINDOWS:
        return None
    prompt, output, joules = [w.prompt for w in used], [w.output for w in used], [w.joules for w in used]
    direct = _plane(prompt, output, joules)
    if direct is None:
        return None
    a, b = _through_activity(used, prompt, output, joules) or (direct.a, direct.b)
    # Where the unconstrained solution is negative, the constrained one is 0 there, which is no estimate of that phase.
    if min(a, b, direct.a, direct.b) <= 0:
        return None
    a_error, b_error = hypot(direct.a_error, a - direct.a), hypot(direct.b_error, b - direct.b)
    if a_error > LARGEST_ERROR * a or b_error > LARGEST_ERROR * b:
        return None
    return PhaseEnergy(a, a_error, b, b_error, len(used))


def _through_activity(
    windows: Sequence[Window], prompt: Sequence[float], output: Sequence[float], joules: Sequence[float]
) -> tuple[float, float] | None:
    """Both energies through the activity; None if it is not known, or does not determine the energy."""
    tensor = [window.tensor_s for window in windows if window.tensor_s is not None]
    dram = [window.dram_s for window in windows if window.dram_s is not None]
    if not len(tensor) == len(dram) == len(windows):
        return None
    weights, of_tensor, of_dram = (
        _plane(tensor, dram, joules), _plane(prompt, output, tensor), _plane(prompt, output, dram)
    )  # fmt: skip
    if weights is None or of_tensor is None or of_dram is None:
        return None
    return weights.a * of_tensor.a + weights.b * of_dram.a, weights.a * of_tensor.b + weights.b * of_dram.b


def _plane(x: Sequence[float], y: Sequence[float], z: Sequence[float]) -> Plane | None:
    xx, yy, xy, xz, yz = (_product(x, x), _product(y, y), _product(x, y), _product(x, z), _product(y, z))
    determinant = xx * yy - xy * xy
    if not xx or not yy or determinant < SINGULAR * xx * yy:
        return None
    a, b = (yy * xz - xy * yz) / determinant, (xx * yz - xy * xz) / determinant
    residual = sum([(w - a * u - b * v) ** 2 for u, v, w in zip(x, y, z, strict=True)])
    variance = residual / (len(z) - 2)
    return Plane(a, b, sqrt(variance * yy / determinant), sqrt(variance * xx / determinant))


def _product(x: Sequence[float], y: Sequence[float]) -> float:
    return sum([u * v for u, v in zip(x, y, strict=True)])
