"""The energy of prefill and decode, fitted to windows of a server."""

from __future__ import annotations

import random

import pytest

from gpuledger.integrations.tokens.phases import Window, fit


def windows(count: int, noise: float, ratio: float | None = None) -> list[Window]:
    """Windows of a server with 0.02 J per prompt token and 0.5 J per output token; `ratio` fixes prompt to output."""
    numbers = random.Random(7)
    made = []
    for _ in range(count):
        output = numbers.uniform(100, 1000)
        prompt = output * ratio if ratio is not None else numbers.uniform(0, 40_000)
        made.append(Window((0.02 * prompt + 0.5 * output) * numbers.gauss(1, noise), prompt, output))
    return made


def test_exact_data_give_exact_energies() -> None:
    """Without noise, both energies are those of the world, and their errors are 0."""
    phases = fit(windows(8, 0.0))

    assert phases is not None
    assert (phases.prompt_j, phases.output_j) == pytest.approx((0.02, 0.5))
    assert (phases.prompt_error_j, phases.output_error_j) == pytest.approx((0, 0), abs=1e-9)
    assert phases.windows == 8


def test_errors_cover_the_truth() -> None:
    """With 5 % of noise, the truth is within three standard errors, which are small."""
    phases = fit(windows(40, 0.05))

    assert phases is not None
    assert abs(phases.prompt_j - 0.02) < 3 * phases.prompt_error_j < 0.3 * 0.02
    assert abs(phases.output_j - 0.5) < 3 * phases.output_error_j < 0.6 * 0.5


@pytest.mark.parametrize(
    "given",
    [
        windows(7, 0.0),
        windows(40, 0.05, ratio=20),
        windows(40, 0.0, ratio=20),
        [Window(10, 100, 0)] * 20,
        [Window(10, 0, 100)] * 20,
        [Window(0, 0, 0)] * 20,
        [Window(50 - o, 0.0 if o % 2 else 9.0, o) for o in map(float, range(1, 20))],
        [],
    ],
    ids=["few", "one ratio", "one ratio, exact", "prefill only", "decode only", "no tokens", "negative", "none"],
)
def test_no_estimate_without_evidence(given: list[Window]) -> None:
    """Nothing is published if the load of the server does not tell both phases apart."""
    assert fit(given) is None


def measured(count: int, energy_noise: float) -> list[Window]:
    """The same server: 5 us of the tensor cores and 1 us of memory per prompt token, 7 and 70 us per output token.

    The energy is that of the activity, 500 W and 600 W, with noise of its own: 3.1 mJ and 45.5 mJ per token.
    """
    numbers = random.Random(11)
    made = []
    for _ in range(count):
        prompt, output = numbers.uniform(0, 150_000), numbers.uniform(1000, 9000)
        tensor_s, dram_s = 5e-6 * prompt + 7e-6 * output, 1e-6 * prompt + 70e-6 * output
        joules = (500 * tensor_s + 600 * dram_s) * numbers.gauss(1, energy_noise)
        made.append(Window(joules, prompt, output, tensor_s, dram_s))
    return made


def test_estimates_go_through_the_activity() -> None:
    """Without noise, they are those of the world, as without activity."""
    phases = fit(measured(12, 0.0))

    assert phases is not None
    assert (phases.prompt_j, phases.output_j) == pytest.approx((0.0031, 0.0455))
    assert (phases.prompt_error_j, phases.output_error_j) == pytest.approx((0, 0), abs=1e-9)


def test_the_error_has_the_difference_of_both_ways() -> None:
    """Energy that is no activity: the error is larger than that of the fit to tokens alone, and covers the truth."""
    given = measured(12, 0.1)
    phases = fit(given)
    by_tokens = fit([Window(w.joules, w.prompt, w.output) for w in given])

    assert phases is not None
    assert by_tokens is not None
    assert phases.prompt_error_j**2 == pytest.approx(
        by_tokens.prompt_error_j**2 + (phases.prompt_j - by_tokens.prompt_j) ** 2
    )
    assert abs(phases.prompt_j - 0.0031) < 3 * phases.prompt_error_j
    assert abs(phases.output_j - 0.0455) < 3 * phases.output_error_j


def test_a_window_without_activity_leaves_the_tokens() -> None:
    """On GPUs without GPM, and while a process is new."""
    given = measured(12, 0.1)
    given[3] = Window(given[3].joules, given[3].prompt, given[3].output)

    assert fit(given) == fit([Window(w.joules, w.prompt, w.output) for w in given])
