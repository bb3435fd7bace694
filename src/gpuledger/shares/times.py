"""Time on the compute engine: how much of it each process had in the slots of one state.

Each sample of the driver names the process on the engine at one instant. In a state, some set S of the processes works.
For each set, the times follow a Dirichlet distribution: the prior is the fair share of the time slicer, with none above
its cap, and the samples are the observations. The result is the mean over the sets, by their likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log
from operator import mul

ALIAS = 0.25
"""n samples of a steady state count as n / (1 + ALIAS n): they alias with the time slices."""
FAIR_JITTERY, FAIR_STEADY = 1.0, 12.0
"""Weight of the fair share, in samples. In a steady state all processes probably have work at all times."""
STEADY = 0.008
"""A state with less jitter is steady."""
STRAY = 0.05
"""Part of the samples that belong to a neighbouring slot."""
HOST_BOUND = 0.9
"""A process with a lower cap waits for its host; its time next to others is its fair share or its cap."""
LEAST_PART = 0.005
"""A process with fewer samples in a state, relative to the most sampled one, does not work in it."""
LEAST_ALONE = 0.3
"""A process with a smaller part of the samples was not alone."""
SIZES = (2, 3, 4, 6, 8, 12)
"""Sizes of sets, which bound the cost with many processes."""
LOG_NEGLIGIBLE = log(1e-9)
"""Likelihood of a set that is left out, relative to the highest."""

Times = tuple[list[float], list[float]]
"""Part of the time on the engine of each process, and its variance."""
TUNED = ("ALIAS", "FAIR_JITTERY", "FAIR_STEADY", "STEADY", "STRAY")
"""Chosen on tests/data/h200; `bench.sensitivity` prints what halving and doubling them changes."""


def fair_shares(engine: float, caps: Sequence[float]) -> list[float]:
    """Equal parts of the busy time of the engine, none above its cap; what a cap leaves goes to the others."""
    fair = engine / len(caps)
    if min(caps) >= fair:
        return [fair] * len(caps)
    total = sum(caps)
    if total <= engine:
        return [engine * cap / total for cap in caps]
    shares, left, others = [0.0] * len(caps), engine, len(caps)
    for i in sorted(range(len(caps)), key=caps.__getitem__):
        shares[i] = min(caps[i], left / others)
        left -= shares[i]
        others -= 1
    return shares


def any_times(engine: float, caps: Sequence[float]) -> Times:
    """Times of processes that no sample names: fair shares q, with the variance of any split, q^2 (n - 1) / (n + 1)."""
    shares = fair_shares(engine, caps)
    relative = (len(caps) - 1) / (len(caps) + 1)
    return shares, [share * share * relative for share in shares]


def steadiness(jitter: float) -> float:
    """1 for a steady state, 0 for a jittery one, 1 / (1 + exp(4 (jitter / STEADY - 1))) in between."""
    return 1 / (1 + exp(min(50.0, 4 * (jitter / STEADY - 1))))


def engine_times(counts: Sequence[float], jitter: float, engine: float, caps: Sequence[float]) -> Times:
    """Times by the samples of a state, in which the engine is busy for a part `engine` of the time.

    With p_i = n_i / N and N_e = N / (1 + ALIAS steadiness N), for each set S of working processes:

        x_i = engine (N_e p_i + k q_i) / (N_e p(S) + k), q = fair shares of the busy time
        log L = N_e sum_i p_i log((1 - STRAY) x_i / engine + STRAY / n) - (|S| - 1) / 2 log((N_e p(S) + k) / k)

    k is FAIR_JITTERY to FAIR_STEADY by steadiness, and FAIR_STEADY if a process of the set waits for its host.

    The sets are each much sampled process alone, the SIZES most sampled processes together, and all of them.
    """
    size, total = len(counts), sum(counts)
    steady = steadiness(jitter)
    effective = total / (1 + ALIAS * steady * total)
    fair_weight = FAIR_JITTERY * (FAIR_STEADY / FAIR_JITTERY) ** steady
    stray = STRAY / size
    log_stray = log(stray)
    least = LEAST_PART * max(counts)
    order = sorted([i for i, count in enumerate(counts) if count > least], key=counts.__getitem__, reverse=True)
    parts = [counts[i] / total for i in order]
    limits = [caps[i] for i in order]
    highest = -inf
    sets: list[tuple[float, int, list[float], float]] = []
    """log L, the first in `order`, the shares of the processes from there on, and the strength of the distribution."""
    for number in [len(order), *[size for size in reversed(SIZES) if size < len(order)]]:
        if number < 2 or (number < len(order) and parts[number] == parts[number - 1]):
            continue  # a set either has all of several processes with equally many samples, or none of them
        named, inside = parts[:number], sum(parts[:number])
        strays = effective * (1 - inside) * log_stray
        if strays < highest + LOG_NEGLIGIBLE:
            break  # log L is less than that of the samples of all other processes, and smaller sets have more of them
        fair, lowest = engine / number, min(limits[:number])
        weight = FAIR_STEADY if lowest < HOST_BOUND else fair_weight
        whole = effective * inside + weight
        if lowest >= fair:
            shares = [(effective * part + weight / number) / whole for part in named]
        else:
            fairs = fair_shares(engine, limits[:number])
            shares = [(effective * part + weight * f / engine) / whole for part, f in zip(named, fairs, strict=True)]
        fit = sum(map(mul, named, [log((1 - STRAY) * share + stray) for share in shares]))
        value = effective * fit + strays - 0.5 * (number - 1) * log(whole / weight)
        sets.append((value, 0, shares, whole + 1))
        highest = max(highest, value)
    for i, part in enumerate(parts):
        if part < LEAST_ALONE:
            break
        value = effective * (part * log(1 - STRAY + stray) + (1 - part) * log_stray)
        sets.append((value, i, [1.0], effective * part + fair_weight + 1))
        highest = max(highest, value)
    means, squares, sum_of_weights = [0.0] * size, [0.0] * size, 0.0
    for value, first, shares, strength in sets:
        weight = exp(value - highest)
        sum_of_weights += weight
        for i, share in enumerate(shares, first):
            means[order[i]] += weight * share
            squares[order[i]] += weight * (share * share + share * (1 - share) / strength)
    scale = engine / sum_of_weights
    means = [scale * mean for mean in means]
    return means, [max(0.0, engine * scale * square - mean * mean) for mean, square in zip(means, squares, strict=True)]
