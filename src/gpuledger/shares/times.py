"""Time on the compute engine: how much of it each process had in the slots of one state.

Each sample of the driver names the process on the engine at one instant. In a state, some set S of the processes works.
For each set, the times follow a Dirichlet distribution: the prior is the fair share of the time slicer, with none above
its cap, and the samples are the observations. The result is the mean over the sets, by their likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

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
NEGLIGIBLE = 1e-9
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
    order = [i for i in sorted(range(size), key=counts.__getitem__, reverse=True) if counts[i] > least]
    parts = [counts[i] / total for i in order]
    likelihoods: list[tuple[float, list[int], list[float], float]] = []
    for i, part in zip(order, parts, strict=True):
        if part < LEAST_ALONE:
            break
        value = effective * (part * log(1 - STRAY + stray) + (1 - part) * log_stray)
        likelihoods.append((value, [i], [1.0], effective * part + fair_weight + 1))
    for number in (*(n for n in SIZES if n < len(order)), len(order)):
        if number < 2 or (number < len(order) and parts[number] == parts[number - 1]):
            continue  # a set either has all of several processes with equally many samples, or none of them
        members, named = order[:number], parts[:number]
        member_caps = [caps[i] for i in members]
        inside, weight = sum(named), FAIR_STEADY if min(member_caps) < HOST_BOUND else fair_weight
        whole = effective * inside + weight
        shares = [
            (effective * part + weight * fair / engine) / whole
            for part, fair in zip(named, fair_shares(engine, member_caps), strict=True)
        ]
        fit = sum([part * log((1 - STRAY) * share + stray) for part, share in zip(named, shares, strict=True)])
        value = effective * (fit + (1 - inside) * log_stray) - 0.5 * (number - 1) * log(whole / weight)
        likelihoods.append((value, members, shares, whole + 1))
    highest = max([value for value, *_ in likelihoods])
    means, squares, sum_of_weights = [0.0] * size, [0.0] * size, 0.0
    for value, members, shares, strength in likelihoods:
        weight = exp(value - highest)
        if weight < NEGLIGIBLE:
            continue
        sum_of_weights += weight
        for i, share in zip(members, shares, strict=True):
            means[i] += weight * share
            squares[i] += weight * (share * share + share * (1 - share) / strength)
    means = [mean / sum_of_weights for mean in means]
    variances = [max(0.0, square / sum_of_weights - mean * mean) for mean, square in zip(means, squares, strict=True)]
    return [engine * mean for mean in means], [engine * engine * variance for variance in variances]
